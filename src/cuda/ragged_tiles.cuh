// Ragged rows of a few chunks. The warps of a block take the chunks of neighbouring rows by turns, and read them once;
// a row's warps meet in shared memory, those of others go on. Of states alone all go on, and rows may be longer. Rows
// of another kind stay marked for ragged_rows.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/ragged_values.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kRaggedTileWarps = 8;   ///< of a block
inline constexpr int kRaggedTileBlocks = 4;  ///< of a processor
/// Chunks of the longest row: its warps meet; of states alone, two to a lane of the warp that merges them.
template <RaggedLeaves kLeaves>
inline constexpr int kTileChunks = kLeaves == RaggedLeaves::row ? 64 : kRaggedTileWarps;

/// What a block shares: its rows, its warps' values (of states alone nobody has any), and the nodes of all chunks.
template <class E, RaggedLeaves kLeaves>
struct TileStorage {
  static constexpr int kNodes = kMarked * kRaggedTileWarps;
  RaggedValues<E> values[kLeaves == RaggedLeaves::row ? 1 : kRaggedTileWarps];
  uint4 edges[kRaggedTileWarps][2];
  RaggedRow rows[kMarked];
  lift::Node nodes[kNodes];
  CopyBarrier whole[kMarked];  ///< a row has all of its nodes; each completes a phase each turn, but for states
};

/// Up to kMarked neighbouring rows, one a lane, as every warp of a block sees them. Registers are for terms: what is
/// known of a row lies in shared memory, and whose chunk the warp has is found again.
template <class E, RaggedLeaves kLeaves>
struct RaggedTiles {
  using S = fold::Scalar<float>;
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = lift::kPerLane / kWidth;
  static constexpr bool kLog = kLeaves == RaggedLeaves::log_softmax;
  static constexpr bool kStates = kLeaves == RaggedLeaves::row;
  static constexpr std::int64_t kLongest = std::int64_t{kTileChunks<kLeaves>} * lift::kChunk;
  /// Registers hold a chunk's vectors while the one before is finished. float32 has none free for that.
  static constexpr bool kAhead = kSize == 2;
  using Storage = TileStorage<E, kLeaves>;

  /// A chunk: `index` of a row's `count`.
  struct Unit {
    int row, index, count;
  };

  const RowProblem& p;
  const RaggedQueue& queue;  ///< for longer rows than warps take alone
  Storage& storage;
  int warp;       ///< as a reduction's result, which the compiler knows to be the same in all lanes
  int before;     ///< chunks of the rows before the lane's
  int behind;     ///< and of those up to it
  unsigned gone;  ///< the first warp's: rows that are empty, or on the queue

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ __forceinline__ RaggedTiles(const RowProblem& p_, const RaggedQueue& queue_, Storage& storage_,
                                         std::int64_t first, unsigned todo)
      : p(p_),
        queue(queue_),
        storage(storage_),
        warp(__reduce_max_sync(lift::kWholeWarp, static_cast<int>(threadIdx.x) / 32)),
        before(0),
        behind(0),
        gone(0) {
    RaggedRow own{first + lane(), 0, 0};
    const bool has_row = (todo >> lane() & 1U) != 0 && own.index < p.rows;
    if (has_row) own = ragged_row(p, own.index);
    int chunks = own.n <= kLongest ? static_cast<int>(lift::chunk_count(own.n)) : 0;
    behind = up_to(chunks);
    if (kStates && behind > Storage::kNodes) chunks = 0;  // this one, and those behind it
    bool is_gone = false;
    if (warp == 0 && has_row) {
      storage.rows[lane()] = own;
      if (kStates && own.n == 0) write_row<float>(p, own.index, fold::LogSumExp<float>::identity());
      is_gone = own.n == 0 || (chunks == 0 && own.n > kWarpElements && queue.append(own.index, own.n));
    }
    if (!kStates && warp == 0 && chunks == 0) storage.whole[lane()].arrive(kRaggedTileWarps);
    gone = __ballot_sync(lift::kWholeWarp, is_gone);
    if (kStates) behind = up_to(chunks);
    before = behind - chunks;
  }

