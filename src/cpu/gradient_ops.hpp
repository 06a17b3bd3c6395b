// What a SIMD target offers for the backward passes: operations on contiguous runs of elements.
#pragma once

#include "cpu/chunk_ops.hpp"
#include "softfold/fold/gradient.hpp"

#include <array>
#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cpu {

template <class T>
struct GradientOps {
  /// The sum of a chunk's leaves, 0 < n <= kChunk; y and dy of one dtype. `room`: kChunk numbers, aligned to 64 bytes.
  /// `far`: y and dy come from memory.
  using Sum = T (*)(const void* y, const void* dy, int n, T* room, bool far);
  /// dx of a run, given the row's sum. dx may be y or dy. `far`: past the cache.
  using Write = void (*)(const void* y, const void* dy, std::int64_t n, T sum, T scale, void* dx, bool far);
  /// dx of a run of x. dx may be x.
  using WriteLse = void (*)(const void* x, std::int64_t n, const fold::LogSumExpGradient<T>& row, void* dx,
                            bool stream);

  struct Pass {
    std::array<Sum, 4> sum;                     ///< by y's and dy's dtype
    std::array<std::array<Write, 4>, 4> write;  ///< by y's and dy's, and by dx's
  };
  Pass softmax, log_softmax;
  std::array<std::array<WriteLse, 4>, 4> logsumexp;  ///< by x's dtype and dx's
};

/// The table of the chosen target (targets.hpp).
template <class T>
const GradientOps<T>& gradient_ops();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
