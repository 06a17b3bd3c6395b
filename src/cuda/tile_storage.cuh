// What a block of ragged_tiles knows of its rows and their chunks, in shared memory.
#pragma once

#include "cuda/ragged_values.cuh"

#include <algorithm>
#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kRaggedTileWarps = 32;  ///< of a processor
/// Of a block, and so chunks of the longest row that it takes: these, twice and four times as many.
inline constexpr int kFewTileWarps = 8;
/// Elements that a block of so many warps takes at a time. Measured: of 16 bit, whose next chunk is on its way while
/// one is finished, many; else three to each warp.
constexpr std::int64_t elements_of_tiles(std::size_t size, int warps) {
  return (size == 2 ? 73728 : 23040) * (warps / kFewTileWarps);
}
/// How many rows that is, of a mean length: a power of two, but no more than leave some for all blocks that find a
/// place.
inline int rows_of_tiles(std::int64_t elements, std::int64_t mean, std::int64_t rows, int warps, int processors,
                         std::int64_t least) {
  const std::int64_t places = std::int64_t{kRaggedTileWarps / warps} * processors;
  const std::int64_t wanted = std::clamp<std::int64_t>(std::min(elements / mean, rows / places), least, kMarked);
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(wanted)));
}
/// Chunks of the longest row: its warps meet; of states alone, two to a lane of the warp that merges them.
template <RaggedLeaves kLeaves, int kWarps>
inline constexpr int kTileChunks = kLeaves == RaggedLeaves::row ? 64 : kWarps;

/// A chunk of a row, as all warps of a block need it: found once, by one thread.
struct alignas(16) TileChunk {
  std::int64_t at = 0;    ///< bytes in x and y, to the vector that the first element lies in
  std::uint16_t end = 0;  ///< slots from there to the last element's end; those beyond the last slot are the first ones
  std::uint8_t head = 0;  ///< of them before the first element
  bool inside = false;    ///< all of its vectors lie in x's memory whole
  std::uint8_t row = 0, index = 0, count = 0;  ///< the block's row, of whose `count` chunks it is this one

  /// As it lies in shared memory: one load.
  static __device__ __forceinline__ TileChunk load(const TileChunk& from) {
    return std::bit_cast<TileChunk>(reinterpret_cast<const uint4&>(from));
  }
  __device__ __forceinline__ bool full() const { return end - head == lift::kChunk; }
  /// Elements behind the last slot.
  __device__ __forceinline__ int wrapped() const { return max(end - lift::kChunk, 0); }
};
static_assert(sizeof(TileChunk) == 16);

/// What a block shares: its rows and their chunks, its warps' values (of states alone nobody has any), and the nodes of
/// all chunks.
template <class E, RaggedLeaves kLeaves, int kWarps>
struct TileStorage {
  static constexpr int kNodes = kMarked * kWarps;
  RaggedValues<E, true> values[kLeaves == RaggedLeaves::row ? 1 : kWarps];
  uint4 edges[kWarps][2];
  VectorMasks<E> masks;
  TileChunk chunks[kNodes + kWarps];  ///< behind the block's some of no elements
  RaggedRow rows[kMarked];
  lift::Node nodes[kNodes];
  CopyBarrier whole[kMarked];  ///< a row has all of its nodes; each completes a phase each turn, but for states

  /// By the whole block, before anything else.
  __device__ __forceinline__ void make() {
    if (threadIdx.x < kMarked) whole[threadIdx.x].init(kWarps);
    if (threadIdx.x < kWarps) chunks[kNodes + threadIdx.x] = {};
    masks.make();
    __syncthreads();
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
