// cpu == cuda, bit for bit: softmax and log_softmax from given states, and the gradients of logsumexp, of rows of every
// length, wherever they begin, along any axis, of any content, and of states that are not theirs.
#include "cuda/both.hpp"

#include <map>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaGiven : public Cuda {};

/// Elements between rows, and before the first one.
struct Layout {
  std::int64_t gap, offset;
  bool in_place;
};
constexpr Layout kLayouts[] = {{0, 0, false}, {0, 3, false}, {5, 1, true}, {3, 0, false}, {8, 8, false}};

constexpr Op kOps[] = {Op::finish_softmax, Op::logsumexp_backward, Op::finish_log_softmax};

/// Compares one operation of [outer, n, inner], of which `strange` rows have another one's state; the kernel that took
/// it.
std::string compare(Op op, DType t, std::int64_t outer, std::int64_t n, std::int64_t inner, std::size_t at,
                    bool strange) {
  const Layout& l = kLayouts[pick(at, 0, std::size(kLayouts))];
  const Values v = kAnyValues[pick(at, 1, std::size(kAnyValues))];
  const std::int64_t step = inner == 1 ? 1 : inner + l.gap;
  const std::vector<std::int64_t> shape{outer, n, inner}, strides{n * step + l.gap, step, 1};
  const std::int64_t wide = step + (inner == 1 ? 0 : 8);  // results lie otherwise, in words as wide
  Tensor x(t, shape, strides, l.offset), y(t, shape, {n * wide + l.gap, wide, 1}, l.offset);
  Tensor states(DType::float64, {outer, inner, 4}, {inner * 8, inner == 1 ? 4 : 8, 1}),
      dlse(pick(at, 2, 2) == 0 ? DType::float32 : t, {outer, inner}, {2 * inner, 2});
  const auto row_of = [&](std::int64_t i) { return i / (n * inner) * inner + i % inner; };
  const auto fill = [&](std::int64_t shift) {
    x.fill([&](std::int64_t i) { return value_of(v, (row_of(i) + shift) % (outer * inner), i / inner % n, n); });
  };
  fill(strange ? 1 : 0);
  dlse.fill([&](std::int64_t i) {
    return i % 7 == 3 ? -0. : i % 11 == 5 ? std::nan("") : 3. - static_cast<double>(i % 5);
  });
  softfold::RowOptions o;
  o.axis = 1;
  const std::size_t scale = pick(at, 3, 10);
  o.scale = scale == 0 ? 0. : scale < 4 ? -0.75 : 1.;
  const bool is_gradient = op == Op::logsumexp_backward;
  softfold::RowOptions of_state;
  of_state.scale = o.scale, of_state.axis = 1;
  const softfold::View in = x.view(false), out = states.view(false);
  softfold::plan(Op::state, {&in, 1}, {&out, 1}, of_state).run();
  states.upload();
  fill(0);
  if (!is_gradient) o.empty = pick(at, 4, 4) == 0 ? softfold::Empty::nan : softfold::Empty::zero;
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View inputs[] = {x.view(gpu), states.view(gpu), dlse.view(gpu)};
    const softfold::View result = l.in_place ? x.view(gpu) : y.view(gpu);
    const auto plan = softfold::plan(op, {inputs, is_gradient ? 3U : 2U}, {&result, 1}, o);
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Tensor& result = l.in_place ? x : y;
  EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
      << name_of(op) << " " << outer << "x" << n << "x" << inner << " " << name_of(t) << " layout " << &l - kLayouts
      << " values " << static_cast<int>(v) << " scale " << o.scale << (strange ? " strange" : "") << " by " << kernel;
  return kernel;
}

TEST_F(CudaGiven, RowsOfEveryLength) {
  std::size_t at = 0;
  std::map<std::string, int> taken;
  for (std::int64_t n = 1; n <= 1030 && !HasFailure(); ++n)
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16}) {
      const Op op = kOps[pick(at, 5, 3)];
      ++taken[compare(op, t, 1 + static_cast<std::int64_t>(at * 37 % 300) * 64 / (n + 64), n, 1, at,
                      pick(at, 6, 6) == 0)];
      ++at;
    }
  EXPECT_EQ(taken["given_rows"], 3 * 1030);
}

TEST_F(CudaGiven, Chunks) {
  std::size_t at = 0;
  for (const std::int64_t chunks : {2, 3, 8, 16, 33, 64, 130})
    for (const std::int64_t rest : {-1023, -1021, -700, -99, -8, -1, 0})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
        for (const Op op : kOps) {
          if (HasFailure()) return;
          EXPECT_EQ(compare(op, t, 5, 1024 * chunks + rest, 1, at, pick(at, 6, 6) == 0), "given_rows");
          ++at;
        }
}

/// The same of float64.
TEST_F(CudaGiven, WideRows) {
  std::size_t at = 0;
  for (std::int64_t n = 1; n <= 300000 && !HasFailure(); n += n < 35 ? 1 : n < 1200 ? 13 : n)
    for (const Op op : kOps)
      for (const bool strange : {false, true}) {
        const auto rows = 1 + static_cast<std::int64_t>(at * 37 % 300) * 64 / (n + 64);
        EXPECT_EQ(compare(op, DType::float64, rows, n, 1, at++, strange), "given_double_rows");
      }
}

TEST_F(CudaGiven, Across) {
  std::size_t at = 0;
  for (const std::int64_t n : {2, 7, 21, 63, 64, 65, 512, 1000, 3000})
    for (const std::int64_t inner : {2, 3, 31, 32, 64, 100, 257})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
        for (const Op op : kOps) {
          if (HasFailure()) return;
          const std::string kernel = compare(op, t, 2, n, inner, at, pick(at, 6, 6) == 0);
          // A scale of 0 is left to the general kernels.
          if (pick(at, 3, 10) != 0) EXPECT_EQ(kernel, "given_across_columns");
          ++at;
        }
}

/// Operands that begin and end where their memory does: what lies around is not read (which compute-sanitizer sees).
TEST_F(CudaGiven, EdgesOfMemory) {
  softfold::RowOptions o;
  o.axis = 1;
  for (const DType t : {DType::float32, DType::bfloat16, DType::float64})
    for (const std::int64_t inner : {1, 5, 36})
      for (const std::int64_t n : {3, 8, 50, 127, 250, 1001, 1500}) {
        Tensor x(t, {7, n, inner}, {}, 0, 0), y(t, {7, n, inner}, {}, 0, 0),
            states(DType::float64, {7, inner, 4}, {}, 0, 0);
        x.fill([&](std::int64_t i) { return value_of(Values::normal, i % inner, i / inner % n, n); });
        for (const bool gpu : {false, true}) {
          const softfold::View inputs[] = {x.view(gpu), states.view(gpu)}, out = y.view(gpu);
          softfold::plan(Op::state, {inputs, 1}, {inputs + 1, 1}, o).run();
          softfold::plan(Op::finish_softmax, inputs, {&out, 1}, o).run();
        }
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << n << "x" << inner << " " << name_of(t);
      }
}

}  // namespace
}  // namespace softfold_test
