// The problems of top-k and sampling.
#include "own_cases.hpp"

#include <limits>

namespace softfold_test {
namespace {

struct TopkCase {
  RowCase rows;
  std::int64_t k = 0;
  bool sorted = true, alone = false;  ///< alone: values and indices only

  std::string name() const {
    return rows.name() + ".k" + std::to_string(k) + (sorted ? "" : ".unsorted") + (alone ? ".alone" : "");
  }
};

Problem make_topk(const TopkCase& c, Layout layout) {
  RowCase base = c.rows;
  base.op = Op::state;
  Problem p = make_problem(base, layout);
  p.op = Op::topk;
  softfold::TopkOptions o;
  o.sorted = c.sorted;
  p.own = o;
  Shape few = c.rows.shape;
  few[static_cast<std::size_t>(c.rows.axis < 0 ? c.rows.axis + std::ssize(few) : c.rows.axis)] = c.k;
  p.outputs.clear();
  p.outputs.emplace_back(c.rows.out, few, layout);
  p.outputs.emplace_back(c.rows.in == DType::float64 ? DType::int32 : DType::int64, few, layout);
  if (c.alone) return p;
  p.outputs.emplace_back(c.rows.out, few, layout);
  p.outputs.emplace_back(c.rows.out, few, layout);
  p.outputs.emplace_back(c.rows.out, shape_of_rows(c.rows), layout);
  return p;
}

const std::vector<TopkCase>& topk_cases() {
  static const std::vector<TopkCase> all = [] {
    std::vector<TopkCase> list;
    const auto add = [&](const RowCase& rows, std::int64_t k, bool sorted = true, bool alone = false) {
      list.push_back({rows, k, sorted, alone});
    };
    for (const DType t : kFloating) {
      for (const std::int64_t n : {0, 1, 7, 33, 1024, 2500})
        add(rows_of(Op::topk, t, {19, n}), std::min<std::int64_t>(n, 5));
      for (const std::int64_t k : {0, 1, 50, 700, 1500}) add(rows_of(Op::topk, t, {19, 1500}), k, k % 4 != 0, k == 700);
      RowCase c = rows_of(Op::topk, t, {19, 1300});
      c.length = true;
      c.scale = -0.5;
      add(c, 20);
      c.mask = MaskShape::full;
      c.empty = softfold::Empty::nan;
      add(c, 900);
      c = rows_of(Op::topk, t, {3, 70, 5}, Kind::gaussian);
      c.axis = 1;
      add(c, 9);
      add(rows_of(Op::topk, t, {2, 60000}, Kind::gaussian), 64);
      add(rows_of(Op::topk, t, {2, 60000}, Kind::gaussian), 1000, false);
      add(rows_of(Op::topk, t, {3, 9001}), 4096);
    }
    return list;
  }();
  return all;
}

struct SampleCase {
  RowCase rows;
  softfold::SampleOptions options;
  std::string what;  ///< the options in a word
  bool biased = false;

  std::string name() const { return rows.name() + "." + what + (biased ? ".bias" : ""); }
};

Problem make_sample(const SampleCase& c, Layout layout) {
  RowCase base = c.rows;
  base.op = Op::state;
  Problem p = make_problem(base, layout);
  p.op = Op::sample;
  p.own = c.options;
  if (c.biased) {
    Array bias(DType::float32, {c.rows.n()}, layout);
    for (std::int64_t i = 0; i < bias.count(); ++i)
      bias.set_value(i, i % 5 == 0 ? -std::numeric_limits<double>::infinity() : 0.25 * static_cast<double>(i % 11));
    p.inputs.push_back(bias);
  }
  const Shape rows = shape_of_rows(c.rows);
  p.outputs.clear();
  p.outputs.emplace_back(DType::int64, rows, layout);
  p.outputs.emplace_back(c.rows.out, rows, layout);
  p.outputs.emplace_back(DType::int32, rows, layout);
  p.outputs.emplace_back(c.rows.out, c.rows.shape, layout);
  p.outputs.emplace_back(c.rows.out, c.rows.shape, layout);
  return p;
}

const std::vector<SampleCase>& sample_cases() {
  static const std::vector<SampleCase> all = [] {
    std::vector<SampleCase> list;
    softfold::SampleOptions plain, filters, greedy;
    plain.seed = 11;
    filters.seed = 0x123456789ABCDEF0ULL, filters.offset = 5;
    filters.temperature = 0.8, filters.top_k = 300, filters.top_p = 0.9, filters.min_p = 1e-4;
    filters.of = softfold::Distribution::sampled;
    greedy.temperature = 0;
    for (const DType t : {DType::float32, DType::float16, DType::bfloat16}) {
      for (const std::int64_t n : {0, 1, 33, 1024, 1025, 5000}) {
        list.push_back({rows_of(Op::sample, t, {19, n}), plain, "plain"});
        list.push_back({rows_of(Op::sample, t, {19, n}), filters, "filters"});
      }
      RowCase c = rows_of(Op::sample, t, {19, 1300});
      list.push_back({c, greedy, "greedy"});
      c.length = true;
      c.scale = 0.5;
      list.push_back({c, plain, "plain", true});
      c.mask = MaskShape::full;
      filters.order = softfold::FilterOrder::min_p_last;
      list.push_back({c, filters, "filters"});
      c = rows_of(Op::sample, t, {3, 70, 5}, Kind::gaussian);
      c.axis = 1;
      list.push_back({c, filters, "filters"});
      list.push_back({rows_of(Op::sample, t, {2, 60000}, Kind::gaussian), filters, "filters"});
      filters.order = softfold::FilterOrder::min_p_first;
    }
    return list;
  }();
  return all;
}

}  // namespace

std::vector<std::string> selection_names() {
  std::vector<std::string> names;
  for (const TopkCase& c : topk_cases()) names.push_back(c.name());
  for (const SampleCase& c : sample_cases()) names.push_back(c.name());
  return names;
}

Problem make_selection(std::size_t index, Layout layout) {
  if (index < topk_cases().size()) return make_topk(topk_cases()[index], layout);
  return make_sample(sample_cases()[index - topk_cases().size()], layout);
}

}  // namespace softfold_test
