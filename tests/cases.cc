#include "cases.hpp"

#include "support/row_reference.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>

namespace softfold_test {
namespace {

std::string shape_name(const Shape& shape) {
  std::string s;
  for (const auto n : shape) s.append(s.empty() ? "" : "x").append(std::to_string(n));
  return s;
}

/// Everything random about row r of a case, whatever rows stand around it.
Random random_of_row(const RowCase& c, std::int64_t r, std::uint64_t what) {
  return Random(static_cast<std::uint64_t>(c.first_row + r) * 6364136223846793005ULL + what * 1442695040888963407ULL +
                static_cast<std::uint64_t>(c.n()));
}

bool is_backward(Op op) {
  return op == Op::softmax_backward || op == Op::log_softmax_backward || op == Op::logsumexp_backward;
}

/// The values of row r before mask and poison: x, or for the backward passes y.
std::vector<double> plain_row(const RowCase& c, std::int64_t r) {
  const std::int64_t n = c.n();
  std::vector<double> x(static_cast<std::size_t>(n));
  if (c.op == Op::softmax_backward || c.op == Op::log_softmax_backward) {
    Random random = random_of_row(c, r, 11);
    for (double& v : x) {
      const double u = random.uniform();
      v = c.op == Op::softmax_backward ? 2. * u / static_cast<double>(n) : -9. * u;
    }
    return x;
  }
  const Kind kind =
      c.kind == Kind::count ? static_cast<Kind>((c.first_row + r) % static_cast<std::int64_t>(Kind::count)) : c.kind;
  with_storage(c.in, [&]<class S>(S) {
    if constexpr (!std::is_integral_v<S>) {
      const auto row = make_row<S>(kind, n, static_cast<std::uint64_t>(c.first_row + r) + 1);
      std::transform(row.begin(), row.end(), x.begin(),
                     [](S v) { return static_cast<double>(softfold::fold::widen(v)); });
    }
  });
  return x;
}

constexpr std::array kPoison = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e30,
                                -1e30, -std::numeric_limits<double>::infinity()};

Shape outer_shape(const RowCase& c) {
  Shape outer = c.shape;
  outer.erase(outer.begin() + (c.axis < 0 ? c.axis + std::ssize(c.shape) : c.axis));
  return outer;
}

/// Where element i of row r lies in a contiguous array of the case's shape.
std::int64_t index_of(const RowCase& c, std::int64_t r, std::int64_t i) {
  const auto axis = static_cast<std::size_t>(c.axis < 0 ? c.axis + std::ssize(c.shape) : c.axis);
  std::int64_t inner = 1;
  for (std::size_t j = axis + 1; j < c.shape.size(); ++j) inner *= c.shape[j];
  return (r / inner * c.n() + i) * inner + r % inner;
}

Array full_array(const RowCase& c, DType dtype, Layout layout, std::uint64_t what, double low, double high) {
  Array t(dtype, c.shape, layout);
  for (std::int64_t r = 0; r < c.rows(); ++r) {
    Random random = random_of_row(c, r, what);
    for (std::int64_t i = 0; i < c.n(); ++i) {
      double v = random.uniform(low, high);
      if (c.poison && !c.exists(r, i)) v = kPoison[static_cast<std::size_t>(i + 2) % kPoison.size()];
      t.set_value(index_of(c, r, i), v);
    }
  }
  return t;
}

Array row_array(const RowCase& c, DType dtype, Layout layout, std::uint64_t what, double low, double high) {
  Array t(dtype, outer_shape(c), layout);
  for (std::int64_t r = 0; r < c.rows(); ++r) t.set_value(r, random_of_row(c, r, what).uniform(low, high));
  return t;
}

/// States of every row by the scalar definition; for finish_* merged with those of a second shard.
template <class T>
void fill_states(const RowCase& c, Array& t) {
  using Lse = softfold::fold::LogSumExp<T>;
  for (std::int64_t r = 0; r < c.rows(); ++r) {
    ReferenceRow<T> row;
    row.scale = c.scale_of_row(r);
    const auto x = c.row(r);
    for (std::int64_t i = 0; i < c.n(); ++i) {
      row.x.push_back(static_cast<T>(x[static_cast<std::size_t>(i)]));
      row.present.push_back(c.exists(r, i));
    }
    auto s = reference_state(row);
    if (!is_backward(c.op)) s = Lse::merge(s, {2., static_cast<T>(1.25)});
    const double stored[] = {s.m, static_cast<double>(s.d), row.scale, softfold::fold::Real<T>::kDigits};
    for (std::int64_t k = 0; k < 4; ++k) t.set(4 * r + k, stored[k]);
  }
}

Array states_array(const RowCase& c, Layout layout) {
  Array t = Array::of_states(outer_shape(c), layout);
  if (c.in == DType::float64) {
    fill_states<double>(c, t);
  } else {
    fill_states<float>(c, t);
  }
  return t;
}

void add_options(Problem& p, const RowCase& c, Layout layout) {
  p.axis = c.axis;
  p.scale = c.op == Op::finish_logsumexp ? 1. : c.scale;  // there the states carry it
  p.causal = c.causal;
  p.empty = c.empty;
  p.rung = c.rung;
  if (c.scales) {
    p.scales.emplace(DType::float64, outer_shape(c), layout);
    for (std::int64_t r = 0; r < c.rows(); ++r) p.scales->set(r, c.scale_of_row(r) / c.scale);
  }
  if (c.length) {
    p.length.emplace(c.in == DType::float64 ? DType::int32 : DType::int64, outer_shape(c), layout);
    for (std::int64_t r = 0; r < c.rows(); ++r) p.length->set_value(r, static_cast<double>(c.length_of_row(r)));
  }
  if (c.mask == MaskShape::none) return;
  Shape shape = c.mask == MaskShape::last_axis ? Shape{c.shape.back()} : c.shape;
  if (c.mask == MaskShape::one_a_row) shape.back() = 1;
  p.mask.emplace(DType::boolean, shape, layout);
  RowCase unlimited = c;
  unlimited.length = unlimited.causal = false;
  for (std::int64_t r = 0; r < c.rows(); ++r)
    for (std::int64_t i = 0; i < c.n(); ++i) {
      const std::int64_t k = c.mask == MaskShape::last_axis   ? i
                             : c.mask == MaskShape::one_a_row ? r
                                                              : index_of(c, r, i);
      p.mask->set(k, static_cast<std::uint8_t>(unlimited.exists(r, i)));
    }
}

/// All rows end to end, each with its own length.
void make_ragged(Problem& p, const RowCase& c, Layout layout) {
  p.offsets.emplace(DType::int64, Shape{c.rows() + 1}, layout);
  std::int64_t total = 0;
  p.offsets->set(0, total);
  for (std::int64_t r = 0; r < c.rows(); ++r) p.offsets->set(r + 1, total += c.length_of_row(r));
  Array x(c.in, {total}, layout), dy(c.in, {total}, layout);
  for (std::int64_t r = 0, k = 0; r < c.rows(); ++r) {
    const auto row = c.row(r);
    Random random = random_of_row(c, r, 21);
    for (std::int64_t i = 0; i < c.length_of_row(r); ++i, ++k) {
      x.set_value(k, row[static_cast<std::size_t>(i)]);
      dy.set_value(k, random.uniform(-2., 2.));
    }
  }
  p.inputs.push_back(std::move(x));
  if (c.op == Op::logsumexp_backward) {
    p.inputs.push_back(states_array(c, layout));
    p.inputs.push_back(row_array(c, c.in, layout, 31, -2., 2.));
  } else if (is_backward(c.op)) {
    p.inputs.push_back(std::move(dy));
  }
  if (c.op == Op::logsumexp) {
    p.outputs.emplace_back(c.out, Shape{c.rows()}, layout);
  } else if (c.op == Op::state) {
    p.outputs.push_back(Array::of_states({c.rows()}, layout));
  } else {
    p.outputs.emplace_back(c.out, Shape{total}, layout);
  }
}

}  // namespace

