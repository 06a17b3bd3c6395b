// cpu == cuda, bit for bit: softmax and log_softmax along an outer axis, of rows that begin anywhere, many lengths and
// any content.
#include "cuda/both.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaAcross : public Cuda {};

/// Rows side by side, [outer, n, inner], not on 16 bytes.
void compare(DType t, std::int64_t inner, std::int64_t n, std::size_t at) {
  const Values v = kAnyValues[pick(at, 0, std::size(kAnyValues))];
  const auto shift = 1 + static_cast<std::int64_t>(pick(at, 2, t == DType::float32 ? 3 : 4));
  const std::int64_t gap = pick(at, 1, 3) == 0 ? 5 : 0;
  const bool log = pick(at, 3, 2) == 1, in_place = pick(at, 4, 4) == 0;
  // Results lie otherwise than elements, but in words as wide.
  const std::vector<std::int64_t> shape{pick(at, 7, 3) == 0 ? 1 : 2, n, inner},
      strides{n * (inner + gap), inner + gap, 1}, others{n * (inner + gap + 8) + 4, inner + gap + 8, 1};
  Tensor x(t, shape, strides, shift), y(t, shape, others, shift + (t == DType::float32 ? 2 : 4));
  x.fill([&](std::int64_t i) { return value_of(v, i % inner + i / (n * inner) * inner, i / inner % n, n); });
  softfold::RowOptions o;
  o.axis = 1;
  o.scale = pick(at, 5, 3) == 0 ? -0.75 : 1.;
  o.empty = pick(at, 6, 4) == 0 ? softfold::Empty::nan : softfold::Empty::zero;
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in = x.view(gpu), out = in_place ? x.view(gpu) : y.view(gpu);
    const auto plan = softfold::plan(log ? Op::log_softmax : Op::softmax, {&in, 1}, {&out, 1}, o);
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Tensor& result = in_place ? x : y;
  EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
      << n << "x" << inner << " " << name_of(t) << " values " << static_cast<int>(v) << " at " << at << " by "
      << kernel;
  if (n > 4096) {
    EXPECT_EQ(kernel, "softmax_across_columns_twice");
  } else if (n > 32 || inner % 2 != 0) {  // else by softmax_across_short, on 8 bytes
    EXPECT_EQ(kernel, "softmax_across_columns");
  }
}

TEST_F(CudaAcross, Rows) {
  std::size_t at = 0;
  for (const std::int64_t n : {2, 3, 8, 21, 32, 33, 64, 100, 128, 257, 512, 1000, 1024})
    for (const std::int64_t inner : {2, 3, 32, 64, 100, 257})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16}) {
        if (HasFailure()) return;
        compare(t, inner, n, at++);
      }
}

TEST_F(CudaAcross, Chunks) {
  std::size_t at = 0;
  for (const std::int64_t n : {1025, 1500, 2048, 2049, 3000, 4095, 4096, 4097, 10000, 17001})
    for (const std::int64_t inner : {2, 3, 8, 64, 100})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16}) {
        if (HasFailure()) return;
        compare(t, inner, n, at++);
      }
}

/// Operands that begin and end where their memory does: what lies around is not read or written (which
/// compute-sanitizer sees).
TEST_F(CudaAcross, EdgesOfMemory) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t n : {3, 40, 1000, 2500, 9000})
      for (const std::int64_t inner : {5, 36, 70})
        for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp, Op::softmax_backward}) {
          Tensor x(t, {2, n, inner}, {}, 0, 0), dy(t, {2, n, inner}, {}, 0, 0), y(t, {2, n, inner}, {}, 0, 0),
              lse(DType::float32, {2, inner}, {}, 0, 0);
          x.fill([&](std::int64_t i) { return value_of(Values::normal, i % inner, i / inner % n, n); });
          dy.fill([&](std::int64_t i) { return gradient_of(i % inner, i / inner % n); });
          softfold::RowOptions o;
          o.axis = 1;
          for (const bool gpu : {false, true}) {
            const softfold::View in[] = {x.view(gpu), dy.view(gpu)},
                                 out = op == Op::logsumexp ? lse.view(gpu) : y.view(gpu);
            softfold::plan(op, {in, op == Op::softmax_backward ? 2U : 1U}, {&out, 1}, o).run();
          }
          ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
          Tensor& result = op == Op::logsumexp ? lse : y;
          ASSERT_EQ(difference(result.host(), result.download(), result.size()), "") << n << "x" << inner;
        }
}

}  // namespace
}  // namespace softfold_test
