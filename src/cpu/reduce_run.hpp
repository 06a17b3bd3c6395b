// One chunk of numbers to its state, for callers that hold the numbers themselves (streams, partials).
#pragma once

#include "softfold/lift/stream.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

/// lift::reduce_chunk, bit for bit, on the chosen SIMD target: x[0..n), 0 < n <= kChunk, any finite c. To be called in
/// the portable floating-point environment (float_env.hpp).
template <class T>
typename Partial<T>::State reduce_run(const T* x, int n, T c);

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