std::int64_t RowCase::rows() const { return count_of(outer_shape(*this)); }

double RowCase::scale_of_row(std::int64_t r) const {
  if (faint) {
    constexpr double narrow[] = {1e-60, 1e-42, 5e-39, -1e-42}, wide[] = {5e-324, 1e-310, 1.2e-308, -1e-310};
    return (in == DType::float64 ? wide : narrow)[(first_row + r) % 4];
  }
  return scales ? scale * (0.25 + 0.125 * static_cast<double>((first_row + r) % 13)) : scale;
}

std::int64_t RowCase::length_of_row(std::int64_t r) const {
  std::int64_t l = n();
  if (length || ragged) l = (first_row + r) % 5 == 4 ? 0 : l - random_of_row(*this, r, 3).below(l / 2 + 1);
  if (causal) {
    const std::int64_t t = shape[shape.size() - 2];
    l = std::min(l, std::max<std::int64_t>(0, r % t + 1 + n() - t));
  }
  return l;
}

bool RowCase::exists(std::int64_t r, std::int64_t i) const {
  if (i >= length_of_row(r)) return false;
  switch (mask) {
    case MaskShape::none: return true;
    case MaskShape::full:
      return (first_row + r) % 6 != 5 && random_of_row(*this, r, 1000 + static_cast<std::uint64_t>(i)).below(3) != 0;
    case MaskShape::last_axis: return Random(static_cast<std::uint64_t>(i)).below(3) != 0;
    case MaskShape::one_a_row: return (first_row + r) % 3 != 1;
  }
  return true;
}

