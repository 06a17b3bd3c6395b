// A block's part of a row of which the k best are wanted: how rows are cut, and how chunks come to shared memory.
#pragma once

#include "cuda/softmax_plain.cuh"
#include "cuda/topk_select.cuh"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where a block has too little memory for two chunks a warp and kMostFilterK / 2 entries, one is ahead.
inline constexpr int kMostAhead = 2, kBytesOfTwoAhead = 128 * 1024;
inline constexpr int kFilterWarps = 8, kMostSegmentChunks = 256, kMostFilterK = 256, kJoinThreads = 256;

/// How rows are cut, and where the segments' parts lie.
struct TopkShare {
  int chunks, segments;                   ///< of a segment, of a row
  int k;                                  ///< the most that a row has taken from it
  fold::LogSumExp<float>::State* states;  ///< [rows][segments]; null: they are not wanted
  Entry* entries;                         ///< [rows][segments][k], best first; 0 where there are fewer. Null: one
                                          ///< segment, and its row is finished at once
  fold::LogSumExp<float>::State* nodes;   ///< [rows][chunks of the row]; null: they are not wanted
  bool joins;                             ///< a row's segments are a cluster, which finishes it
  int ahead;                              ///< chunks of a warp that are on their way or looked at: 1 or 2
};

/// As few segments as keep all processors busy, without memory yet.
inline TopkShare share_rows(std::int64_t rows, std::int64_t n, int k, const DeviceTraits& device) {
  const std::int64_t chunks = lift::chunk_count(n);
  const auto pieces = [&](std::int64_t segment) { return (chunks + segment - 1) / segment; };
  std::int64_t segment = kMostSegmentChunks;
  while (segment > kFilterWarps && (segment / 2 >= chunks || rows * pieces(segment) < device.processors)) segment /= 2;
  // Two blocks a processor do not keep its memory busy with one chunk a warp; more blocks would have no room for two.
  const bool few = rows * pieces(segment) <= 2 * device.processors && segment > kFilterWarps && k <= kMostFilterK / 2 &&
                   device.shared_bytes >= kBytesOfTwoAhead;
  return {static_cast<int>(segment), static_cast<int>(pieces(segment)), k, nullptr, nullptr, nullptr, false,
          few ? kMostAhead : 1};
}

/// Blocks for all segments. Two to a processor, an H200 has places for 66 clusters of 4 instead of 62 if a cluster's
/// may share one (64 rows of 128256: 0.7 of the time), but for no more of 8 (32 rows: 1.08 times).
inline Grid segment_grid(std::int64_t rows, const TopkShare& share, int threads, int shared_bytes) {
  Grid grid{rows * share.segments, threads, share.joins ? share.segments : 1, shared_bytes};
  grid.shares_processors = share.joins && share.segments <= 4;
  return grid;
}

/// What is wanted of a row.
struct FilterRow {
  int k;             ///< 0: only states
  bool with_states;  ///< someone asks for what follows from them
  lift::Factor factor;
};

/// A block's part of a row. Each warp has its chunks, one after the other, brought to places of its own by turns.
template <class E>
struct Segment {
  using Place = Landing<E, 32>;
  using Elements = typename Place::Elements;
  static constexpr int kSize = static_cast<int>(sizeof(E));
  const PlainRows& rows;
  const char* x;
  std::uint32_t begin;    ///< in its row, of fewer than 2^32 elements
  int n, chunks;          ///< of the segment
  char* places;           ///< `ahead` of them
  CopyBarrier* barriers;  ///< one a place
  int ahead;
  int turn;             ///< chunks that have been read
  lift::Factor factor;  ///< the row's, from when it is known
  Elements tile;

