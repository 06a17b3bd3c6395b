// cpu == cuda, bit for bit: softmax, log_softmax and their gradients where the operands are not alike: each of a dtype
// and alignment of its own, with elements that lie apart or backwards, masks, lengths, a causal limit, scales a row.
#include "cuda/both.hpp"

#include <map>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaAny : public Cuda {};

constexpr DType kFloats[] = {DType::float32, DType::bfloat16, DType::float16};

/// A tensor [outer, inner, n] of whose layout everything but the shape is chosen by `at` and `what`.
struct Laid {
  std::vector<std::int64_t> shape, strides;
  std::int64_t offset;

  Laid(std::int64_t outer, std::int64_t inner, std::int64_t n, std::size_t at, std::size_t what)
      : shape{outer, inner, n}, offset(static_cast<std::int64_t>(pick(at, what, 9))) {
    constexpr std::int64_t kSteps[] = {1, 1, 1, 2, -1, 3};
    std::int64_t step = kSteps[pick(at, what + 1, std::size(kSteps))];
    auto gap = static_cast<std::int64_t>(pick(at, what + 2, 3) * pick(at, what + 3, 9));
    if (pick(at, 60, 2) == 0) step = 1, gap *= 4, offset *= 4;  // all operands in fours, where n is a multiple of it
    const std::int64_t row = n * std::abs(step) + gap;
    strides = {inner * row, row, step};
    if (pick(at, what + 4, 4) == 0) strides = {row, outer * row, step};
  }
  Tensor tensor(DType t) const { return Tensor(t, shape, strides, offset); }
};

/// The kernel that took them. wide: of float64, of which results may become others.
std::string compare(Op op, std::int64_t outer, std::int64_t inner, std::int64_t n, std::size_t at, bool wide = false) {
  const bool log = op == Op::log_softmax || op == Op::log_softmax_backward;
  const bool backward = op == Op::softmax_backward || op == Op::log_softmax_backward;
  const Values v = kAnyValues[pick(at, 0, std::size(kAnyValues))];
  const auto dtype = [&](std::size_t i) {
    return wide && (i != 2 || pick(at, 63, 5) != 0) ? DType::float64 : kFloats[pick(at, i, 3)];
  };
  Tensor x = Laid(outer, inner, n, at, 10).tensor(dtype(1)), y = Laid(outer, inner, n, at, 20).tensor(dtype(2));
  Tensor dy = Laid(outer, inner, n, at, 30).tensor(dtype(3));
  const bool one_byte_a_row = pick(at, 61, 6) == 0;
  Tensor mask = Laid(outer, inner, one_byte_a_row ? 1 : n, at, 40).tensor(DType::boolean);
  Tensor length(DType::int64, {outer, inner}), scales(DType::float32, {outer, inner});
  x.fill([&](std::int64_t i) { return value_of(v, i / n, i % n, n); });
  if (backward) {
    const softfold::View forward = x.view(false);
    softfold::plan(log ? Op::log_softmax : Op::softmax, {&forward, 1}, {&forward, 1}, softfold::RowOptions{}).run();
    x.upload();
  }
  dy.fill([&](std::int64_t i) { return gradient_of(i / n, i % n); });
  mask.fill([&](std::int64_t i) { return Random(static_cast<std::uint64_t>(i) * 77 + at).uniform() < 0.7 ? 1. : 0.; });
  length.fill([&](std::int64_t i) { return static_cast<double>(i * 7919 % (n + 1)); });
  constexpr double kScales[] = {1., 0.5, -2., 0., 1e30, 0.3};
  scales.fill([&](std::int64_t i) { return kScales[i % 6]; });
  // In place: of softmax where its elements are, of a gradient where dy is.
  Tensor& result = pick(at, 62, 5) == 0 ? (backward ? dy : x) : y;
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in[] = {x.view(gpu), dy.view(gpu)}, out = result.view(gpu);
    softfold::RowOptions o;
    o.scale = pick(at, 4, 4) == 0 ? -0.75 : 1.;
    if (!backward) o.empty = pick(at, 5, 4) == 0 ? softfold::Empty::nan : softfold::Empty::zero;
    if (pick(at, 6, 3) == 0) o.mask = mask.view(gpu);
    if (pick(at, 7, 4) == 0) o.length = length.view(gpu);
    if (pick(at, 8, 5) == 0) o.scales = scales.view(gpu);
    o.causal = pick(at, 9, 8) == 0;
    const auto plan = softfold::plan(op, {in, backward ? 2U : 1U}, {&out, 1}, o);
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
      << outer << "x" << inner << "x" << n << " " << name_of(x.dtype()) << " to " << name_of(result.dtype()) << " op "
      << static_cast<int>(op) << " values " << static_cast<int>(v) << " at " << at << " by " << kernel;
  return kernel;
}

constexpr Op kOps[] = {Op::softmax, Op::log_softmax, Op::softmax_backward, Op::log_softmax_backward};

TEST_F(CudaAny, Rows) {
  std::size_t at = 0;
  std::map<std::string, int> taken;
  for (std::int64_t n = 1; n <= 1024; n += n < 70 ? 1 : n % 64 == 63 || n % 64 == 0 ? 1 : 62 - n % 64 > 9 ? 9 : 1)
    for (const Op op : kOps)
      for (int repeat = 0; repeat < 3 && !HasFailure(); ++repeat, ++at)
        ++taken[compare(op, 1 + static_cast<std::int64_t>(pick(at, 50, 60)), 3, n, at)];
  EXPECT_GT(taken["softmax_any_rows"] + taken["softmax_any_short"], 900);
  EXPECT_GT(taken["backward_any_rows"], 900);
}

