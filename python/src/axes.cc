#include "axes.hpp"

namespace softfold::python {
namespace {

std::string text_of(nb::handle value) { return nb::cast<std::string>(nb::repr(value)); }

/// `item` as a Python integer of any size.
nb::object integer_of(nb::handle item, const char* allowed) {
  nb::object number = index_of(item);
  if (number.is_valid()) return number;
  throw Error(Code::option, "axis " + text_of(item), allowed, "axis=-1");
}

int checked_axis(nb::handle number, int rank) {
  int axis = 0;
  if (!nb::try_cast<int>(number, axis) || axis < -rank || axis >= rank)
    throw Error(Code::shape, "axis " + text_of(number),
                rank == 0
                    ? "axis=None for a 0-dimensional array"
                    : std::to_string(-rank) + " .. " + std::to_string(rank - 1) + " for rank " + std::to_string(rank),
                rank == 0 ? "" : "axis=-1");
  return axis < 0 ? axis + rank : axis;
}

void add(Axes& axes, nb::handle item) {
  const nb::object number = integer_of(item, "None, an integer or a tuple of integers");
  const auto at = static_cast<std::size_t>(checked_axis(number, axes.rank));
  if (axes.folded[at]) throw Error(Code::shape, "axis " + std::to_string(at) + " named twice", "each axis once");
  axes.folded[at] = true;
  ++axes.count;
}

}  // namespace

int Axes::only() const {
  for (int i = 0; i < rank; ++i)
    if (folded[static_cast<std::size_t>(i)]) return i;
  return 0;
}

Axes parse_axes(nb::handle axis, int rank) {
  Axes axes;
  axes.rank = rank;
  if (axis.is_none()) {
    for (int i = 0; i < rank; ++i) axes.folded[static_cast<std::size_t>(i)] = true;
    axes.count = rank;
  } else if (PyTuple_Check(axis.ptr()) || PyList_Check(axis.ptr())) {
    for (const nb::handle item : nb::borrow<nb::sequence>(axis)) add(axes, item);
    if (axes.count == 0) throw Error(Code::option, "axis ()", "at least one axis to fold", "axis=None for all of them");
  } else {
    add(axes, axis);
  }
  return axes;
}

int axis_of(nb::handle axis) {
  const nb::object number = integer_of(axis, "an integer");
  int at = 0;
  if (!nb::try_cast<int>(number, at))
    throw Error(Code::shape, "axis " + text_of(number), "-rank .. rank - 1 of the input", "axis=-1");
  return at;
}

Tensor move_folded(const Tensor& t, const Tensor& x, const Axes& axes, const char* name) {
  const int lead = axes.rank - t.rank;
  Tensor to = t;
  to.rank = 0;
  for (const bool folded : {false, true}) {
    for (int i = 0; i < axes.rank; ++i) {
      if (axes.folded[static_cast<std::size_t>(i)] != folded) continue;
      const std::int64_t size = x.size(i), own = i < lead ? 1 : t.size(i - lead);
      if (lead < 0 || (own != size && own != 1))
        throw Error(Code::shape, std::string(name) + ", " + t.describe(), "the shape of " + x.describe());
      const auto at = static_cast<std::size_t>(to.rank++);
      to.shape[at] = size;
      to.strides[at] = i < lead || own != size ? 0 : t.stride(i - lead);
    }
  }
  return to;
}

bool join_last(Tensor& t, int count) {
  std::int64_t n = 1, step = 1;
  bool joins = true;
  for (int i = t.rank - 1; i >= t.rank - count; --i) {
    const std::int64_t size = t.size(i);
    joins &= size == 1 || n == 1 || t.stride(i) == step * n;
    if (n == 1) step = t.stride(i);
    n *= size;
  }
  if (!joins && n != 0) return false;
  t.rank -= count;
  const auto last = static_cast<std::size_t>(t.rank++);
  t.shape[last] = n;
  t.strides[last] = step;
  return true;
}

void drop_folded(Tensor& t, const Axes& axes, int trailing) {
  if (!t.given || t.rank != axes.rank + trailing) return;
  Tensor to = t;
  to.rank = 0;
  for (int i = 0; i < t.rank; ++i) {
    if (i < axes.rank && axes.folded[static_cast<std::size_t>(i)]) {
      if (t.size(i) != 1) return;  // no per-row shape: the library's own words are the better refusal
      continue;
    }
    const auto at = static_cast<std::size_t>(to.rank++);
    to.shape[at] = t.size(i);
    to.strides[at] = t.stride(i);
  }
  t = to;
}

nb::tuple row_shape(const Tensor& x, const Axes& axes, bool keepdims, int trailing) {
  nb::list shape;
  for (int i = 0; i < axes.rank; ++i) {
    if (!axes.folded[static_cast<std::size_t>(i)])
      shape.append(x.size(i));
    else if (keepdims)
      shape.append(1);
  }
  if (trailing != 0) shape.append(trailing);
  return nb::tuple(shape);
}

}  // namespace softfold::python
