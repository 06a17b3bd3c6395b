// The list itself. Names are the keys of known_bits.txt: a case may be added, never changed.
#include "cases.hpp"

#include "support/row_reference.hpp"

#include <limits>

namespace softfold_test {
namespace {

constexpr Op kForward[] = {Op::softmax, Op::log_softmax, Op::logsumexp, Op::state};
constexpr Op kBackward[] = {Op::softmax_backward, Op::log_softmax_backward, Op::logsumexp_backward};
constexpr Op kFinish[] = {Op::finish_softmax, Op::finish_log_softmax, Op::finish_logsumexp};

class List {
 public:
  std::vector<Case> cases;

  void add(const RowCase& c) { cases.push_back({c.name(), c}); }
  void add_merge(const char* name, int merge) { cases.push_back({name, std::nullopt, merge}); }
};

RowCase row_case(Op op, DType t, Shape shape, Kind kind = Kind::count) {
  RowCase c;
  c.op = op;
  c.in = c.out = t;
  c.shape = std::move(shape);
  c.kind = kind;
  return c;
}

/// Every operation and dtype on rows of every kind: lengths around lanes, chunks and levels of the tree.
void add_lengths(List& list) {
  constexpr auto kinds = static_cast<std::int64_t>(Kind::count);
  for (const DType t : kFloating)
    for (const Op op : kForward) {
      for (const std::int64_t n : {0, 1, 2, 7, 33, 127, 768}) list.add(row_case(op, t, {kinds, n}));
      for (const std::int64_t n : {1023, 1024, 1025, 2049}) list.add(row_case(op, t, {kinds, n}));
      for (const std::int64_t n : {6 * 1024 + 5, 11 * 1024, 20011}) list.add(row_case(op, t, {2, n}, Kind::gaussian));
      list.add(row_case(op, t, {1, 33000}, Kind::wide));
    }
  for (const DType t : kFloating)
    for (const Op op : {Op::softmax, Op::logsumexp}) list.add(row_case(op, t, {1, 300007}, Kind::gaussian));
  list.add(row_case(Op::softmax, DType::float32, {1, (1 << 20) + 7}, Kind::wide));
  list.add(row_case(Op::log_softmax, DType::bfloat16, {1, 1 << 20}, Kind::gaussian));
  list.add(row_case(Op::softmax, DType::float32, {700, 64}, Kind::gaussian));
  list.add(row_case(Op::softmax, DType::bfloat16, {300, 200}, Kind::wide));
  list.add(row_case(Op::logsumexp, DType::float32, {0, 5}, Kind::gaussian));
}

void add_dtypes(List& list) {
  for (const DType in : kFloating)
    for (const DType out : kFloating) {
      if (in == out) continue;
      for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp}) {
        RowCase c = row_case(op, in, {19, 131});
        c.out = out;
        list.add(c);
      }
    }
}

void add_options(List& list) {
  for (const DType t : kFloating)
    for (const Op op : kForward) {
      for (const double scale : {-1., 0.08838834764831845, 0., 3.7}) {
        RowCase c = row_case(op, t, {19, 1100});
        c.scale = scale;
        list.add(c);
      }
      for (const MaskShape mask : {MaskShape::full, MaskShape::last_axis, MaskShape::one_a_row}) {
        RowCase c = row_case(op, t, {19, 1500});
        c.mask = mask;
        list.add(c);
      }
      for (int bits = 1; bits < 8; ++bits) {
        RowCase c = row_case(op, t, {19, 1100});
        c.scales = (bits & 1) != 0;
        c.length = (bits & 2) != 0;
        c.mask = (bits & 4) != 0 ? MaskShape::full : MaskShape::none;
        c.empty = bits % 2 != 0 ? softfold::Empty::nan : softfold::Empty::zero;
        list.add(c);
      }
      RowCase faint = row_case(op, t, {21, 1100});
      faint.scales = faint.faint = true;
      list.add(faint);
      for (const Shape& shape : {Shape{2, 40, 40}, Shape{2, 7, 1300}, Shape{30, 12}}) {
        RowCase c = row_case(op, t, shape, Kind::gaussian);
        c.causal = true;
        list.add(c);
        c.mask = MaskShape::full;
        c.empty = softfold::Empty::nan;
        list.add(c);
      }
      RowCase c = row_case(op, t, {19, 1400});
      c.ragged = true;
      list.add(c);
    }
}

void add_axes(List& list) {
  for (const DType t : kFloating)
    for (const Op op : kForward)
      for (const int axis : {0, 1, -2, -3}) {
        list.add([&] {
          RowCase c = row_case(op, t, {5, 21, 9});
          c.axis = axis;
          return c;
        }());
      }
  for (const DType t : {DType::float32, DType::bfloat16}) {
    RowCase c = row_case(Op::softmax, t, {2100, 7});
    c.axis = 0;
    list.add(c);
    c.mask = MaskShape::full;
    c.length = true;
    list.add(c);
    list.add(row_case(Op::softmax, t, {2, 1, 3, 1, 2, 1, 1, 33}));
  }
}

void add_gradients(List& list) {
  for (const DType t : kFloating)
    for (const Op op : kBackward) {
      for (const std::int64_t n : {0, 1, 31, 1024, 1025, 5000}) list.add(row_case(op, t, {19, n}));
      list.add(row_case(op, t, {1, 40000}, Kind::gaussian));
      RowCase c = row_case(op, t, {19, 1300});
      c.length = true;
      list.add(c);
      c.mask = MaskShape::full;
      list.add(c);
      c.length = false;
      c.scale = -0.5;
      list.add(c);
      c = row_case(op, t, {6, 33, 5});
      c.axis = 1;
      list.add(c);
      for (const std::int64_t n : {90, 1400}) {
        c = row_case(op, t, {19, n});
        c.ragged = true;
        list.add(c);
      }
      for (const Shape& shape : {Shape{2, 40, 40}, Shape{2, 7, 1300}}) {
        c = row_case(op, t, shape);
        c.causal = true;
        list.add(c);
      }
    }
}

void add_shards(List& list) {
  for (const DType t : kFloating)
    for (const Op op : kFinish) {
      for (const std::int64_t n : {1, 100, 1030, 9000}) list.add(row_case(op, t, {19, n}));
      RowCase c = row_case(op, t, {19, 1200});
      c.scale = 0.3;
      if (op != Op::finish_logsumexp) c.mask = MaskShape::full;
      list.add(c);
    }
}

}  // namespace

/// Defined in merge_cases.cc and own_cases.cc.
void add_merges(std::vector<Case>& cases);
void add_own(std::vector<Case>& cases);

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    List list;
    add_lengths(list);
    add_dtypes(list);
    add_options(list);
    add_axes(list);
    add_gradients(list);
    add_shards(list);
    add_merges(list.cases);
    add_own(list.cases);
    return list.cases;
  }();
  return all;
}

}  // namespace softfold_test
