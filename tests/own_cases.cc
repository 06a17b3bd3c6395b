// The problems of operations with options of their own: cross-entropy with every option, entropy, divergence; those of
// top-k and sampling come from selection_cases.cc.
#include "own_cases.hpp"

#include "support/row_reference.hpp"

namespace softfold_test {
namespace {

using softfold::Reduction;

struct LossCase {
  RowCase rows;
  Reduction reduction = Reduction::mean;
  double smoothing = 0, z_loss = 0;
  bool weighted = false;
  bool alone = false;  ///< nothing but the loss

  std::string name() const {
    constexpr const char* reductions[] = {"none", "sum", "mean"};
    std::string s = rows.name();
    s.append(".").append(reductions[static_cast<int>(reduction)]);
    if (smoothing > 0) s.append(".smooth");
    if (z_loss > 0) s.append(".z");
    if (weighted) s.append(".weight");
    if (alone) s.append(".alone");
    return s;
  }
};

/// Every fourth target is ignored, and so is that of a row without classes.
Array targets_of(const RowCase& c, Layout layout) {
  Array t(c.in == DType::float64 ? DType::int32 : DType::int64, shape_of_rows(c), layout);
  for (std::int64_t r = 0; r < c.rows(); ++r) {
    Random random(static_cast<std::uint64_t>(r) * 7919 + static_cast<std::uint64_t>(c.n()));
    const std::int64_t classes = c.ragged ? c.length_of_row(r) : c.n();
    t.set_value(r, classes == 0 || r % 4 == 3 ? -100. : static_cast<double>(random.below(classes)));
  }
  return t;
}

Array dloss_of(const LossCase& c, Layout layout) {
  const bool each = c.reduction == Reduction::none;
  Array t(c.rows.out, each ? shape_of_rows(c.rows) : Shape{}, layout);
  for (std::int64_t r = 0; r < t.count(); ++r) t.set_value(r, each ? 0.25 * static_cast<double>(r % 9) - 1. : -1.5);
  return t;
}

/// Of the elements of `from` that exist in c.
template <class T>
void fill_states(const RowCase& c, const RowCase& from, Array& t) {
  for (std::int64_t r = 0; r < c.rows(); ++r) {
    ReferenceRow<T> row;
    row.scale = c.scale_of_row(r);
    const auto x = from.row(r);
    for (std::int64_t i = 0; i < c.n(); ++i) {
      row.x.push_back(static_cast<T>(x[static_cast<std::size_t>(i)]));
      row.present.push_back(c.exists(r, i));
    }
    const auto s = reference_state(row);
    const double stored[] = {s.m, static_cast<double>(s.d), row.scale, softfold::fold::Real<T>::kDigits};
    for (std::int64_t k = 0; k < 4; ++k) t.set(4 * r + k, stored[k]);
  }
}

Array states_of(const RowCase& c, const RowCase& from, Layout layout) {
  Array states = Array::of_states(shape_of_rows(c), layout);
  if (c.in == DType::float64) {
    fill_states<double>(c, from, states);
  } else {
    fill_states<float>(c, from, states);
  }
  return states;
}

Problem make_loss(const LossCase& c, Layout layout) {
  RowCase base = c.rows;
  base.op = base.ragged ? Op::softmax : Op::state;
  Problem p = make_problem(base, layout);
  p.op = c.rows.op;
  softfold::CrossEntropyOptions o;
  o.reduction = c.reduction;
  o.label_smoothing = c.smoothing;
  o.z_loss = c.z_loss;
  p.own = o;
  Array dx = base.ragged ? std::move(p.outputs[0]) : Array(c.rows.out, c.rows.shape, layout);
  const bool each = c.reduction == Reduction::none;
  p.inputs.push_back(targets_of(c.rows, layout));
  p.outputs.clear();
  if (c.rows.op == Op::cross_entropy_backward) {
    p.inputs.push_back(states_of(c.rows, c.rows, layout));
  } else {
    p.outputs.emplace_back(c.rows.out, each ? shape_of_rows(c.rows) : Shape{}, layout);
  }
  p.inputs.push_back(dloss_of(c, layout));
  if (c.weighted) {
    p.inputs.emplace_back(DType::float32, Shape{c.rows.n()}, layout);
    for (std::int64_t i = 0; i < c.rows.n(); ++i) p.inputs.back().set_value(i, 0.25 * static_cast<double>(i % 7));
  }
  if (c.rows.op == Op::cross_entropy && !c.alone) {
    p.outputs.emplace_back(c.rows.out, shape_of_rows(c.rows), layout);
    p.outputs.push_back(Array::of_states(shape_of_rows(c.rows), layout));
  }
  if (!c.alone) p.outputs.push_back(std::move(dx));
  return p;
}

LossCase loss_case(Op op, DType t, Shape shape, Kind kind = Kind::count) {
  LossCase c;
  c.rows = rows_of(op, t, std::move(shape), kind);
  return c;
}

void add_losses(std::vector<LossCase>& list, DType t) {
  for (const std::int64_t n : {1, 7, 33, 1023, 1024, 1025, 2500}) {
    for (const Reduction reduction : {Reduction::none, Reduction::mean}) {
      LossCase c = loss_case(Op::cross_entropy, t, {19, n});
      c.reduction = reduction;
      list.push_back(c);
    }
    LossCase c = loss_case(Op::cross_entropy_backward, t, {19, n});
    c.smoothing = 0.1;
    list.push_back(c);
  }
  for (int bits = 1; bits < 8; ++bits) {
    LossCase c = loss_case(Op::cross_entropy, t, {19, 1300});
    c.smoothing = (bits & 1) != 0 ? 0.125 : 0;
    c.z_loss = (bits & 2) != 0 ? 1e-3 : 0;
    c.weighted = (bits & 4) != 0;
    c.reduction = static_cast<Reduction>(bits % 3);
    list.push_back(c);
    c.rows.mask = MaskShape::full;
    c.rows.length = bits % 2 == 0;
    c.rows.scale = bits % 4 == 1 ? -0.5 : 1;
    list.push_back(c);
    c.rows.op = Op::cross_entropy_backward;
    list.push_back(c);
  }
  LossCase c = loss_case(Op::cross_entropy, t, {3, 70, 5}, Kind::gaussian);
  c.rows.axis = 1;
  c.smoothing = 0.1;
  list.push_back(c);
  c = loss_case(Op::cross_entropy, t, {19, 1400});
  c.rows.ragged = true;
  list.push_back(c);
  c = loss_case(Op::cross_entropy, t, {2, 40000}, Kind::gaussian);
  c.smoothing = 0.1;
  list.push_back(c);
  c = loss_case(Op::cross_entropy, t, {3000, 9}, Kind::gaussian);
  c.alone = true;
  list.push_back(c);
}

const std::vector<LossCase>& loss_cases() {
  static const std::vector<LossCase> all = [] {
    std::vector<LossCase> list;
    for (const DType t : kFloating) add_losses(list, t);
    for (const DType out : {DType::float32, DType::float64, DType::float16}) {
      LossCase c = loss_case(Op::cross_entropy, DType::bfloat16, {19, 131});
      c.rows.out = out;
      list.push_back(c);
    }
    return list;
  }();
  return all;
}

Problem make_entropy(const RowCase& c, Layout layout) {
  LossCase loss{c};
  loss.reduction = Reduction::none;
  loss.rows.op = c.op == Op::entropy ? Op::cross_entropy : Op::cross_entropy_backward;
  Problem p = make_loss(loss, layout);
  p.op = c.op;
  p.own = softfold::EntropyOptions{};
  p.inputs.erase(p.inputs.begin() + 1);                             // no targets
  if (c.op == Op::entropy) p.outputs.erase(p.outputs.begin() + 1);  // no log-probabilities of them
  return p;
}

/// q's rows: p's list of kinds, one further on; of ragged rows, whose lengths follow from their index, other kinds.
RowCase rows_of_q(RowCase c) {
  if (c.ragged) {
    c.kind = Kind::count;
  } else {
    ++c.first_row;
  }
  return c;
}

Problem make_kl(const RowCase& c, Layout layout) {
  LossCase of_dkl{c};
  of_dkl.reduction = Reduction::none;
  RowCase base = c, base_of_q = rows_of_q(c);
  base.op = base_of_q.op = base.ragged ? Op::softmax : Op::state;
  Problem p = make_problem(base, layout);
  p.op = c.op;
  p.own = softfold::KlDivergenceOptions{};
  p.inputs.push_back(std::move(make_problem(base_of_q, layout).inputs[0]));
  const Shape full = p.inputs[0].shape();
  p.outputs.clear();
  if (c.op == Op::kl_divergence_backward) {
    p.inputs.push_back(states_of(c, c, layout));
    p.inputs.push_back(states_of(c, rows_of_q(c), layout));
  } else {
    p.outputs.emplace_back(c.out, shape_of_rows(c), layout);
    for (int i = 0; i < 2; ++i) p.outputs.push_back(Array::of_states(shape_of_rows(c), layout));
  }
  p.inputs.push_back(dloss_of(of_dkl, layout));
  p.outputs.emplace_back(c.out, full, layout);
  p.outputs.emplace_back(c.in, full, layout);
  return p;
}

const std::vector<RowCase>& entropy_cases() {
  static const std::vector<RowCase> all = [] {
    std::vector<RowCase> list;
    for (const DType t : kFloating)
      for (const Op op : {Op::entropy, Op::entropy_backward}) {
        for (const std::int64_t n : {0, 1, 7, 33, 1024, 1025, 2500}) list.push_back(rows_of(op, t, {19, n}));
        RowCase c = rows_of(op, t, {19, 1300});
        c.length = true;
        c.scale = -0.5;
        list.push_back(c);
        c.mask = MaskShape::full;
        c.empty = softfold::Empty::nan;
        list.push_back(c);
        c = rows_of(op, t, {3, 70, 5}, Kind::gaussian);
        c.axis = 1;
        list.push_back(c);
        list.push_back(rows_of(op, t, {2, 40000}, Kind::gaussian));
      }
    RowCase c = rows_of(Op::entropy, DType::bfloat16, {19, 131});
    c.out = DType::float32;
    list.push_back(c);
    return list;
  }();
  return all;
}

const std::vector<RowCase>& kl_cases() {
  static const std::vector<RowCase> all = [] {
    std::vector<RowCase> list;
    for (RowCase c : entropy_cases()) {
      c.op = c.op == Op::entropy ? Op::kl_divergence : Op::kl_divergence_backward;
      list.push_back(c);
    }
    for (const DType t : kFloating) list.push_back(rows_of(Op::kl_divergence, t, {19, 1400}, Kind::gaussian));
    RowCase c = list.back();
    c.ragged = true;
    list.push_back(c);
    return list;
  }();
  return all;
}

}  // namespace

Shape shape_of_rows(const RowCase& c) {
  Shape shape = c.shape;
  if (c.ragged) return {c.rows()};
  shape.erase(shape.begin() + (c.axis < 0 ? c.axis + std::ssize(shape) : c.axis));
  return shape;
}

RowCase rows_of(Op op, DType t, Shape shape, Kind kind) {
  RowCase c;
  c.op = op;
  c.in = c.out = t;
  c.shape = std::move(shape);
  c.kind = kind;
  return c;
}

Problem make_own(int index, Layout layout) {
  auto i = static_cast<std::size_t>(index);
  if (i < loss_cases().size()) return make_loss(loss_cases()[i], layout);
  i -= loss_cases().size();
  if (i < entropy_cases().size()) return make_entropy(entropy_cases()[i], layout);
  i -= entropy_cases().size();
  if (i < kl_cases().size()) return make_kl(kl_cases()[i], layout);
  return make_selection(i - kl_cases().size(), layout);
}

void add_own(std::vector<Case>& cases) {
  int index = 0;
  const auto add = [&](std::string name) { cases.push_back({std::move(name), std::nullopt, -1, index++}); };
  for (const auto& c : loss_cases()) add(c.name());
  for (const auto& c : entropy_cases()) add(c.name());
  for (const auto& c : kl_cases()) add(c.name());
  for (std::string& name : selection_names()) add(std::move(name));
}

}  // namespace softfold_test
