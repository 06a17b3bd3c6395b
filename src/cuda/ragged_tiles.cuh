// Ragged rows of a few chunks. The warps of a block take the chunks of as many neighbouring rows as they have room for,
// one each, and read them once; a row's warps meet in shared memory. Rows of another kind stay marked for ragged_rows.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/ragged_values.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Warps of a block, which are the chunks of the longest row.
inline constexpr int kTileWarps = 8;
inline constexpr std::int64_t kTileElements = std::int64_t{kTileWarps} * lift::kChunk;
inline constexpr int kTileBlocks = 4;  ///< of a processor

/// What a block shares: its rows, its warps' values, and nodes of their chunks, of one tile and the next.
template <class E>
struct TileStorage {
  RaggedValues<E> values[kTileWarps];
  RaggedRow rows[kMarked];
  lift::Node nodes[2][kTileWarps];
};

/// Up to kMarked neighbouring rows, one a lane, as every warp of a block sees them. Registers are for terms: what is
/// known of a row lies in shared memory, and whose chunk the warp has is found again.
template <class E, RaggedLeaves kLeaves>
struct RaggedTiles {
  using S = fold::Scalar<float>;
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = lift::kPerLane / kWidth;
  static constexpr bool kLog = kLeaves == RaggedLeaves::log_softmax;

  /// A warp's chunk: `index` of a row's `count`, whose first is the warp `first`'s.
  struct Unit {
    int row;  ///< -1: none
    int first, index, count;
  };

