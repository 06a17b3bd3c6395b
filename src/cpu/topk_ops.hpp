// What a SIMD target offers for top-k: finding the few elements that may be among the k best.
#pragma once

#include "cpu/chunk_ops.hpp"

#include <array>

namespace softfold {
inline namespace v0 {
namespace cpu {

template <class T>
struct TopkOps {
  /// The places, ascending, of those of x[0..n) that are greater than `threshold` (no NaN) or NaN: how many. `at` has
  /// room for n + 16.
  using Filter = int (*)(const void* x, int n, T threshold, int* at);
  std::array<Filter, 4> filter;  ///< by x's dtype
};

/// The table of the chosen target (targets.hpp).
template <class T>
const TopkOps<T>& topk_ops();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
