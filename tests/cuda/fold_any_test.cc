// cpu == cuda, bit for bit: logsumexp and states of rows with masks, lengths, a causal limit, scales of their own, at
// more than one stride, with elements apart, or along an outer axis, of many lengths and any content.
#include "cuda/both.hpp"

#include <map>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaFoldAny : public Cuda {};

/// Where results of logsumexp go: side by side, with gaps, backwards, in 16 bit.
Tensor place_of_results(std::int64_t outer, std::int64_t inner, std::size_t which) {
  if (which == 1) return {DType::float32, {outer, inner}, {2 * inner, 2}};
  if (which == 2) return {DType::float32, {outer, inner}, {-inner, -1}};
  return {which == 3 ? DType::bfloat16 : DType::float32, {outer, inner}};
}

enum class Form { mask, far_mask, length, both, causal, scales, permuted, gaps, apart, backwards, count };

/// Rows of two outer axes, `shift` elements from where memory begins; the kernel that took them.
std::string compare(Op op, DType t, Form form, std::int64_t outer, std::int64_t inner, std::int64_t n, std::size_t at,
                    std::int64_t shift) {
  const Values v = kAnyValues[pick(at, 0, std::size(kAnyValues))];
  const std::int64_t gap = form == Form::gaps ? static_cast<std::int64_t>(pick(at, 1, 9)) + 1 : 0, row = n + gap;
  std::vector<std::int64_t> strides{inner * row, row, 1};
  if (form == Form::permuted || form == Form::gaps) strides = {row, outer * row, 1};
  if (form == Form::apart) strides = {inner * row * 3, row * 3, 3};
  if (form == Form::backwards) strides.back() = -1;
  Tensor x(t, {outer, inner, n}, strides, shift);
  x.fill([&](std::int64_t i) { return value_of(v, i / n, i % n, n); });
  Tensor y =
      op == Op::state ? Tensor(DType::float64, {outer, inner, 4}) : place_of_results(outer, inner, pick(at, 9, 4));
  const std::int64_t far = form == Form::far_mask ? 3 : 1;
  Tensor mask(DType::boolean, {outer, inner, n}, {inner * n * far, n * far, far},
              static_cast<std::int64_t>(pick(at, 3, 3)));
  mask.fill([&](std::int64_t i) { return Random(static_cast<std::uint64_t>(i) * 77 + at).uniform() < 0.7 ? 1. : 0.; });
  Tensor length(DType::int32, {outer, inner}), scales(DType::float32, {outer, inner});
  length.fill([&](std::int64_t i) { return static_cast<double>(i * 7919 % (n + 1)); });
  constexpr double kScales[] = {1., 0.5, -2., 0., 1e30, 0.3};
  scales.fill([&](std::int64_t i) { return kScales[i % 6]; });
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in = x.view(gpu), out = y.view(gpu);
    softfold::RowOptions o;
    o.scale = pick(at, 4, 4) == 0 ? -0.75 : 1.;
    if (form == Form::mask || form == Form::far_mask || form == Form::both) o.mask = mask.view(gpu);
    if (form == Form::length || form == Form::both) o.length = length.view(gpu);
    if (form == Form::scales) o.scales = scales.view(gpu);
    o.causal = form == Form::causal;
    const auto plan = softfold::plan(op, {&in, 1}, {&out, 1}, o);
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(difference(y.host(), y.download(), y.size()), "")
      << outer << "x" << inner << "x" << n << " " << name_of(t) << " form " << static_cast<int>(form) << " values "
      << static_cast<int>(v) << " by " << kernel;
  return kernel;
}

TEST_F(CudaFoldAny, Rows) {
  std::size_t at = 0;
  std::map<std::pair<DType, Form>, int> hidden;  // how many fold_hidden_rows took
  for (const std::int64_t n : {1,   7,   8,   31,  32,  33,   64,   65,   100,  127,  128,  129,  250,   256,
                               300, 511, 512, 513, 777, 1000, 1023, 1024, 1025, 2047, 2048, 5000, 33000, 70001})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16, DType::float64})
      for (int form = 0; form < static_cast<int>(Form::count); ++form, ++at) {
        if (HasFailure()) return;
        const auto rows = 1 + static_cast<std::int64_t>(at * 37 % 90) * 64 / (n + 64);
        const Op op = pick(at, 5, 3) == 0 ? Op::state : Op::logsumexp;
        const auto shift = static_cast<std::int64_t>(pick(at, 2, 5));
        const std::string kernel = compare(op, t, static_cast<Form>(form), rows + 1, 3, n, at, shift);
        const std::int64_t size = t == DType::float32 ? 4 : 2;
        const bool cut = static_cast<Form>(form) == Form::length || static_cast<Form>(form) == Form::causal;
        if (t == DType::float64) {
          EXPECT_EQ(kernel, "fold_double_rows");
        } else if (cut && n >= 60 && n * size % 16 == 0 && shift * size % 16 == 0) {
          EXPECT_EQ(kernel, "fold_lengths_warp");
        } else if (n > 1 && kernel == "fold_hidden_rows") {  // one element alone is nowhere apart
          ++hidden[{t, static_cast<Form>(form)}];
        } else if (n > 4096 && static_cast<Form>(form) == Form::mask && kernel == "fold_masked_stays") {
          continue;  // where masks lie on vectors' elements
        } else if (n > 1) {
          EXPECT_EQ(kernel, "fold_any_rows");
        }
      }
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (const Form form : {Form::mask, Form::length, Form::both, Form::causal})
      EXPECT_GE((hidden[{t, form}]), 3) << name_of(t) << " form " << static_cast<int>(form);
  for (const auto& [what, count] : hidden)
    EXPECT_TRUE(what.second != Form::scales && what.second != Form::far_mask) << count;
}