  const RowProblem& p;
  const RaggedQueue& queue;  ///< for longer rows than warps take alone
  TileStorage<E>& storage;
  int warp;    ///< as a reduction's result, which the compiler knows to be the same in all lanes
  int before;  ///< chunks of the rows before the lane's
  int behind;  ///< and of those up to it

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  /// `left` loses the rows of `todo` that are empty or go to the queue, the lane's at the bit-th place from `bit` on.
  __device__ __forceinline__ RaggedTiles(const RowProblem& p_, const RaggedQueue& queue_, TileStorage<E>& storage_,
                                         std::int64_t first, unsigned todo, unsigned& left, int bit)
      : p(p_),
        queue(queue_),
        storage(storage_),
        warp(__reduce_max_sync(lift::kWholeWarp, static_cast<int>(threadIdx.x) / 32)),
        before(0),
        behind(0) {
    int chunks = 0;
    bool gone = false;
    if ((todo >> lane() & 1U) != 0 && first + lane() < p.rows) {
      const RaggedRow own = ragged_row(p, first + lane());
      if (own.n <= kTileElements) chunks = static_cast<int>(lift::chunk_count(own.n));
      if (warp == 0) {
        storage.rows[lane()] = own;
        if (kLeaves == RaggedLeaves::row && own.n == 0)
          write_row<float>(p, own.index, fold::LogSumExp<float>::identity());
        gone = own.n == 0 || (own.n > kTileElements && queue.append(own.index, own.n));
      }
    }
    const unsigned all_gone = __ballot_sync(lift::kWholeWarp, gone);
    if (all_gone != 0 && lane() == 0) atomicAnd(&left, ~(all_gone << bit));
    behind = chunks;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(lift::kWholeWarp, behind, distance);
      if (lane() >= distance) behind += other;
    }
    before = behind - chunks;
  }

  /// The warp's, where the tile's first chunk is the base-th of all rows; rows that do not end in the tile wait.
  __device__ __forceinline__ Unit unit(int base) const {
    const int row = __ffs(static_cast<int>(__ballot_sync(lift::kWholeWarp, behind > base + warp))) - 1;
    const int first = __shfl_sync(lift::kWholeWarp, before, max(row, 0)) - base;
    const int end = __shfl_sync(lift::kWholeWarp, behind, max(row, 0)) - base;
    return {end <= kTileWarps ? row : -1, first, warp - first, end - first};
  }
  /// All tiles; `left` loses the rows that are done, too, or go to the queue.
  __device__ __forceinline__ void run(int& parity, unsigned& left, int bit) const {
    __syncthreads();
    const int all = __shfl_sync(lift::kWholeWarp, behind, 31);
#pragma unroll 1
    for (int base = 0; base < all;) {
      const int next = __reduce_max_sync(lift::kWholeWarp, behind - base <= kTileWarps ? behind : 0);
      if (next < all) {
        const Unit u = unit(next);
        if (lane() == 0 && u.row >= 0)
          fetch_ahead<E>(p, storage.rows[u.row], std::int64_t{u.index} * lift::kChunk, lift::kChunk);
      }
      tile(base, storage.nodes[parity], left, bit);
      parity ^= 1;
      base = next;
    }
    __syncthreads();
  }

 private:
  /// A chunk: its vectors, and of which slots it is; those beyond the last lie in the first ones.
  struct Span {
    std::int64_t at;  ///< bytes in x and y
    int head, end;
    __device__ __forceinline__ Span(const RowProblem& p, const RaggedRow& r, int chunk) {
      at = (r.begin + std::int64_t{chunk} * lift::kChunk) * kSize;
      const auto low = static_cast<int>((reinterpret_cast<std::uintptr_t>(p[Slot::x].data) + at) % 16);
      at -= low;
      head = low / kSize;
      end = head + static_cast<int>(min(r.n - std::int64_t{chunk} * lift::kChunk, std::int64_t{lift::kChunk}));
    }
  };

  /// The vectors of a span. What is not of the chunk is something that lies beside it.
  __device__ __forceinline__ void gather(uint4 (&raw)[kVectors], const char* x, const Span& span) const {
    const int last = (span.end - 1) / kWidth;
    storage.values[warp].vectors_of(x, last, extent_of(p), [&](const auto& vector) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        raw[j] = raw[0];
        if (j == 0 || 32 * j <= last) raw[j] = vector(min(lane() + 32 * j, last));
      }
      if (span.end > lift::kChunk) {
        const uint4 behind_last = vector(lift::kChunk / kWidth);
        if (lane() == 0) raw[0] = joined(raw[0], behind_last, (span.end - lift::kChunk) * kSize);
      }
    });
  }
  /// Terms to 0 in slots without an element.
  __device__ __forceinline__ void cut(float (&v)[lift::kPerLane], const Span& span) const {
    const int none = span.end > lift::kChunk ? span.end - lift::kChunk : 0;
    if (span.head > none) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        if (lane() == 0 && k >= none && k < span.head) v[k] = 0.F;
    }
    const int rest = span.end - kWidth * lane();
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (span.end >= 32 * kWidth * (j + 1) || span.end <= 32 * kWidth * j) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        if (32 * kWidth * j + k >= rest) v[kWidth * j + k] = 0.F;
    }
  }
  /// Folds the warp's chunk, whose terms, or elements, become its values. A frame that is not the chunk's own will do
  /// for probabilities: what lies beside the chunk counts in it.
  __device__ __forceinline__ lift::Node fold(float& unit, const RaggedRow& r, int chunk) const {
    const float c = fold::make_scale<float>(p.scale).c;
    const Span span(p, r, chunk);
    const char* x = p[Slot::x].data + span.at;
    uint4 raw[kVectors];
    gather(raw, x, span);
    if constexpr (kLeaves != RaggedLeaves::softmax) fill(raw, span);
    const RaggedFrame frame(Packed<E>::extremes(raw), c);
    if (!frame.near) return {lift::kFar, 0.F};
    const lift::FrameTerms terms(c, frame.m());
    float v[lift::kPerLane];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) v[kWidth * j + k] = 0.F;
      if (32 * kWidth * j >= span.end) continue;
      Packed<E>::unpack(raw[j], v + kWidth * j);
      if constexpr (kLog) storage.values[warp].put(lane() + 32 * j, v + kWidth * j);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) v[kWidth * j + k] = terms.template term<false>(v[kWidth * j + k]);
      if constexpr (kLeaves == RaggedLeaves::softmax) storage.values[warp].put(lane() + 32 * j, v + kWidth * j);
    }
    if (span.end != lift::kChunk || span.head != 0) cut(v, span);
    unit = terms.unit;
    const float d = lift::add_tree<kWidth, 32, float>([&](int j, int k) { return v[kWidth * j + k]; });
    return {__float_as_int(frame.top), S::mul(d, unit)};
  }
  /// Some element of the chunk in slots without one.
  __device__ __forceinline__ void fill(uint4 (&raw)[kVectors], const Span& span) const {
    const E one = reinterpret_cast<const E*>(p[Slot::x].data + span.at)[span.head];
    E ones[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) ones[k] = one;
    const uint4 filler = Packed<E>::join(ones);
    if (lane() == 0 && span.end <= lift::kChunk) raw[0] = joined(raw[0], filler, span.head * kSize);
    if (lane() == 0 && span.end > lift::kChunk && span.end - lift::kChunk < span.head) {
      const uint4 own = raw[0];
      raw[0] = joined(joined(own, filler, span.head * kSize), own, (span.end - lift::kChunk) * kSize);
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) raw[j] = joined(filler, raw[j], (span.end - kWidth * (lane() + 32 * j)) * kSize);
  }
  __device__ __forceinline__ void tile(int base, lift::Node (&nodes)[kTileWarps], unsigned& left, int bit) const {
    __syncwarp();  // the values of the tile before have been read
    float unit = 1.F;
    lift::Node node{lift::kFar, 0.F};
    {
      const Unit u = this->unit(base);
      if (u.row >= 0) {
        node = fold(unit, storage.rows[u.row], u.index);
        if (lane() == 0) nodes[warp] = node;
      }
    }
    __syncthreads();
    const Unit u = this->unit(base);
    if (u.row < 0) return;
    const lift::Node root = lift::merge_run<1>([&](int i) { return nodes[u.first + i]; }, u.count);
    const RaggedRow& r = storage.rows[u.row];
    const bool far = root.z == lift::kFar;
    if (u.index == 0 && lane() == 0) {
      if (!far || (r.n > kWarpElements && queue.append(r.index, r.n))) atomicAnd(&left, ~(1U << (bit + u.row)));
      if (kLeaves == RaggedLeaves::row && !far) write_row<float>(p, r.index, lift::state_of(root));
    }
    if (far) return;
    if constexpr (kLeaves != RaggedLeaves::row) {
      const Span span(p, r, u.index);
      char* y = p[Slot::y].data + span.at;
      auto& values = storage.values[warp];
      if constexpr (kLog) {
        const fold::LogNormaliser<float> norm(lift::state_of(root), fold::make_scale<float>(p.scale));
        values.collect(y, span.head, span.end, [&](float x) { return fast_log_probability(norm, x); });
      } else {
        const float multiplier = S::mul(lift::near_multiplier(root, node), unit);
        // Terms are at least 2^-62: so are none of the results that small.
        if (multiplier >= 0x1p-60F)
          return values.collect(y, span.head, span.end, [&](float t) { return S::mul(t, multiplier); });
        values.collect(y, span.head, span.end,
                       [&](float t) { return fold::Normaliser<float>::probability(t, multiplier); });
      }
    }
  }
};

