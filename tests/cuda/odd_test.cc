// cpu == cuda, bit for bit: softmax, log_softmax, logsumexp, states and gradients of short rows of every length,
// wherever they begin, of any content.
#include "cuda/both.hpp"

#include <cmath>
#include <map>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaOdd : public Cuda {};

/// Rows end to end, or `gap` elements apart; the first element begins `offset` elements behind a vector's begin.
struct Layout {
  std::int64_t x_gap, y_gap, offset;
  bool in_place;
};
constexpr Layout kLayouts[] = {{0, 0, 0, false}, {0, 0, 3, false}, {0, 8, 1, false}, {3, 3, 0, false},
                               {8, 0, 8, false}, {0, 0, 5, true},  {1, 1, 2, true}};

/// Compares one operation of rows; the kernel that took it.
std::string compare_rows(Op op, DType t, std::int64_t rows, std::int64_t n, std::size_t at) {
  const Layout& l = kLayouts[at % std::size(kLayouts)];
  const Values v = kAnyValues[at % std::size(kAnyValues)];
  // Where x and y lie otherwise to 16 bytes, other kernels take them.
  Tensor x(t, {rows, n}, {n + l.x_gap, 1}, l.offset);
  Tensor y = op == Op::state       ? Tensor(DType::float64, {rows, 4})
             : op == Op::logsumexp ? Tensor(DType::float32, {rows}, {1 + l.y_gap})
                                   : Tensor(t, {rows, n}, {n + l.y_gap, 1}, l.offset);
  x.fill([&](std::int64_t i) { return value_of(v, i / n, i % n, n); });
  softfold::RowOptions o;
  o.scale = at % 4 == 0 ? -0.75 : 1.;
  const bool in_place = l.in_place && (op == Op::softmax || op == Op::log_softmax);
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in = x.view(gpu), out = in_place ? in : y.view(gpu);
    const auto plan = softfold::plan(op, {&in, 1}, {&out, 1}, o);
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Tensor& result = in_place ? x : y;
  EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
      << rows << "x" << n << " " << name_of(t) << " layout " << &l - kLayouts << " values " << static_cast<int>(v)
      << " by " << kernel;
  return kernel;
}

/// Every length to 1030, two operations in turn; how often which kernel took it.
std::map<std::string, int> compare_every_length(Op often, Op seldom) {
  std::size_t at = 0;
  std::map<std::string, int> taken;
  for (std::int64_t n = 1; n <= 1030 && !testing::Test::HasFailure(); ++n)
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16}) {
      const std::int64_t rows = 1 + static_cast<std::int64_t>(at * 37 % 300) * 128 / (n + 64);
      ++taken[compare_rows(at % 5 < 3 ? often : seldom, t, rows, n, at)];
      ++at;
    }
  return taken;
}

TEST_F(CudaOdd, RowsOfEveryLength) {
  EXPECT_GT(compare_every_length(Op::softmax, Op::log_softmax)["softmax_odd_rows"], 2000);
}

TEST_F(CudaOdd, FoldsOfEveryLength) {
  EXPECT_GT(compare_every_length(Op::logsumexp, Op::state)["fold_odd_rows"], 2000);
}

/// Compares one gradient; the kernel that took it.
std::string compare_gradient(DType t, std::int64_t rows, std::int64_t n, std::size_t at) {
  const Layout& l = kLayouts[at % std::size(kLayouts)];
  const Values v = kAnyValues[at % std::size(kAnyValues)];
  const bool log = at % 5 >= 3;
  Tensor y(t, {rows, n}, {n + l.x_gap, 1}, l.offset), dy(t, {rows, n}, {n + (at % 3 == 0 ? 0 : l.y_gap), 1}, l.offset);
  Tensor dx(t, {rows, n}, {n + l.y_gap, 1}, l.offset);
  y.fill([&](std::int64_t i) { return value_of(v, i / n, i % n, n); });
  const softfold::View forward = y.view(false);
  if (log) {
    softfold::log_softmax(forward, forward);
  } else {
    softfold::softmax(forward, forward);
  }
  y.upload();
  dy.fill([&](std::int64_t i) { return gradient_of(i / n, i % n); });
  softfold::RowOptions o;
  o.scale = at % 4 == 1 ? -0.75 : 1.;
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in[] = {y.view(gpu), dy.view(gpu)};
    const softfold::View out = !l.in_place ? dx.view(gpu) : at % 2 == 0 ? dy.view(gpu) : y.view(gpu);
    const auto plan = softfold::plan(log ? Op::log_softmax_backward : Op::softmax_backward, in, {&out, 1}, o);
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Tensor& result = !l.in_place ? dx : at % 2 == 0 ? dy : y;
  EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
      << rows << "x" << n << " " << name_of(t) << " layout " << &l - kLayouts << " values " << static_cast<int>(v)
      << " by " << kernel;
  return kernel;
}

