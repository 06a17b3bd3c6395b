#include "front/row_builder.hpp"

#include "front/checks.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace {

using checks::describe;

int checked_axis(int axis, int rank) {
  if (rank == 0) throw Error(Code::shape, "a 0-dimensional x", "at least one axis to fold", "give it the shape [1]");
  if (axis < -rank || axis >= rank)
    throw Error(Code::shape, "axis " + std::to_string(axis),
                std::to_string(-rank) + " .. " + std::to_string(rank - 1) + " for rank " + std::to_string(rank),
                "axis -1");
  return axis < 0 ? axis + rank : axis;
}

std::int64_t integer_at(const View& v, std::int64_t i) {
  const std::int64_t at = i * checks::stride_of(v, 0);
  return v.dtype == DType::int32 ? static_cast<const std::int32_t*>(v.data)[at]
                                 : static_cast<const std::int64_t*>(v.data)[at];
}

/// The outer axes: x's without the folded one; the states' own where there is no x.
void set_outer(RowProblem& p, std::span<const std::int64_t> shape, int axis) {
  p.n = axis < 0 ? 0 : shape[static_cast<std::size_t>(axis)];
  p.rows = 1;
  p.outer_rank = 0;
  for (int i = 0; i < static_cast<int>(shape.size()); ++i) {
    if (i == axis) continue;
    p.outer[static_cast<std::size_t>(p.outer_rank++)] = shape[static_cast<std::size_t>(i)];
    p.rows *= shape[static_cast<std::size_t>(i)];
  }
  p.elements = p.rows * p.n;
}

/// Ragged rows: x is one axis, cut by offsets. What can be read on the host is checked here.
void set_ragged(RowProblem& p, const View& x, const RowOptions& o) {
  checks::check_view(o.offsets, "offsets");
  checks::check_device(x, o.offsets, "offsets");
  const bool is_vector = o.offsets.rank() == 1;
  if (x.rank() != 1 || !is_vector || o.offsets.shape[0] < 1)
    throw Error(Code::shape, "offsets " + describe(o.offsets) + " with x " + describe(x),
                "x of rank 1 and offsets of shape [rows + 1]",
                x.rank() != 1 ? "flatten x; offsets count its elements"
                : is_vector   ? "give [0] for no row"
                              : "one axis of offsets");
  checks::check_integer(o.offsets, "offsets");
  if (o.length.given() || o.causal)
    throw Error(Code::option, "offsets together with lengths or causal", "one way to say how long a row is",
                "offsets alone");
  p.outer_rank = 1;
  p.ragged_elements = p.elements = x.shape[0];
  p.rows = p.outer[0] = o.offsets.shape[0] - 1;
  if (x.device.kind != DeviceKind::cpu) {
    p.n = x.shape[0];
    return;
  }
  p.n = 0;
  for (std::int64_t i = 0, last = 0; i <= p.rows; ++i) {
    const std::int64_t at = integer_at(o.offsets, i);
    checks::check_offset({"offsets", "x's length ", "", "rows"}, i, at, last, x.shape[0]);
    if (i > 0) p.n = std::max(p.n, at - last);
    last = at;
  }
}

/// A length that lies outside 0 .. n is refused where the host can read it; kernels on other devices clamp.
void check_lengths(const RowProblem& p) {
  const Operand& v = p[Slot::length];
  std::array<std::int64_t, kMaxRank> at{};
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const char* at_row = v.data;
    for (int i = 0; i < p.outer_rank; ++i)
      at_row += at[static_cast<std::size_t>(i)] * v.strides[static_cast<std::size_t>(i)];
    const std::int64_t n = v.dtype == DType::int32 ? *reinterpret_cast<const std::int32_t*>(at_row)
                                                   : *reinterpret_cast<const std::int64_t*>(at_row);
    if (n < 0 || n > p.n)
      throw Error(Code::data, "length " + std::to_string(n) + " for row " + std::to_string(r),
                  "0 .. " + std::to_string(p.n), n < 0 ? "0 for a row without elements" : "clip it to x's axis");
    for (int i = p.outer_rank - 1; i >= 0; --i) {
      if (++at[static_cast<std::size_t>(i)] < p.outer[static_cast<std::size_t>(i)]) break;
      at[static_cast<std::size_t>(i)] = 0;
    }
  }
}

Operand& begin(Operand& o, const View& v) {
  o.data = static_cast<char*>(v.data);
  o.dtype = v.dtype;
  o.given = true;
  o.axis_stride = 0;
  return o;
}

}  // namespace

RowBuilder::RowBuilder(RowProblem& problem, const View& x, const RowOptions& o)
    : p(problem), shape(x.shape), axis(checked_axis(o.axis, x.rank())), ragged(o.offsets.given()) {
  if (!ragged) {
    set_outer(p, shape, axis);
    return;
  }
  set_ragged(p, x, o);
  begin(p[Slot::offsets], o.offsets).strides[0] = checks::byte_stride(o.offsets, 0);
}

RowBuilder::RowBuilder(RowProblem& problem, std::span<const std::int64_t> rows) : p(problem), axis(-1), ragged(false) {
  set_outer(p, rows, -1);
}

