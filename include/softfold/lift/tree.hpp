// The canonical tree: how the chunks of a row are merged, fixed by the row's length alone.
//
// A row is cut into chunks of kChunk consecutive elements. Inside a chunk, element i meets i + 512, then i + 256, ...
// then i + 1. Chunks meet neighbours first: 0 with 1, 2 with 3; then 01 with 23; and so on. What is missing at the end
// of the row is the fold's identity, whose merge is exact, so it is simply left out. A node of level l covers chunks
// [k 2^l, (k+1) 2^l). CPU, SIMD, CUDA and files all read this one description.
#pragma once

#include "softfold/config.hpp"

#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace lift {

inline constexpr int kChunk = 1024;
/// No row has more levels than this: 2^54 elements are 2^44 chunks.
inline constexpr int kMaxLevels = 48;

SOFTFOLD_HD constexpr std::int64_t chunk_count(std::int64_t n) { return n / kChunk + (n % kChunk != 0 ? 1 : 0); }

/// Reduces a[0..n) in place by halving, n <= kChunk; returns the fold of all. a must have at least one element.
template <class F>
SOFTFOLD_HD typename F::State halve(typename F::State* a, int n) {
  for (int stride = kChunk / 2; stride > 0; stride /= 2) {
    for (int i = 0; i + stride < n; ++i) a[i] = F::merge(a[i], a[i + stride]);
    n = n < stride ? n : stride;
  }
  return a[0];
}

/// Merges `count` consecutive nodes of one level, the first of which begins at a multiple of the resulting power of
/// two, neighbours first, in place; returns the root.
template <class F>
SOFTFOLD_HD typename F::State reduce_nodes(typename F::State* a, std::int64_t count) {
  if (count == 0) return F::identity();
  for (; count > 1; count = (count + 1) / 2) {
    for (std::int64_t i = 0; i < count / 2; ++i) a[i] = F::merge(a[2 * i], a[2 * i + 1]);
    if (count % 2 != 0) a[count / 2] = a[count - 1];
  }
  return a[0];
}

/// The tree built from left to right, a node at a time: a binary counter whose set bits are the open nodes.
template <class F>
class TreeBuilder {
 public:
  using State = typename F::State;

  /// Takes the next node, of 2^level chunks. The chunks taken so far must be a multiple of 2^level.
  SOFTFOLD_HD void push(State s, int level = 0) {
    while ((chunks_ >> level) & 1) {
      s = F::merge(open_[level], s);
      chunks_ -= std::int64_t{1} << level;
      ++level;
    }
    open_[level] = s;
    chunks_ += std::int64_t{1} << level;
  }

  /// The root: what is open is closed from right to left, which is the tree padded with identities.
  SOFTFOLD_HD State root() const {
    State s = F::identity();
    bool first = true;
    for (int level = 0; level < kMaxLevels; ++level) {
      if (!((chunks_ >> level) & 1)) continue;
      s = first ? open_[level] : F::merge(open_[level], s);
      first = false;
    }
    return s;
  }

  SOFTFOLD_HD std::int64_t chunks() const { return chunks_; }

 private:
  State open_[kMaxLevels];
  std::int64_t chunks_ = 0;
};

}  // namespace lift
}  // namespace v0
}  // namespace softfold
