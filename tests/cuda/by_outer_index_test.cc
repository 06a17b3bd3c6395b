// cpu == cuda, bit for bit: rows of two outer axes, so many of each index that the kernels of rows one stride apart
// take them index by index.
#include "cuda/both.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaByOuterIndex : public Cuda {};

constexpr std::int64_t kMany = 49 << 20, kFew = 47 << 20;  ///< bytes of an index's x, for launches of its own or not

enum class Form { whole, mask, length };

/// Rows [2, rows, n] of a tensor that has `gap` elements more for each of the two; the kernel that took them.
std::string compare(Op op, DType t, std::int64_t rows, std::int64_t n, std::int64_t gap, Form form = Form::whole) {
  const bool backward = op == Op::softmax_backward;
  const std::vector<std::int64_t> shape{2, rows, n}, strides{rows * n + gap, n, 1};
  Tensor x(t, shape, strides);
  Tensor y = op == Op::logsumexp ? Tensor(DType::float32, {2, rows})
             : op == Op::state   ? Tensor(DType::float64, {2, rows, 4})
                                 : Tensor(t, shape, strides);
  Tensor dy(t, backward ? shape : std::vector<std::int64_t>{1}), mask(DType::boolean, {1, rows, n}),
      length(DType::int32, {2, rows});
  x.fill_by_threads([&](std::int64_t i) { return value_of(Values::specials, i / n, i % n, n); });
  if (backward) {
    const softfold::View forward = x.view(false);
    softfold::plan(Op::softmax, {&forward, 1}, {&forward, 1}, softfold::RowOptions{}).run();
    x.upload();
    dy.fill_by_threads([&](std::int64_t i) { return gradient_of(i / n, i % n); });
  }
  if (form == Form::mask) mask.fill_by_threads([&](std::int64_t i) { return i % 7 % 3 == 0 ? 0. : 1.; });
  length.fill([&](std::int64_t i) { return static_cast<double>(i * 7919 % (n + 1)); });
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in[] = {x.view(gpu), dy.view(gpu)}, out = y.view(gpu);
    softfold::RowOptions o;
    if (form == Form::mask) o.mask = mask.view(gpu);  // of both indices
    if (form == Form::length) o.length = length.view(gpu);
    const std::span<const softfold::View> inputs(in, backward ? 2U : 1U);
    // A workspace of exactly the bytes that are asked for.
    const std::size_t bytes = softfold::plan(op, inputs, {&out, 1}, o).workspace_bytes();
    const Memory lent(std::max<std::size_t>(bytes, 1));
    softfold::Workspace workspace{lent.data, bytes};
    softfold::Context context;
    if (gpu && bytes > 0) context.workspace = &workspace;
    const auto plan = softfold::plan(op, inputs, {&out, 1}, o, context);
    plan.run();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // before the workspace goes
    kernel = plan.kernel();
  }
  EXPECT_EQ(difference(y.host(), y.download(), y.size()), "")
      << rows << "x" << n << " " << name_of(t) << " gap " << gap << " op " << static_cast<int>(op) << " by " << kernel;
  return kernel;
}

TEST_F(CudaByOuterIndex, Rows) {
  EXPECT_EQ(compare(Op::softmax, DType::bfloat16, kMany / 2 / 2048, 2048, 2048 * 3), "by_outer_index");
  EXPECT_EQ(compare(Op::log_softmax, DType::float32, kMany / 4 / 1000, 1000, 1000), "by_outer_index");
  EXPECT_EQ(compare(Op::logsumexp, DType::bfloat16, kMany / 32000, 32000, 32000), "by_outer_index");
  EXPECT_EQ(compare(Op::softmax_backward, DType::bfloat16, kMany / 2 / 127, 127, 127), "by_outer_index");
}

/// The second index begins otherwise inside vectors than the first, so another kernel may take it.
TEST_F(CudaByOuterIndex, IndicesThatLieOtherwise) {
  EXPECT_EQ(compare(Op::softmax, DType::float32, kMany / 4 / 4096, 4096, 1), "by_outer_index");
  EXPECT_EQ(compare(Op::softmax, DType::bfloat16, kMany / 2 / 64, 64, 3), "by_outer_index");
  EXPECT_EQ(compare(Op::state, DType::bfloat16, kMany / 1000, 1000, 3), "by_outer_index");
  EXPECT_EQ(compare(Op::logsumexp, DType::bfloat16, kMany / 8200, 8200, 5), "by_outer_index");
}

TEST_F(CudaByOuterIndex, MasksAndLengths) {
  EXPECT_EQ(compare(Op::softmax, DType::float32, kMany / 4 / 4099, 4099, 4099, Form::mask), "by_outer_index");
  compare(Op::softmax, DType::bfloat16, kMany / 2 / 4096, 4096, 4096, Form::length);
}

TEST_F(CudaByOuterIndex, NotForFewRows) {
  EXPECT_NE(compare(Op::softmax, DType::float32, kFew / 4 / 1000, 1000, 1000), "by_outer_index");
  EXPECT_NE(compare(Op::logsumexp, DType::float32, kMany / 4 / 1000, 1000, 1000), "by_outer_index");  // one read
}

}  // namespace
}  // namespace softfold_test
