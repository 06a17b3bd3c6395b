// cpu == cuda, bit for bit: rows of random shapes and strides with random masks, lengths, causal limits and scales,
// which lie along any outer axes, by whatever kernel takes them.
#include "cuda/both.hpp"

#include <cstdlib>
#include <map>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;
using Sizes = std::vector<std::int64_t>;

class CudaRandomLayouts : public Cuda {
 protected:
  std::uint64_t state_ = 1;
  /// From 0 to n - 1.
  std::int64_t pick(std::int64_t n) {
    state_ = Random(state_).next();
    return static_cast<std::int64_t>(state_ >> 11) % n;
  }
  bool one_in(std::int64_t n) { return pick(n) == 0; }

  /// Of outer axes: from the last on `first` and what lies behind it, with a gap between some; 0 along some where rows
  /// may share; the last element's stride behind them.
  Sizes strides(const Sizes& outer, std::int64_t first, std::int64_t last, bool shared) {
    Sizes all(outer.size() + 1, last);
    std::int64_t at = first;
    for (std::size_t d = outer.size(); d-- > 0;) {
      const bool none = shared && one_in(3);
      all[d] = none ? 0 : shared && one_in(15) ? -at : at;
      if (!none) at = at * outer[d] + (one_in(5) ? 8 * pick(3) : 0);
    }
    return all;
  }
  void compare(const Sizes& outer, std::int64_t n);
  void compare_many();
  std::map<std::string, int> taken_;
};

void CudaRandomLayouts::compare(const Sizes& outer, std::int64_t n) {
  constexpr DType kTypes[] = {DType::float32, DType::bfloat16, DType::float16};
  const DType t = kTypes[pick(3)];
  Sizes shape = outer;
  shape.push_back(n);
  const std::int64_t gap = one_in(3) ? pick(20) : 0, offset = one_in(2) ? pick(9) : 0;
  const Sizes lie = strides(outer, n + gap, 1, false);
  Tensor x(t, shape, lie, offset, 0), dy(t, shape, lie, offset, 0);
  Tensor y(t, shape, one_in(4) ? strides(outer, n + pick(9), 1, false) : lie, one_in(5) ? pick(9) : offset, 0);
  const std::int64_t step = one_in(12) ? 2 : one_in(12) ? -1 : 1;
  Tensor mask(DType::boolean, shape, strides(outer, n * std::abs(step) + (one_in(3) ? pick(20) : 0), step, true),
              pick(17), 0);
  Sizes of_rows = strides(outer, 1, 1, true), of_scales = strides(outer, 1, 1, true);
  of_rows.pop_back(), of_scales.pop_back();
  Tensor length(one_in(2) ? DType::int32 : DType::int64, outer, of_rows), scales(DType::float32, outer, of_scales);
  const auto values = one_in(3) ? static_cast<Values>(pick(static_cast<std::int64_t>(Values::count))) : Values::normal;
  const auto seed = static_cast<std::uint64_t>(pick(1 << 30));
  const auto random = [&](std::int64_t i) { return Random(seed + static_cast<std::uint64_t>(i)).next() >> 20; };
  x.fill([&](std::int64_t i) { return value_of(values, i / n, i % n, n); });
  dy.fill([&](std::int64_t i) { return gradient_of(i / n, i % n); });
  const std::uint64_t sparse = static_cast<std::uint64_t>(2 + pick(7));
  mask.fill([&](std::int64_t i) { return i / n % 13 == 5 || random(i) % sparse == 0 ? 0. : 1.; });
  length.fill([&](std::int64_t i) { return static_cast<double>(random(i) % static_cast<std::uint64_t>(n + 1)); });
  constexpr double kScales[] = {1., 0.5, 3., 0.25, 0., -1.5};
  const std::uint64_t tame = one_in(3) ? 6 : 4;
  scales.fill([&](std::int64_t i) { return kScales[random(i) % tame]; });
  softfold::RowOptions o;
  o.scale = one_in(5) ? -0.75 : 1.;
  o.empty = one_in(3) ? softfold::Empty::nan : softfold::Empty::zero;
  o.causal = !outer.empty() && one_in(5);
  const bool has_mask = !one_in(3), has_length = one_in(3), has_scales = one_in(4);
  const auto options = [&](bool gpu) {
    softfold::RowOptions own = o;
    if (has_mask) own.mask = mask.view(gpu);
    if (has_length) own.length = length.view(gpu);
    if (has_scales) own.scales = scales.view(gpu);
    return own;
  };
  constexpr Op kOps[] = {Op::softmax, Op::log_softmax, Op::logsumexp, Op::softmax_backward, Op::log_softmax_backward};
  const Op op = kOps[pick(5)];
  const bool backward = op == Op::softmax_backward || op == Op::log_softmax_backward;
  Tensor lse(one_in(3) ? t : DType::float32, outer, {}, pick(4), 0);
  Tensor& result = op == Op::logsumexp ? lse : !backward && one_in(4) ? x : y;
  const std::string kernel =
      backward ? run_on_both(op, {&x, &dy}, result, options) : run_on_both(op, {&x}, result, options);
  ++taken_[kernel];
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << kernel;
  ASSERT_EQ(difference(result.host(), result.download(), result.size()), "")
      << kernel << " of " << name_of(t) << " rank " << outer.size() << " n " << n << " seed " << seed << " mask "
      << has_mask << " length " << has_length << " scales " << has_scales << " causal " << o.causal;
}

void CudaRandomLayouts::compare_many() {
  for (int i = 0; i < 900; ++i) {
    Sizes outer(static_cast<std::size_t>(pick(4)));
    std::int64_t rows = 1;
    for (std::size_t d = 0; d < outer.size(); ++d) {
      outer[d] = one_in(6) ? 1 : 1 + pick(d + 1 == outer.size() ? 90 : 6);
      rows *= outer[d];
    }
    const std::int64_t n = one_in(3) ? 1 + pick(40) : one_in(3) ? 1 + pick(1100) : 1 + pick(300);
    compare(outer, std::max<std::int64_t>(1, std::min(n, 200000 / rows)));
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaRandomLayouts, Rows) {
  compare_many();
  EXPECT_GT(taken_["softmax_hidden_rows"], 60);
  EXPECT_GT(taken_["backward_hidden_rows"], 60);
  EXPECT_GT(taken_["fold_hidden_rows"], 20);
}

/// The same by what few elements are left to.
TEST_F(CudaRandomLayouts, FewElements) {
  const std::string before = std::getenv("SOFTFOLD_WITHOUT");
  setenv("SOFTFOLD_WITHOUT", "softmax_small_rows,backward_small_rows", 1);
  state_ = 2;
  compare_many();
  setenv("SOFTFOLD_WITHOUT", before.c_str(), 1);
  EXPECT_GT(taken_["few_elements"], 300);
}

}  // namespace
}  // namespace softfold_test
