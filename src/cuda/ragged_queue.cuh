// Ragged rows that kernels leave to blocks, or clusters, of the one behind them.
#pragma once

#include "cuda/launch.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Their numbers, in the workspace. The longest are given first, or at the end few blocks would still have one.
struct RaggedQueue {
  static constexpr int kClasses = 3;
  /// Of the first class are longer ones, of the last those up to half of it.
  static constexpr std::int64_t kLong = 24 * 1024;

  int* rows;           ///< `capacity` of each class; null: there is no queue
  unsigned* taken;     ///< rows, also such as there are not
  unsigned* appended;  ///< of each class, also such as had no room
  unsigned capacity;

  /// As many as rows of a mean length from `mean` on are; of shorter ones, as many of that length as do not overlap.
  static constexpr std::int64_t most(std::int64_t rows, std::int64_t elements, std::int64_t mean) {
    return std::min(rows, elements / mean + 1);
  }
  SOFTFOLD_HD bool given() const { return rows != nullptr; }
  /// n: its length. False if there is no room.
  __device__ __forceinline__ bool append(std::int64_t row, std::int64_t n) const {
    const unsigned of = n > kLong ? 0 : n > kLong / 2 ? 1 : 2, at = atomicAdd(appended + of, 1U);
    if (at < capacity) rows[of * capacity + at] = static_cast<int>(row);
    return at < capacity;
  }
  /// Each number is given once.
  __device__ __forceinline__ unsigned take() const { return atomicAdd(taken, 1U); }
  /// The row of a number, -1 behind the last; once nothing is appended any more.
  __device__ __forceinline__ std::int64_t row(unsigned number) const {
#pragma unroll
    for (unsigned of = 0; of < kClasses; ++of) {
      const unsigned count = min(appended[of], capacity);
      if (number < count) return rows[of * capacity + number];
      number -= count;
    }
    return -1;
  }
  /// How many numbers have a row.
  __device__ __forceinline__ std::int64_t count() const {
    std::int64_t all = 0;
#pragma unroll
    for (int of = 0; of < kClasses; ++of) all += min(appended[of], capacity);
    return all;
  }
  /// At most so many of each class are given.
  __device__ __forceinline__ bool has_few(unsigned most) const {
#pragma unroll
    for (int of = 0; of < kClasses; ++of)
      if (appended[of] > most) return false;
    return true;
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