/// A block takes `rows` neighbouring rows at a time, a part of kMarked, of those that are left. Its lanes look ahead
/// for parts of which something is left.
template <class E, RaggedLeaves kLeaves>
__global__ void __launch_bounds__(32 * kTileWarps, kTileBlocks)
    ragged_tiles(const __grid_constant__ RowProblem p, unsigned* left, const __grid_constant__ RaggedQueue queue,
                 int rows) {
  begin_in_order();
  __shared__ TileStorage<E> storage;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t step = std::int64_t{gridDim.x} * rows;
  int parity = 0;
#pragma unroll 1
  for (std::int64_t base = std::int64_t{blockIdx.x} * rows; base < p.rows; base += 32 * step) {
    const std::int64_t own = base + lane * step;
    unsigned marks = 0;
    if (own < p.rows) marks = left[own / kMarked] >> own % kMarked & 0xFFFFFFFFU >> (kMarked - rows);
    unsigned some = __ballot_sync(lift::kWholeWarp, marks != 0);
#pragma unroll 1
    for (; some != 0; some &= some - 1) {
      const int i = __ffs(static_cast<int>(some)) - 1;
      const std::int64_t first = base + i * step;
      const unsigned todo = __shfl_sync(lift::kWholeWarp, marks, i);
      unsigned& word = left[first / kMarked];
      const int bit = first % kMarked;
      RaggedTiles<E, kLeaves>(p, queue, storage, first, todo, word, bit).run(parity, word, bit);
    }
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
