// cpu == cuda, bit for bit: gradients of softmax and log_softmax along an outer axis, of many lengths and any content.
#include "cuda/both.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaGradientAcross : public Cuda {};

/// Rows side by side, [2, n, inner].
void compare(DType t, std::int64_t inner, std::int64_t n, std::size_t at) {
  const Values v = kAnyValues[pick(at, 0, std::size(kAnyValues))];
  const std::int64_t gap = pick(at, 1, 3) == 0 ? 5 : 0, offset = static_cast<std::int64_t>(pick(at, 2, 5));
  const bool log = pick(at, 3, 2) == 1;
  const std::size_t to = pick(at, 4, 5);  // dx, or in place of y or dy
  const std::vector<std::int64_t> shape{2, n, inner}, strides{n * (inner + gap), inner + gap, 1};
  Tensor y(t, shape, strides, offset), dx(t, shape, strides, offset), dy(t, shape);
  const auto row_of = [&](std::int64_t i) { return i % inner + i / (n * inner) * inner; };
  y.fill([&](std::int64_t i) { return value_of(v, row_of(i), i / inner % n, n); });
  softfold::RowOptions o;
  o.axis = 1;
  const softfold::View forward = y.view(false);
  softfold::plan(log ? Op::log_softmax : Op::softmax, {&forward, 1}, {&forward, 1}, o).run();
  y.upload();
  dy.fill([&](std::int64_t i) { return gradient_of(row_of(i), i / inner % n); });
  o.scale = pick(at, 5, 3) == 0 ? -0.75 : 1.;
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in[] = {y.view(gpu), dy.view(gpu)};
    const softfold::View out = to == 0 ? dy.view(gpu) : to == 1 ? y.view(gpu) : dx.view(gpu);
    const auto plan = softfold::plan(log ? Op::log_softmax_backward : Op::softmax_backward, in, {&out, 1}, o);
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Tensor& result = to == 0 ? dy : to == 1 ? y : dx;
  EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
      << n << "x" << inner << " " << name_of(t) << " values " << static_cast<int>(v) << " at " << at << " by "
      << kernel;
  const bool odd = t != DType::float32 && (inner % 2 != 0 || gap != 0 || offset % 2 != 0);
  const bool held = n <= (odd ? 8192 : 4096);
  EXPECT_EQ(kernel, held ? "backward_across_columns" : "backward_across_columns_twice");
}

TEST_F(CudaGradientAcross, Rows) {
  std::size_t at = 0;
  for (const std::int64_t n : {2, 3, 8, 19, 31, 32, 33, 63, 64, 65, 100, 150, 512, 1000, 1023, 1024})
    for (const std::int64_t inner : {2, 3, 31, 32, 64, 100, 257, 1000})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16}) {
        if (HasFailure()) return;
        compare(t, inner, n, at);
        ++at;
      }
}

/// So many rows that fewer warps share a chunk.
TEST_F(CudaGradientAcross, ManyChunks) { compare(DType::bfloat16, 3755, 8200, 3); }

TEST_F(CudaGradientAcross, Chunks) {
  std::size_t at = 0;
  for (const std::int64_t n : {1025, 1500, 2047, 2048, 2049, 3000, 4096, 8192, 8193, 13000, 16384, 40001})
    for (const std::int64_t inner : {2, 3, 8, 16, 31, 64, 100})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16}) {
        if (HasFailure()) return;
        compare(t, inner, n, at);
        ++at;
      }
}

}  // namespace
}  // namespace softfold_test