void RowBuilder::full(Operand& o, const char* name, const View& v, bool broadcast, std::int64_t axis_size) {
  const auto size = [&](int i) { return i == axis && axis_size >= 0 ? axis_size : shape[static_cast<std::size_t>(i)]; };
  const int rank = static_cast<int>(shape.size()), lead = rank - v.rank();
  bool fits = broadcast ? lead >= 0 : lead == 0;
  for (int i = 0; fits && i < v.rank(); ++i) {
    const auto n = v.shape[static_cast<std::size_t>(i)];
    fits = n == size(i + lead) || (broadcast && n == 1);
  }
  if (!fits)
    throw Error(Code::shape, std::string(name) + " of shape " + describe(v.shape),
                std::string(broadcast ? "a shape that broadcasts to " : "x's shape ") + describe(shape) +
                    (axis_size >= 0 ? " with " + std::to_string(axis_size) + " along the axis" : ""),
                !broadcast ? ""
                : lead < 0 ? "drop its leading axes"
                           : "size 1 where it is the same for all");
  begin(o, v);
  o.strides[0] = 0;  // ragged rows are reached through their offsets
  for (int i = 0, j = 0; i < rank; ++i) {
    const bool absent = i < lead || (v.shape[static_cast<std::size_t>(i - lead)] == 1 && size(i) != 1);
    (i == axis ? o.axis_stride : o.strides[static_cast<std::size_t>(j++)]) =
        absent ? 0 : checks::byte_stride(v, i - lead);
  }
}

void RowBuilder::per_row(Operand& o, const char* name, const View& v, int trailing, bool broadcast) {
  const int rank = static_cast<int>(shape.size()), v_rank = v.rank() - (trailing != 0 ? 1 : 0);
  const bool keeps_axis = axis >= 0 && !ragged && v_rank == rank && v.shape[static_cast<std::size_t>(axis)] == 1;
  const int lead = keeps_axis ? 0 : p.outer_rank - v_rank;
  bool fits = v_rank >= 0 && (broadcast ? lead >= 0 : lead == 0);
  if (trailing != 0) fits = fits && v.shape.back() == trailing && checks::stride_of(v, v_rank) == 1;
  begin(o, v);
  for (int j = 0; fits && j < p.outer_rank; ++j) {
    const int k = keeps_axis && j >= axis ? j + 1 : j - lead;
    const auto outer = p.outer[static_cast<std::size_t>(j)];
    const auto n = k < 0 ? 1 : v.shape[static_cast<std::size_t>(k)];
    fits = n == outer || (broadcast && n == 1);
    o.strides[static_cast<std::size_t>(j)] = n == 1 && outer != 1 ? 0 : k < 0 ? 0 : checks::byte_stride(v, k);
  }
  if (!fits)
    throw Error(Code::shape, std::string(name) + " of shape " + describe(v.shape),
                "one " + (trailing != 0 ? "contiguous vector of " + std::to_string(trailing) : std::string("value")) +
                    " a row: " + describe(std::span(p.outer.data(), static_cast<std::size_t>(p.outer_rank))) +
                    (trailing != 0 ? " + [" + std::to_string(trailing) + "]" : ""),
                p.outer_rank == 0 && trailing == 0
                    ? "a single value: all of x is one row (in Python axis=None folds all axes)"
                    : "");
}

void RowBuilder::add_options(const RowOptions& o) {
  if (o.scales.given()) {
    checks::check_view(o.scales, "scales");
    if (o.scales.dtype != DType::float32 && o.scales.dtype != DType::float64)
      throw Error(Code::dtype, "scales of dtype " + std::string(name_of(o.scales.dtype)), "float32, float64",
                  "convert them to float32");
    per_row(p[Slot::scales], "scales", o.scales, 0, true);
  }
  if (o.mask.given()) {
    checks::check_view(o.mask, "mask");
    if (o.mask.dtype != DType::boolean)
      throw Error(Code::dtype, "mask of dtype " + std::string(name_of(o.mask.dtype)), "bool",
                  "a bool mask, true where an element exists");
    full(p[Slot::mask], "mask", o.mask, true);
  }
  if (o.length.given()) {
    checks::check_view(o.length, "lengths");
    checks::check_integer(o.length, "lengths");
    per_row(p[Slot::length], "lengths", o.length, 0, true);
    if (o.length.device.kind == DeviceKind::cpu) check_lengths(p);
  }
  const int rank = static_cast<int>(shape.size());
  if (o.causal && (rank < 2 || axis != rank - 1))
    throw Error(Code::option,
                "causal with x of shape " + describe(shape) + " folded along axis " + std::to_string(axis),
                "x of shape (..., T, S), folded along its last axis", rank < 2 ? "" : "axis -1");
}

void collapse(RowProblem& p, std::span<Operand> more) {
  if (p.outer_rank <= 1) return;
  const auto joins = [&p, more](std::size_t left, std::size_t right) {
    if (p.outer[left] == 1) return true;
    const auto walks = [&](const Operand& o) {
      return !o.given || o.strides[left] == o.strides[right] * p.outer[right];
    };
    return std::all_of(p.operands.begin(), p.operands.end(), walks) && std::all_of(more.begin(), more.end(), walks);
  };
  const auto move = [&](std::size_t to, std::size_t from) {
    for (Operand& o : p.operands)
      if (o.given) o.strides[to] = o.strides[from];
    for (Operand& o : more)
      if (o.given) o.strides[to] = o.strides[from];
  };
  int kept = 0;
  for (int i = 0; i < p.outer_rank; ++i) {
    const auto right = static_cast<std::size_t>(i), left = static_cast<std::size_t>(kept - 1);
    const bool alone = p.causal && i == p.outer_rank - 1;
    if (!alone && kept > 0 && (p.outer[right] == 1 || joins(left, right))) {
      if (p.outer[right] == 1) continue;
      p.outer[left] *= p.outer[right];
      move(left, right);
      continue;
    }
    const auto to = static_cast<std::size_t>(kept++);
    p.outer[to] = p.outer[right];
    move(to, right);
  }
  p.outer_rank = kept;
}

}  // namespace v0
}  // namespace softfold
