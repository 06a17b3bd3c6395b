// Known bits: fixed inputs, and what every machine must make of them.
#pragma once

#include "cuda.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace softfold::cli {

struct SelfTest {
  std::string_view target;  ///< SIMD target, see cpu/targets.hpp; or "cuda"
  std::string case_name;    ///< operation and dtype
  std::uint64_t hash, expected;
};

/// softmax, log_softmax, logsumexp and state in four dtypes on every SIMD target that runs here: rows of 2500 elements,
/// one with infinities, one empty, one far apart. Must not run while other operations do.
std::vector<SelfTest> self_test();
/// The same results from a CUDA device; throws Error if it cannot be used.
std::vector<SelfTest> self_test_on(CudaDevice& device);

}  // namespace softfold::cli
