// Ragged rows of given lengths.
#pragma once

#include "cuda/operations.hpp"

#include <numeric>

namespace softfold_test {

class CudaRagged : public CudaBoth {};

/// Where rows of these lengths begin, `before` elements behind x's first, and the last one ends.
struct Offsets : Tensor {
  explicit Offsets(const std::vector<std::int64_t>& sizes, softfold::DType t = softfold::DType::int64,
                   std::int64_t before = 0)
      : Tensor(t, {static_cast<std::int64_t>(sizes.size()) + 1}) {
    std::int64_t at = before;
    fill([&](std::int64_t i) {
      return static_cast<double>(i == 0 ? at : at += sizes[static_cast<std::size_t>(i - 1)]);
    });
  }
};
inline std::int64_t total_of(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

}  // namespace softfold_test
