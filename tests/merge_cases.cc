// The merges of the list: states, attention outputs and softmax blocks, with empty, infinite and far-apart parts.
#include "cases.hpp"

#include "softfold/fold/logsumexp.hpp"

#include <array>
#include <limits>

namespace softfold_test {

namespace {

using softfold::LogBase;
using softfold::Statistics;

struct MergeCase {
  const char* name;
  Op op;
  DType dtype;  ///< of the values; states: of the fold
  int parts;
  LogBase base = LogBase::natural;
  Statistics statistics = Statistics::lse;
};

constexpr MergeCase kMerges[] = {
    {"merge_states.float32.3", Op::merge_states, DType::float32, 3},
    {"merge_states.float64.16", Op::merge_states, DType::float64, 16},
    {"merge_attention.float32.2", Op::merge_attention, DType::float32, 2},
    {"merge_attention.bfloat16.5", Op::merge_attention, DType::bfloat16, 5},
    {"merge_attention.float64.2.base2", Op::merge_attention, DType::float64, 2, LogBase::two},
    {"merge_attention.float16.3.max_sum", Op::merge_attention, DType::float16, 3, LogBase::natural,
     Statistics::max_sum},
    {"merge_blocks.float32.2", Op::merge_blocks, DType::float32, 2},
    {"merge_blocks.bfloat16.4.base2", Op::merge_blocks, DType::bfloat16, 4, LogBase::two},
    {"merge_blocks.float64.3.max_sum", Op::merge_blocks, DType::float64, 3, LogBase::natural, Statistics::max_sum},
};

constexpr std::int64_t kRows = 37, kValues = 80;

/// A part's lse: ordinary, far below, far above, empty.
double some_lse(Random& random) {
  switch (random.below(6)) {
    case 0: return -std::numeric_limits<double>::infinity();
    case 1: return random.uniform(-300., -200.);
    case 2: return 1e4 + random.uniform(-3., 3.);
    default: return random.uniform(-8., 8.);
  }
}

template <class T>
void fill_states(Array& t, Random& random) {
  using Lse = softfold::fold::LogSumExp<T>;
  for (std::int64_t r = 0; r < kRows; ++r) {
    auto s = random.below(5) == 0 ? Lse::identity()
                                  : typename Lse::State{static_cast<double>(random.below(40) - 20),
                                                        static_cast<T>(random.uniform(0.75, 900.))};
    if (r == 7 && random.below(2) == 0) s = Lse::plus_infinity();
    if (r == 9 && random.below(2) == 0) s = Lse::not_a_number();
    const double stored[] = {s.m, static_cast<double>(s.d), 0.5, softfold::fold::Real<T>::kDigits};
    for (std::int64_t k = 0; k < 4; ++k) t.set(4 * r + k, stored[k]);
  }
}

Array values(const MergeCase& c, Random& random, Layout layout) {
  Array t(c.dtype, {kRows, kValues}, layout);
  const double low = c.op == Op::merge_blocks ? 0. : -3.;
  for (std::int64_t k = 0; k < t.count(); ++k) t.set_value(k, random.uniform(low, 3.));
  return t;
}

Array blank_statistics(const MergeCase& c) {
  constexpr Layout layout = Layout::contiguous;
  if (c.op == Op::merge_states) return Array::of_states({kRows}, layout);
  const DType dtype = c.dtype == DType::float64 ? DType::float64 : DType::float32;
  return c.statistics == Statistics::lse ? Array(dtype, {kRows}, layout) : Array::of_tuples(dtype, {kRows}, 2, layout);
}

Array statistics(const MergeCase& c, Random& random) {
  Array t = blank_statistics(c);
  if (c.statistics == Statistics::lse) {
    for (std::int64_t r = 0; r < kRows; ++r) t.set_value(r, some_lse(random));
    return t;
  }
  for (std::int64_t r = 0; r < kRows; ++r) {
    const double m = some_lse(random);
    t.set_value(2 * r, m);
    t.set_value(2 * r + 1, m < -1e300 ? 0. : random.uniform(1., 50.));
  }
  return t;
}

}  // namespace

Problem make_merge(int which, Layout layout) {
  const MergeCase& c = kMerges[which];
  Random random(static_cast<std::uint64_t>(which) + 77);
  Problem p;
  p.op = c.op;
  p.merge = {c.base, c.statistics};
  for (int i = 0; i < c.parts; ++i) {
    if (c.op == Op::merge_states) {
      Array& t = p.inputs.emplace_back(blank_statistics(c));
      if (c.dtype == DType::float64) {
        fill_states<double>(t, random);
      } else {
        fill_states<float>(t, random);
      }
      continue;
    }
    p.inputs.push_back(values(c, random, layout));
    p.inputs.push_back(statistics(c, random));
  }
  const int results = c.op == Op::merge_states ? 0 : c.op == Op::merge_attention ? 1 : c.parts;
  for (int i = 0; i < results; ++i) p.outputs.emplace_back(c.dtype, Shape{kRows, kValues}, layout);
  p.outputs.push_back(blank_statistics(c));
  return p;
}

void add_merges(std::vector<Case>& cases) {
  for (int i = 0; i < static_cast<int>(std::size(kMerges)); ++i) cases.push_back({kMerges[i].name, std::nullopt, i});
}

/// Defined in own_cases.cc.
Problem make_own(int index, Layout layout);

Problem Case::make(Layout layout) const {
  if (own >= 0) return make_own(own, layout);
  return rows ? make_problem(*rows, layout) : make_merge(merge, layout);
}

}  // namespace softfold_test