  /// The at-th chunk of all rows.
  __device__ __forceinline__ Unit unit(int at) const {
    const int row = __ffs(static_cast<int>(__ballot_sync(lift::kWholeWarp, behind > at))) - 1;
    const int first = __shfl_sync(lift::kWholeWarp, before, row), end = __shfl_sync(lift::kWholeWarp, behind, row);
    return {row, at - first, end - first};
  }
  /// All chunks; `left` loses the rows that are done or on the queue, the first one's at the bit-th place. turn: how
  /// often the block has been here. A warp waits for others' chunks of its row, which are up to 7 further on; what
  /// those wait for before them is earlier than its own.
  __device__ __forceinline__ void run(int turn, unsigned& left, int bit) const {
    __syncthreads();  // all warps have read the marks, too
    if (gone != 0 && lane() == 0) atomicAnd(&left, ~(gone << bit));
    const int all = __shfl_sync(lift::kWholeWarp, behind, 31);
    Vectors ahead;
    if (kAhead && warp < all) fetch(ahead, warp);
#pragma unroll 1
    for (int at = warp; at < all; at += kRaggedTileWarps) {
      float unit;
      if constexpr (kAhead) {
        unit = fold(ahead, at);
        if (at + kRaggedTileWarps < all) fetch(ahead, at + kRaggedTileWarps);
      } else {
        Vectors own;
        fetch(own, at);
        unit = fold(own, at);
      }
      if constexpr (!kStates) finish(unit, at, static_cast<unsigned>(turn) % 2, left, bit);
    }
    __syncthreads();
    if constexpr (kStates) {
      finish_states(left, bit);
      __syncthreads();
    }
  }

