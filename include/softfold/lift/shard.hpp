// A shard of a row in terms of the canonical tree: what of it is complete nodes, and what waits for its neighbours. It
// follows from where the shard lies alone, so every rank knows what the others hold.
#pragma once

#include "softfold/lift/tree.hpp"

namespace softfold {
inline namespace v0 {
namespace lift {

/// Elements [begin, end) of a row of `size`: nodes of the tree over [first, last), single elements before and behind.
/// The chunk that ends the row is complete, however short it is.
struct ShardLayout {
  std::int64_t begin, end, first, last;

  constexpr ShardLayout(std::int64_t begin_, std::int64_t end_, std::int64_t size)
      : begin(begin_), end(end_), first(begin_), last(end_) {
    if (begin % kChunk != 0) first = end - begin < kChunk - begin % kChunk ? end : begin + kChunk - begin % kChunk;
    if (end != size) last = end - end % kChunk > first ? end - end % kChunk : first;
  }

  /// The nodes are of chunks from first / kChunk up to here.
  constexpr std::int64_t stop() const { return first < last ? chunk_count(last) : 0; }
  /// Of the node at a chunk: as large as its place allows.
  constexpr int level_at(std::int64_t chunk) const {
    int level = 0;
    while ((chunk >> level & 1) == 0 && chunk + (std::int64_t{2} << level) <= stop()) ++level;
    return level;
  }
  /// Calls f(chunk, level) for every node, from left to right.
  template <class F>
  constexpr void for_nodes(const F& f) const {
    for (std::int64_t chunk = first / kChunk; chunk < stop();) {
      const int level = level_at(chunk);
      f(chunk, level);
      chunk += std::int64_t{1} << level;
    }
  }
  constexpr std::int64_t nodes() const {
    std::int64_t count = 0;
    for_nodes([&](std::int64_t, int) { ++count; });
    return count;
  }
};

}  // namespace lift
}  // namespace v0
}  // namespace softfold
