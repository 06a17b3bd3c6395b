// Operations with several inputs and outputs on both backends, and all their bytes compared.
#pragma once

#include "cuda/both.hpp"

namespace softfold_test {

class CudaBoth : public Cuda {
 protected:
  /// Runs on both backends and compares all outputs.
  static void expect_same(softfold::Op op, const std::vector<Tensor*>& in, const std::vector<Tensor*>& out,
                          const softfold::RowOptions& cpu, const softfold::RowOptions& cuda, const std::string& what) {
    for (const bool gpu : {false, true}) {
      std::vector<softfold::View> inputs, outputs;
      for (Tensor* t : in) inputs.push_back(t->view(gpu));
      for (Tensor* t : out) outputs.push_back(t->view(gpu));
      softfold::plan(op, inputs, outputs, gpu ? cuda : cpu).run();
    }
    compare(out, what + " " + std::string(name_of(op)));
  }
  static void compare(const std::vector<Tensor*>& out, const std::string& what) {
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << what;
    for (Tensor* t : out) ASSERT_EQ(difference(t->host(), t->download(), t->size()), "") << what;
  }
};

}  // namespace softfold_test