 private:
  /// The sum of the lanes' counts up to the lane's own.
  static __device__ __forceinline__ int up_to(int count) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(lift::kWholeWarp, count, distance);
      if (lane() >= distance) count += other;
    }
    return count;
  }
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

  /// A chunk's vectors. What is not of the chunk is something that lies beside it.
  struct Vectors {
    uint4 of[kVectors];
    uint4 behind;  ///< the first lane's, of a chunk that reaches beyond its last slot
  };
  /// Asks for them; complete() once they have come.
  __device__ __forceinline__ void fetch(Vectors& raw, int at) const {
    if (at + kRaggedTileWarps < __shfl_sync(lift::kWholeWarp, behind, 31)) {
      const Unit next = unit(at + kRaggedTileWarps);
      if (lane() == 0) fetch_ahead<E>(p, storage.rows[next.row], std::int64_t{next.index} * lift::kChunk, lift::kChunk);
    }
    const Unit u = unit(at);
    const Span span(p, storage.rows[u.row], u.index);
    const int last = (span.end - 1) / kWidth;
    const auto read = [&](const auto& vector) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        if (!kAhead) raw.of[j] = raw.of[0];  // here it spares registers, but it waits for the first
        if (j == 0 || 32 * j <= last) raw.of[j] = vector(min(lane() + 32 * j, last));
      }
      if (span.end > lift::kChunk && lane() == 0) raw.behind = vector(lift::kChunk / kWidth);
      if (!kAhead) complete(raw, span);
    };
    RaggedValues<E>::vectors_of(p[Slot::x].data + span.at, last, extent_of(p), storage.edges[warp], read);
  }
  static __device__ __forceinline__ void complete(Vectors& raw, const Span& span) {
#pragma unroll
    for (int j = 1; j < kVectors; ++j)
      if (kAhead && 32 * j > (span.end - 1) / kWidth) raw.of[j] = raw.of[0];
    if (span.end > lift::kChunk && lane() == 0)
      raw.of[0] = joined(raw.of[0], raw.behind, (span.end - lift::kChunk) * kSize);
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
  /// Folds a chunk, whose terms, or elements, become values. A frame that is not the chunk's own will do for
  /// probabilities: what lies beside the chunk counts in it.
  __device__ __forceinline__ float fold(Vectors& raw, int at) const {
    __syncwarp();  // the values of the chunk before have been read
    const Unit u = this->unit(at);
    const Span span(p, storage.rows[u.row], u.index);
    if (kAhead) complete(raw, span);
    if constexpr (kLeaves != RaggedLeaves::softmax) fill(raw.of, span);
    float unit = 1.F;
    const lift::Node node = fold(unit, raw.of, span);
    __syncwarp();  // which values are behind
    if (lane() == 0) {
      storage.nodes[at] = node;
      if (!kStates) storage.whole[u.row].arrive(u.index == 0 ? kRaggedTileWarps + 1 - u.count : 1);
    }
    return unit;
  }
  __device__ __forceinline__ lift::Node fold(float& unit, const uint4 (&raw)[kVectors], const Span& span) const {
    auto& values = storage.values[kStates ? 0 : warp];
    const float c = fold::make_scale<float>(p.scale).c;
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
      if constexpr (kLog) values.put(lane() + 32 * j, v + kWidth * j);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) v[kWidth * j + k] = terms.template term<false>(v[kWidth * j + k]);
      if constexpr (kLeaves == RaggedLeaves::softmax) values.put(lane() + 32 * j, v + kWidth * j);
    }
    if (span.end != lift::kChunk || span.head != 0) cut(v, span);
    unit = terms.unit;
    const float d = lift::add_tree<kWidth, 32, float>([&](int j, int k) { return v[kWidth * j + k]; });
    return {__float_as_int(frame.top), S::mul(d, unit)};
  }
  /// Some element of the chunk in slots without one.
  __device__ __forceinline__ void fill(uint4 (&raw)[kVectors], const Span& span) const {
    if (span.end - span.head == lift::kChunk) return;
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
    for (int j = 0; j < kVectors; ++j)
      if (span.end < 32 * kWidth * (j + 1))
        raw[j] = joined(filler, raw[j], (span.end - kWidth * (lane() + 32 * j)) * kSize);
  }
  /// The states of all rows, a warp each, once all nodes are there.
  __device__ __forceinline__ void finish_states(unsigned& left, int bit) const {
#pragma unroll 1
    for (int row = warp; row < kMarked; row += kRaggedTileWarps) {
      const int first = __shfl_sync(lift::kWholeWarp, before, row),
                count = __shfl_sync(lift::kWholeWarp, behind, row) - first;
      if (count == 0) continue;
      const lift::Node root =
          lift::merge_run<kTileChunks<kLeaves> / 32>([&](int i) { return storage.nodes[first + i]; }, count);
      if (lane() != 0) continue;
      const RaggedRow& r = storage.rows[row];
      const bool far = root.z == lift::kFar;
      if (!far) write_row<float>(p, r.index, lift::state_of(root));
      if (!far || (r.n > kWarpElements && queue.append(r.index, r.n))) atomicAnd(&left, ~(1U << (bit + row)));
    }
  }
  /// The results of a chunk.
  __device__ __forceinline__ void finish(float unit, int at, unsigned parity, unsigned& left, int bit) const {
    const Unit u = this->unit(at);
    storage.whole[u.row].wait(parity);
    const lift::Node* nodes = storage.nodes + (at - u.index);
    const lift::Node root = lift::merge_run<1>([&](int i) { return nodes[i]; }, u.count);
    const RaggedRow& r = storage.rows[u.row];
    const bool far = root.z == lift::kFar;
    if (u.index == 0 && lane() == 0) {
      if (!far || (r.n > kWarpElements && queue.append(r.index, r.n))) atomicAnd(&left, ~(1U << (bit + u.row)));
    }
    if (far) return;
    const Span span(p, r, u.index);
    char* y = p[Slot::y].data + span.at;
    auto& values = storage.values[warp];
    if constexpr (kLog) {
      const fold::LogNormaliser<float> norm(lift::state_of(root), fold::make_scale<float>(p.scale));
      values.collect(y, span.head, span.end, [&](float x) { return fast_log_probability(norm, x); });
    } else {
      const float multiplier = S::mul(lift::near_multiplier(root, storage.nodes[at]), unit);
      // Terms are at least 2^-62: so are none of the results that small.
      if (multiplier >= 0x1p-60F)
        return values.collect(y, span.head, span.end, [&](float t) { return S::mul(t, multiplier); });
      values.collect(y, span.head, span.end,
                     [&](float t) { return fold::Normaliser<float>::probability(t, multiplier); });
    }
  }
};

/// A block takes `rows` neighbouring rows at a time, a part of kMarked, of those that are left. Its lanes look ahead
/// for parts of which something is left.
template <class E, RaggedLeaves kLeaves>
__global__ void __launch_bounds__(32 * kRaggedTileWarps, kRaggedTileBlocks)
    ragged_tiles(const __grid_constant__ RowProblem p, unsigned* left, const __grid_constant__ RaggedQueue queue,
                 int rows) {
  begin_in_order();
  __shared__ TileStorage<E, kLeaves> storage;
  int turn = 0;
  if (threadIdx.x < kMarked) storage.whole[threadIdx.x].init(kRaggedTileWarps);
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t step = std::int64_t{gridDim.x} * rows;
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
      const auto bit = static_cast<int>(first % kMarked);
      RaggedTiles<E, kLeaves>(p, queue, storage, first, todo).run(turn++, word, bit);
    }
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