std::vector<double> RowCase::row(std::int64_t r) const {
  auto x = plain_row(*this, r);
  for (std::int64_t i = 0; poison && i < n(); ++i)
    if (!exists(r, i)) x[static_cast<std::size_t>(i)] = kPoison[static_cast<std::size_t>(i) % kPoison.size()];
  return x;
}

std::string RowCase::name() const {
  char number[32] = "";
  if (scale != 1) std::snprintf(number, sizeof number, ".scale%g", scale);
  std::string s(softfold::name_of(op));
  s.append(".").append(softfold::name_of(in));
  if (out != in) s.append("-").append(softfold::name_of(out));
  s.append(".").append(shape_name(shape)).append(".").append(kind == Kind::count ? "mixed" : name_of(kind));
  s.append(number);
  if (axis != -1) s.append(".axis").append(std::to_string(axis));
  if (mask != MaskShape::none) s.append(".mask-").append(1, "-flr"[static_cast<int>(mask)]);
  if (scales) s.append(faint ? ".faint-scales" : ".scales");
  if (length) s.append(".length");
  if (ragged) s.append(".ragged");
  if (causal) s.append(".causal");
  if (empty == softfold::Empty::nan) s.append(".empty-nan");
  return s;
}

Problem make_problem(const RowCase& c, Layout layout) {
  Problem p;
  p.op = c.op;
  if (c.ragged) {
    make_ragged(p, c, layout);
    add_options(p, c, layout);
    return p;
  }
  Array x(c.in, c.shape, layout);
  for (std::int64_t r = 0; r < c.rows(); ++r) {
    const auto row = c.row(r);
    for (std::int64_t i = 0; i < c.n(); ++i) x.set_value(index_of(c, r, i), row[static_cast<std::size_t>(i)]);
  }
  if (c.op != Op::finish_logsumexp) p.inputs.push_back(std::move(x));
  if (c.op == Op::softmax_backward || c.op == Op::log_softmax_backward)
    p.inputs.push_back(full_array(c, c.in, layout, 21, -2., 2.));
  if (c.op == Op::logsumexp_backward || c.op == Op::finish_softmax || c.op == Op::finish_log_softmax ||
      c.op == Op::finish_logsumexp)
    p.inputs.push_back(states_array(c, layout));
  if (c.op == Op::logsumexp_backward) p.inputs.push_back(row_array(c, c.in, layout, 31, -2., 2.));

  if (c.op == Op::logsumexp || c.op == Op::finish_logsumexp) {
    p.outputs.emplace_back(c.out, outer_shape(c), layout);
  } else if (c.op == Op::state) {
    p.outputs.push_back(Array::of_states(outer_shape(c), layout));
  } else {
    p.outputs.emplace_back(c.out, c.shape, layout);
  }
  add_options(p, c, layout);
  return p;
}

std::vector<Array*> Problem::operands() {
  std::vector<Array*> all;
  for (Array& t : inputs) all.push_back(&t);
  for (Array& t : outputs) all.push_back(&t);
  for (auto* t : {&scales, &length, &offsets, &mask})
    if (t->has_value()) all.push_back(&**t);
  return all;
}

Bound bind(Problem& p) {
  std::vector<unsigned char*> bases;
  for (Array* t : p.operands()) bases.push_back(t->bytes().data());
  return bind(p, bases, {});
}

Bound bind(Problem& p, const std::vector<unsigned char*>& bases, softfold::Device device) {
  Bound b;
  std::size_t next = 0;
  for (const Array& t : p.inputs) b.inputs.push_back(t.view_at(bases[next++], device));
  for (const Array& t : p.outputs) b.outputs.push_back(t.view_at(bases[next++], device));
  b.rows.axis = p.axis;
  b.rows.scale = p.scale;
  b.rows.causal = p.causal;
  b.rows.empty = p.empty;
  b.rows.rung = p.rung;
  if (p.scales) b.rows.scales = p.scales->view_at(bases[next++], device);
  if (p.length) b.rows.length = p.length->view_at(bases[next++], device);
  if (p.offsets) b.rows.offsets = p.offsets->view_at(bases[next++], device);
  if (p.mask) b.rows.mask = p.mask->view_at(bases[next++], device);
  b.merge = p.merge;
  b.own = p.own;
  return b;
}

std::uint64_t hash_of_outputs(const Problem& p) {
  Hash hash;
  for (const Array& t : p.outputs) {
    const auto elements = t.elements();
    hash.bytes(elements.data(), elements.size());
  }
  return hash.value();
}

}  // namespace softfold_test