  __device__ __forceinline__ Segment(const PlainRows& rows_, const TopkShare& share, std::int64_t row, int segment,
                                     char* places_, CopyBarrier* barriers_)
      : rows(rows_),
        x(rows_.x + row * rows_.x_stride + std::int64_t{segment} * share.chunks * (lift::kChunk * kSize)),
        begin(static_cast<std::uint32_t>(segment) * static_cast<std::uint32_t>(share.chunks * lift::kChunk)),
        n(static_cast<int>(clamp(rows_.n - begin, share.chunks * lift::kChunk))),
        chunks((n + lift::kChunk - 1) / lift::kChunk),
        places(places_),
        barriers(barriers_),
        ahead(share.ahead),
        turn(0),
        factor(1.F),
        tile(x) {}

  __device__ __forceinline__ const char* at(int chunk) const { return x + chunk * (lift::kChunk * kSize); }
  __device__ __forceinline__ std::uint32_t first_of(int chunk) const {
    return begin + static_cast<std::uint32_t>(chunk * lift::kChunk);
  }
  __device__ __forceinline__ int size_of(int chunk) const { return min(n - chunk * lift::kChunk, lift::kChunk); }
  /// Which of the places the chunk of a turn lies in, and how often that has been filled before, modulo 2.
  __device__ __forceinline__ int slot_of(int t) const { return t & (ahead - 1); }
  __device__ __forceinline__ unsigned phase_of(int t) const { return static_cast<unsigned>(t >> (ahead - 1)) & 1U; }
  __device__ __forceinline__ char* place() const { return places + slot_of(turn) * Place::kBytes; }
  /// Sends a chunk on its way, for the turn `later` turns from now.
  __device__ __forceinline__ void fetch(int chunk, int later) const {
    if (threadIdx.x % 32 != 0 || chunk >= chunks) return;
    const int slot = slot_of(turn + later);
    Place(places + slot * Place::kBytes, at(chunk), size_of(chunk)).fetch(barriers[slot], at(chunk), rows);
  }
  __device__ __forceinline__ void arrived() const { barriers[slot_of(turn)].wait(phase_of(turn)); }
  /// The elements of this turn's chunk, and their extremes.
  __device__ __forceinline__ lift::Extremes read(float (&v)[lift::kPerLane], int chunk) const {
    arrived();
    return Place(place(), at(chunk), size_of(chunk)).read(v, at(chunk), factor, rows);
  }
  /// A bit for each element of the value `least` or more, or for all where that is NaN.
  __device__ __forceinline__ unsigned reach(const float (&v)[lift::kPerLane], int chunk, float least) const {
    unsigned which = 0;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) which |= v[i] < least ? 0U : 1U << i;
    if (size_of(chunk) < lift::kChunk) {
#pragma unroll 1
      for (int i = 0; i < lift::kPerLane; ++i)
        if (element(i) >= size_of(chunk)) which &= ~(1U << i);
    }
    return which;
  }
  /// Of those, the ones that reach the bound whose value `least` is. `exact`: ones behind it may have that value.
  __device__ __forceinline__ unsigned reach(const float (&v)[lift::kPerLane], int chunk, Entry bound, float least,
                                            bool exact) const {
    unsigned which = reach(v, chunk, least);
    if (!exact && static_cast<std::uint32_t>(bound) == 0 && factor.plain && !fold::is_nan(least)) return which;
#pragma unroll 1
    for (unsigned rest = which; rest != 0; rest &= rest - 1) {
      const int i = __ffs(static_cast<int>(rest)) - 1;
      if (entry(chunk, i) < bound) which &= ~(1U << i);
    }
    return which;
  }
  /// Element i of a chunk that is still in its place: registers have no index.
  __device__ __forceinline__ Entry entry(int chunk, int i) const {
    const int k = element(i);
    return entry_of(fold::widen(reinterpret_cast<const E*>(place())[k + tile.shift]),
                    first_of(chunk) + static_cast<std::uint32_t>(k));
  }

 private:
  __device__ __forceinline__ int element(int i) const {
    return tile.element(i / Elements::kWidth, i % Elements::kWidth);
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
