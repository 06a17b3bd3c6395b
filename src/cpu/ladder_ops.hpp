// The first rungs of the ladder, for one row of contiguous elements: how softmax is written before one knows better.
// They are here to be read and raced (docs/ladder.md); everything else uses the chunks and the tree.
#pragma once

#include "softfold/fold/logsumexp.hpp"

#include <array>
#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// Each rung's first half gives the row's state, its second half the result. c > 0; y may be x.
template <class T>
struct LadderOps {
  using State = typename fold::LogSumExp<T>::State;
  using Reduce = State (*)(const T* x, std::int64_t n, T c);
  using Write = void (*)(const T* x, std::int64_t n, T c, const State& row, T* y);

  Reduce naive_sum;   ///< sum of 2^t as it comes: one read, overflows from t = 128 on
  Reduce safe_sum;    ///< the maximum, then the sum in its frame: two reads
  Reduce online_sum;  ///< both at once, rescaling whenever the maximum grows: one read
  Write naive_write;  ///< 2^t / d
  Write write;        ///< 2^(t - m) / d
};

template <class T>
const LadderOps<T>& ladder_ops();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