TEST_F(CudaFoldAny, Lengths) {
  std::size_t at = 0;
  for (const std::int64_t n : {40, 64, 72, 128, 136, 200, 256, 264, 504, 512, 520, 1000, 1024, 1032, 2048, 5000, 33000})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (const Form form : {Form::length, Form::causal}) {
        if (HasFailure()) return;
        const auto rows = 2 + static_cast<std::int64_t>(at * 37 % 90) * 64 / (n + 64);
        const Op op = pick(at, 5, 3) == 0 ? Op::state : Op::logsumexp;
        EXPECT_EQ(compare(op, t, form, rows, 7, n, at++, 0), n < 60 ? "fold_hidden_rows" : "fold_lengths_warp");
      }
}

/// Rows side by side, [2, n, inner].
void compare_across(Op op, DType t, std::int64_t inner, std::int64_t n, std::size_t at) {
  const Values v = kAnyValues[pick(at, 0, std::size(kAnyValues))];
  const std::int64_t gap = pick(at, 6, 3) == 0 ? 5 : 0;
  Tensor x(t, {2, n, inner}, {n * (inner + gap), inner + gap, 1}, static_cast<std::int64_t>(pick(at, 2, 5)));
  x.fill([&](std::int64_t i) { return value_of(v, i % inner + i / (n * inner) * inner, i / inner % n, n); });
  Tensor y = op == Op::state ? Tensor(DType::float64, {2, inner, 4}) : Tensor(DType::float32, {2, inner});
  Tensor mask(DType::boolean, {2, n, inner}), length(DType::int32, {2, inner});
  mask.fill([&](std::int64_t i) { return Random(static_cast<std::uint64_t>(i) * 77 + at).uniform() < 0.7 ? 1. : 0.; });
  length.fill([&](std::int64_t i) { return static_cast<double>(i * 7919 % (n + 1)); });
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in = x.view(gpu), out = y.view(gpu);
    softfold::RowOptions o;
    o.axis = 1;
    o.scale = pick(at, 4, 4) == 0 ? -0.75 : 1.;
    if (pick(at, 7, 4) == 0) o.mask = mask.view(gpu);
    if (pick(at, 8, 5) == 0) o.length = length.view(gpu);
    const auto plan = softfold::plan(op, {&in, 1}, {&out, 1}, o);
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(difference(y.host(), y.download(), y.size()), "")
      << n << "x" << inner << " " << name_of(t) << " values " << static_cast<int>(v) << " at " << at << " by "
      << kernel;
  const bool plain = pick(at, 7, 4) != 0 && pick(at, 8, 5) != 0;
  const std::string across = plain ? "fold_across_columns" : "fold_across_hidden";
  EXPECT_EQ(kernel, inner <= 3 && n >= (inner == 2 ? 128 : 257) ? "fold_any_rows" : across);
}

TEST_F(CudaFoldAny, Across) {
  std::size_t at = 0;
  for (const std::int64_t n : {2, 3, 8, 31, 32, 33, 100, 512, 1000, 1024, 1025, 3000, 20000, 40000})
    for (const std::int64_t inner : {2, 3, 31, 32, 64, 100, 257})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16}) {
        if (HasFailure()) return;
        compare_across(pick(at, 5, 3) == 0 ? Op::state : Op::logsumexp, t, inner, n, at);
        ++at;
      }
}

/// So many rows that a warp has a chunk of them, or a half or a quarter, for itself; few different ones, so that memory
/// fills quickly.
TEST_F(CudaFoldAny, ManyAcross) {
  struct Case {
    DType dtype;
    std::int64_t n, inner;
  };
  for (const Case& c : {Case{DType::float32, 64, 600002}, Case{DType::bfloat16, 64, 1081376},
                        Case{DType::float32, 1024, 270401}, Case{DType::bfloat16, 1000, 270400}}) {
    Tensor x(c.dtype, {c.n, c.inner}), y(DType::float32, {c.inner});
    x.fill_by_threads([&](std::int64_t i) { return static_cast<double>((i * 2654435761U >> 7) % 4001) / 250. - 8.; });
    softfold::RowOptions o;
    o.axis = 0;
    std::string kernel;
    for (const bool gpu : {false, true}) {
      const softfold::View in = x.view(gpu), out = y.view(gpu);
      const auto plan = softfold::plan(Op::logsumexp, {&in, 1}, {&out, 1}, o);
      plan.run();
      kernel = plan.kernel();
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(difference(y.host(), y.download(), y.size()), "") << c.n << "x" << c.inner << " by " << kernel;
    EXPECT_EQ(kernel, "fold_across_columns");
  }
}

/// Operands that begin and end where their memory does: what lies around is not read (which compute-sanitizer sees).
TEST_F(CudaFoldAny, EdgesOfMemory) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t n : {3, 8, 50, 127, 250, 1001, 1500}) {
      Tensor x(t, {37, n}, {}, 0, 0), y(DType::float32, {37}, {}, 0, 0), mask(DType::boolean, {37, n}, {}, 0, 0);
      x.fill([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
      mask.fill([&](std::int64_t i) { return i % 3 == 0 ? 0. : 1.; });
      for (const bool gpu : {false, true}) {
        const softfold::View in = x.view(gpu), out = y.view(gpu);
        softfold::RowOptions o;
        o.mask = mask.view(gpu);
        softfold::plan(Op::logsumexp, {&in, 1}, {&out, 1}, o).run();
      }
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << n << " " << name_of(t);
    }
}

}  // namespace
}  // namespace softfold_test