TEST_F(CudaAny, Chunks) {
  std::size_t at = 0;
  std::map<std::string, int> taken;
  for (const std::int64_t n : {1025, 2000, 2048, 3001, 8192, 16384, 16385, 40000, 131072, 131073, 200001, 262144})
    for (const Op op : kOps)
      for (int repeat = 0; repeat < 8 && !HasFailure(); ++repeat, ++at)
        ++taken[compare(op, 1 + static_cast<std::int64_t>(pick(at, 50, 5)), 2, n, at)];
  EXPECT_GT(taken["softmax_any_cluster"], 110);
  EXPECT_GT(taken["backward_any_cluster"], 140);
}

TEST_F(CudaAny, WideRows) {
  std::size_t at = 0;
  std::map<std::string, int> taken;
  for (std::int64_t n = 1; n <= 1024; n += n < 35 || (n + 1) % 64 < 3 ? 1 : 6)
    for (const Op op : kOps)
      for (int repeat = 0; repeat < 3 && !HasFailure(); ++repeat, ++at)
        ++taken[compare(op, 1 + static_cast<std::int64_t>(pick(at, 50, 60)), 3, n, at, true)];
  EXPECT_GT(taken["softmax_double_rows"], 900);
  EXPECT_GT(taken["backward_double_rows"], 700);
}

TEST_F(CudaAny, WideChunks) {
  std::size_t at = 0;
  std::map<std::string, int> taken;
  for (const std::int64_t n : {1025, 2000, 2048, 3001, 16384, 16385, 32768, 32769, 131072, 131073, 262144, 262145})
    for (const Op op : kOps)
      for (int repeat = 0; repeat < 8 && !HasFailure(); ++repeat, ++at)
        ++taken[compare(op, 1 + static_cast<std::int64_t>(pick(at, 50, 5)), 2, n, at, true)];
  EXPECT_GT(taken["softmax_double_cluster"], 110);
  EXPECT_GT(taken["softmax_double_twice"], 8);
  EXPECT_GT(taken["backward_double_cluster"], 80);
}

/// Rungs that were asked for: with one read, with two.
TEST_F(CudaAny, WideRungs) {
  for (const std::int64_t n : {1, 8, 100, 1024, 1025, 9000, 140000})
    for (const Op op : {Op::softmax, Op::log_softmax})
      for (const softfold::Rung rung : {softfold::Rung::fused, softfold::Rung::tiled}) {
        const std::int64_t rows = n == 9000 ? 720 : n > 9000 ? 3 : 50;
        Tensor x(DType::float64, {rows, n}, {}, 0, 0), y(DType::float64, {rows, n}, {}, 0, 0);
        x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
        std::string kernel;
        for (const bool gpu : {false, true}) {
          const softfold::View in = x.view(gpu), out = y.view(gpu);
          softfold::RowOptions o;
          o.rung = gpu ? rung : softfold::Rung::automatic;
          const auto plan = softfold::plan(op, {&in, 1}, {&out, 1}, o);
          plan.run();
          kernel = plan.kernel();
        }
        EXPECT_EQ(kernel, rung == softfold::Rung::tiled ? "softmax_double_twice"
                          : n <= 1024                   ? "softmax_double_rows"
                          : n == 9000                   ? "softmax_double_stays"
                                                        : "softmax_double_cluster");
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << n << " by " << kernel;
      }
}

TEST_F(CudaAny, RowsOfNoElements) {
  for (std::size_t at = 0; at < 40; ++at) compare(kOps[at % 4], 3, 2, 0, at);
}

/// Operands that begin and end where their memory does: what lies around is not read (which compute-sanitizer sees).
TEST_F(CudaAny, EdgesOfMemory) {
  for (const std::int64_t n : {3, 8, 50, 127, 250, 300, 1001, 1023, 1500, 17001})
    for (int i = 0; i < 8; ++i) {
      const Op op = kOps[i % 4];
      const auto dtype = [i](DType narrow) { return i < 4 ? narrow : DType::float64; };
      const bool backward = op == Op::softmax_backward || op == Op::log_softmax_backward;
      Tensor x(dtype(DType::bfloat16), {37, n}, {}, 0, 0), y(dtype(DType::float32), {37, n}, {}, 0, 0);
      Tensor dy(dtype(DType::float16), {37, n}, {}, 0, 0), mask(DType::boolean, {37, n}, {}, 0, 0);
      x.fill([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
      dy.fill([&](std::int64_t i) { return gradient_of(i / n, i % n); });
      mask.fill([&](std::int64_t i) { return i % 3 == 0 ? 0. : 1.; });
      std::string kernel;
      for (const bool gpu : {false, true}) {
        const softfold::View in[] = {x.view(gpu), dy.view(gpu)}, out = y.view(gpu);
        softfold::RowOptions o;
        o.mask = mask.view(gpu);
        const auto plan = softfold::plan(op, {in, backward ? 2U : 1U}, {&out, 1}, o);
        plan.run();
        kernel = plan.kernel();
      }
      EXPECT_NE(kernel.find(i < 4 ? "_any_" : "_double_"), std::string::npos) << kernel;
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << n << " op " << static_cast<int>(op);
    }
}

}  // namespace
}  // namespace softfold_test
