// Rows of which something is hidden, on both backends.
#pragma once

#include "cuda/both.hpp"

#include <cmath>
#include <map>

namespace softfold_test {

class CudaHidden : public Cuda {
 protected:
  void SetUp() override {
    taken().clear();
    Cuda::SetUp();
  }
  /// How often expect_same() has met a kernel in this test.
  static std::map<std::pair<softfold::Op, std::string>, int>& taken() {
    static std::map<std::pair<softfold::Op, std::string>, int> of_kernels;
    return of_kernels;
  }
  /// softmax and log_softmax of x on both backends, to results that lie as x does, `offset` elements from a boundary;
  /// of few elements, for the CPU's sake, logsumexp and states, too.
  static void expect_same(Tensor& x, const softfold::RowOptions& cpu, const softfold::RowOptions& cuda,
                          const std::string& what, std::int64_t offset = 0) {
    for (const softfold::Op op : {softfold::Op::softmax, softfold::Op::log_softmax}) {
      Tensor y(x.dtype(), x.shape(), x.strides(), offset);
      const std::string kernel = run_on_both(op, {&x}, y, [&](bool gpu) { return gpu ? cuda : cpu; });
      ++taken()[{op, kernel}];
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << what << " by " << kernel;
      ASSERT_EQ(difference(y.host(), y.download(), y.size()), "")
          << what << " " << name_of(op) << " " << name_of(x.dtype()) << " by " << kernel;
    }
    if (x.count() > 1 << 18) return;
    std::vector<std::int64_t> of_rows = x.shape();
    of_rows.erase(cpu.axis < 0 ? of_rows.end() - 1 : of_rows.begin() + cpu.axis);
    Tensor lse(offset % 2 == 0 ? softfold::DType::float32 : x.dtype(), of_rows);
    of_rows.push_back(4);
    Tensor state(softfold::DType::float64, of_rows);
    for (const softfold::Op op : {softfold::Op::logsumexp, softfold::Op::state}) {
      Tensor& result = op == softfold::Op::state ? state : lse;
      const std::string kernel = run_on_both(op, {&x}, result, [&](bool gpu) { return gpu ? cuda : cpu; });
      ++taken()[{op, kernel}];
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << what << " by " << kernel;
      ASSERT_EQ(difference(result.host(), result.download(), result.size()), "")
          << what << " " << name_of(op) << " " << name_of(x.dtype()) << " by " << kernel;
    }
  }
  /// Softmax of x in its place, by the kernel that is named last.
  static std::string expect_same_in_place(Tensor& x, const softfold::RowOptions& cpu, const softfold::RowOptions& cuda,
                                          const std::string& what) {
    const std::string kernel = run_on_both(softfold::Op::softmax, {&x}, x, [&](bool gpu) { return gpu ? cuda : cpu; });
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << what << " by " << kernel;
    EXPECT_EQ(difference(x.host(), x.download(), x.size()), "") << what << " in place by " << kernel;
    return kernel;
  }
};

/// What stands where something is hidden.
inline double planted(std::int64_t row, std::int64_t i) {
  constexpr double wild[] = {NAN, INFINITY, -INFINITY, 3e38};
  return wild[(row + i) % 4];
}

}  // namespace softfold_test