TEST_F(CudaOdd, GradientsOfEveryLength) {
  std::size_t at = 0;
  std::map<std::string, int> taken;
  for (std::int64_t n = 1; n <= 1030 && !HasFailure(); ++n)
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16}) {
      ++taken[compare_gradient(t, 1 + static_cast<std::int64_t>(at * 37 % 300) * 128 / (n + 64), n, at)];
      ++at;
    }
  EXPECT_GE(taken["backward_lane_rows"], 3);
  EXPECT_GT(taken["backward_odd_rows"], 1000);
}

/// Rows of 2 to 17 chunks, whose last one is of any length.
TEST_F(CudaOdd, GradientsOfChunks) {
  std::size_t at = 0;
  std::map<std::string, int> taken;
  for (std::int64_t chunks = 2; chunks <= 17 && !HasFailure(); ++chunks)
    for (const std::int64_t rest : {-1023, -1022, -1021, -1016, -700, -513, -512, -99, -31, -9, -8, -5, -1, 0})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
        ++taken[compare_gradient(t, 1 + static_cast<std::int64_t>(at * 37 % 50), 1024 * chunks + rest, at)], ++at;
  EXPECT_GT(taken["backward_block_rows"], 250);
}

/// Operands that begin and end where their memory does: what lies around is not read (which compute-sanitizer sees).
TEST_F(CudaOdd, EdgesOfMemory) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t n : {3, 8, 10, 50, 127, 250, 777, 1001, 1023, 1500, 2051, 3000})
      for (const Op op : {Op::softmax, Op::logsumexp, Op::softmax_backward, Op::log_softmax_backward}) {
        const std::int64_t rows = 37;
        Tensor x(t, {rows, n}, {}, 0, 0), dy(t, {rows, n}, {}, 0, 0);
        Tensor y = op == Op::logsumexp ? Tensor(DType::float32, {rows}, {}, 0, 0) : Tensor(t, {rows, n}, {}, 0, 0);
        x.fill([&](std::int64_t i) { return -std::abs(value_of(Values::normal, i / n, i % n, n)); });
        dy.fill([&](std::int64_t i) { return gradient_of(i / n, i % n); });
        const bool is_gradient = op == Op::softmax_backward || op == Op::log_softmax_backward;
        std::string kernel;
        for (const bool gpu : {false, true}) {
          const softfold::View in[] = {x.view(gpu), dy.view(gpu)}, out = y.view(gpu);
          const auto plan = softfold::plan(op, {in, is_gradient ? 2U : 1U}, {&out, 1}, softfold::RowOptions{});
          plan.run();
          kernel = plan.kernel();
        }
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << kernel;
        ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << n << " " << name_of(t) << " by " << kernel;
      }
}

/// Enough rows that every warp takes more than one set of them.
TEST_F(CudaOdd, ManyRows) {
  for (const std::int64_t n : {1, 3, 10, 23, 50, 64, 65, 127, 250, 300, 513, 1000})
    for (const DType t : {DType::float32, DType::bfloat16})
      for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp, Op::softmax_backward}) {
        const std::int64_t rows = 1000000 / (n + 8) + n;
        Tensor x(t, {rows, n}, {}, 1), dy(t, {rows, n}, {}, 1);
        Tensor y = op == Op::logsumexp ? Tensor(DType::float32, {rows}) : Tensor(t, {rows, n}, {}, 1);
        x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
        dy.fill_by_threads([&](std::int64_t i) { return gradient_of(i / n, i % n); });
        for (const bool gpu : {false, true}) {
          const softfold::View in[] = {x.view(gpu), dy.view(gpu)}, out = y.view(gpu);
          softfold::plan(op, {in, op == Op::softmax_backward ? 2U : 1U}, {&out, 1}, softfold::RowOptions{}).run();
        }
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << rows << "x" << n << " " << name_of(t);
      }
}

}  // namespace
}  // namespace softfold_test
