// cpu == cuda, bit for bit: gradients of few rows over 1024, by a block each, by clusters, and by clusters that stay
// for little more than a row.
#include "cuda/both.hpp"

#include <map>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaFewGradients : public Cuda {
 protected:
  /// The kernel. gap: elements between a row and the next one; offset: in front of the first.
  static std::string compare(Op op, DType t, std::int64_t rows, std::int64_t n, std::int64_t gap, std::int64_t offset) {
    Tensor y(t, {rows, n}, {n + gap, 1}, offset), dy(t, {rows, n}, {n + gap, 1}, offset),
        dx(t, {rows, n}, {n + gap, 1}, offset);
    const Values v = rows % 2 == 0 ? Values::specials : Values::drift;
    y.fill_by_threads([&](std::int64_t i) { return value_of(v, i / n, i % n, n); });
    dy.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
    std::string kernel;
    for (const bool gpu : {false, true}) {
      const softfold::View in[] = {y.view(gpu), dy.view(gpu)}, out = dx.view(gpu);
      const auto plan = softfold::plan(op, in, {&out, 1});
      plan.run();
      kernel = plan.kernel();
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(difference(dx.host(), dx.download(), dx.size()), "")
        << rows << "x" << n << " " << name_of(op) << " " << name_of(t) << " gap " << gap << " offset " << offset
        << " by " << kernel;
    return kernel;
  }
};

TEST_F(CudaFewGradients, OfEveryLength) {
  std::map<std::string, int> taken;
  for (const std::int64_t n : {1025, 3000, 8192, 9001, 10240, 12288, 12480, 14000, 16384, 16385, 22357, 32768, 50257,
                               66000, 128256, 151937, 262144})
    for (const std::int64_t rows : {1, 2, 5, 17, 70, 200, 330})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
        for (const Op op : {Op::softmax_backward, Op::log_softmax_backward}) {
          if (HasFailure() || rows * n > 4000000) continue;
          const std::int64_t gap = (n + rows) % 3 == 0 ? 8 : (n + rows) % 5 == 0 ? 3 : 0;
          ++taken[compare(op, t, rows, n, gap, gap == 3 ? 5 : 0)];
        }
  EXPECT_GT(taken["backward_block_rows"], 150);
  EXPECT_GT(taken["backward_cluster_stays"], 100);
  EXPECT_GT(taken["backward_cluster_row"], 40);
}

}  // namespace
}  // namespace softfold_test
