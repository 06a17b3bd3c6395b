// Ragged rows of a few chunks, and rows that lengths cut short. The warps of a block take the chunks of
// neighbouring rows by turns, and read them once; a row's warps meet in shared memory, those of others go on. Of states
// alone all go on, and rows may be longer. Rows of another kind stay marked for a kernel behind this one.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/lane_sums.cuh"
#include "cuda/reciprocal.cuh"
#include "cuda/row_results.cuh"
#include "cuda/tile_storage.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Which rows tiles are of: ragged ones, or such as lengths cut short, at the same strides in x and y, which begin and
/// end with vectors or lie anywhere.
enum class TileRows { ragged, cut, cut_anywhere };

/// Up to kMarked neighbouring rows, one a lane, as every warp of a block sees them. Registers are for terms: what is
/// known of a row or a chunk lies in shared memory.
template <class E, RaggedLeaves kLeaves, int kWarps, TileRows kRows = TileRows::ragged>
struct RaggedTiles {
  static constexpr bool kCut = kRows != TileRows::ragged, kOnVectors = kRows == TileRows::cut;
  using S = fold::Scalar<float>;
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = lift::kPerLane / kWidth;
  static constexpr bool kLog = kLeaves == RaggedLeaves::log_softmax;
  static constexpr bool kStates = kLeaves == RaggedLeaves::row;
  static constexpr std::int64_t kLongest = std::int64_t{kTileChunks<kLeaves, kWarps>} * lift::kChunk;
  /// Registers hold a chunk's vectors while the one before is finished. float32 has none free for that.
  static constexpr bool kAhead = kSize == 2;
  using Storage = TileStorage<E, kLeaves, kWarps>;

  const RowProblem& p;
  const RowResults* to;      ///< if kStates
  const Extent* x_memory;    ///< if kCut
  const RaggedQueue& queue;  ///< for longer rows than warps take alone
  Storage& storage;
  unsigned rows;  ///< lanes that have one
  int warp;       ///< as a reduction's result, which the compiler knows to be the same in all lanes
  int before;     ///< chunks of the rows before the lane's
  int behind;     ///< and of those up to it
  int all;        ///< of all rows
  unsigned gone;  ///< the first warp's: rows that are empty, or on the queue

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ __forceinline__ RaggedTiles(const RowProblem& p_, const RowResults* to_, const Extent* x_memory_,
                                         const RaggedQueue& queue_, Storage& storage_, std::int64_t first,
                                         unsigned todo)
      : p(p_),
        to(to_),
        x_memory(x_memory_),
        queue(queue_),
        storage(storage_),
        rows(todo),
        warp(__reduce_max_sync(lift::kWholeWarp, static_cast<int>(threadIdx.x) / 32)),
        before(0),
        behind(0),
        all(0),
        gone(0) {
    RaggedRow own{first + lane(), 0, 0};
    const bool has_row = (todo >> lane() & 1U) != 0 && own.index < p.rows;
    if (has_row) own = row_of(own.index);
    int chunks = own.n <= kLongest ? static_cast<int>(lift::chunk_count(own.n)) : 0;
    behind = sum_up_to(chunks);
    if (kStates && behind > Storage::kNodes) chunks = 0;  // this one, and those behind it
    bool is_gone = false;
    if (warp == 0 && has_row) {
      storage.rows[lane()] = own;
      if (kStates && own.n == 0) to->put_state(own.index, fold::LogSumExp<float>::identity());
      is_gone = own.n == 0 || (chunks == 0 && goes_to_queue(own));
    }
    if (!kStates && warp == 0 && chunks == 0) storage.whole[lane()].arrive(kWarps);
    gone = __ballot_sync(lift::kWholeWarp, is_gone);
    if (kStates) behind = sum_up_to(chunks);
    before = behind - chunks;
    all = __shfl_sync(lift::kWholeWarp, behind, 31);
    static_assert(Storage::kNodes == 32 * kWarps);
    storage.chunks[threadIdx.x] = chunk_of(own, static_cast<int>(threadIdx.x));
  }

  /// All chunks; `left` loses the rows that are done or on the queue, the first one's at the bit-th place. turn: how
  /// often the block has been here. A warp waits for others' chunks of its row, each the next one of another warp; what
  /// those wait for before them is earlier than its own.
  __device__ __forceinline__ void run(int turn, unsigned& left, int bit) const {
    __syncthreads();  // all warps have read the marks, too
    if (gone != 0 && lane() == 0) atomicAnd(&left, ~(gone << bit));
    Vectors ahead;
    if (kAhead && warp < all) fetch(ahead, warp);
    if constexpr (kCut) hide();
#pragma unroll 1
    for (int at = warp; at < all; at += kWarps) {
      float unit;
      if constexpr (kAhead) {
        unit = fold(ahead, at);
        if (at + kWarps < all) fetch(ahead, at + kWarps);
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
  /// x's.
  __device__ __forceinline__ Extent memory() const {
    if constexpr (kCut) return *x_memory;
    return extent_of<E>(p);
  }
  __device__ __forceinline__ RaggedRow row_of(std::int64_t index) const {
    if constexpr (!kCut) return ragged_row(p, index);
    const Row r = row_at(p, RowPlace(p, index));
    return {index, (r.x - p[Slot::x].data) / kSize, r.length};
  }
  /// Whether a row that is not done here is the queue's.
  __device__ __forceinline__ bool goes_to_queue(const RaggedRow& r) const {
    return !kCut && r.n > kWarpElements && queue.append(r.index, r.n);
  }
  /// The at-th chunk of all rows, of which every lane has its own; by all lanes.
  __device__ __forceinline__ TileChunk chunk_of(const RaggedRow& lanes, int at) const {
    int row = 0;  // the first whose chunks do not all lie before this one
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      if (__shfl_sync(lift::kWholeWarp, behind, row + step - 1) <= at) row += step;
    const int first = __shfl_sync(lift::kWholeWarp, before, row), end = __shfl_sync(lift::kWholeWarp, behind, row);
    const std::int64_t passed = std::int64_t{at - first} * lift::kChunk;
    const std::int64_t begin = __shfl_sync(lift::kWholeWarp, lanes.begin, row) + passed,
                       rest = __shfl_sync(lift::kWholeWarp, lanes.n, row) - passed;
    TileChunk chunk;
    if (at >= all) return chunk;
    const Extent x = memory();
    chunk.at = begin * kSize;
    const char* base = p[Slot::x].data;
    const auto low = static_cast<int>((reinterpret_cast<std::uintptr_t>(base) + chunk.at) % 16);
    chunk.at -= low;
    chunk.head = static_cast<std::uint8_t>(low / kSize);
    chunk.end = static_cast<std::uint16_t>(low / kSize + min(rest, std::int64_t{lift::kChunk}));
    chunk.inside = kOnVectors || (base + chunk.at >= x.begin && base + chunk.at + (last_of(chunk) + 1) * 16 <= x.end);
    chunk.row = static_cast<std::uint8_t>(row);
    chunk.index = static_cast<std::uint8_t>(at - first), chunk.count = static_cast<std::uint8_t>(end - first);
    return chunk;
  }
  __device__ __forceinline__ TileChunk chunk(int at) const { return TileChunk::load(storage.chunks[at]); }
  /// Its last vector.
  static __device__ __forceinline__ int last_of(const TileChunk& chunk) {
    return (chunk.end + kWidth - 1) / kWidth - 1;
  }

  /// A chunk's vectors, and for more lanes than those the last one again. What is not of the chunk is something that
  /// lies beside it.
  struct Vectors {
    uint4 of[kVectors];
    uint4 behind;  ///< the vector behind the last slot, of a chunk that reaches beyond it
  };
  /// Asks for them, and where that is not done ahead, for those of the warp's next chunk into the L2 cache; complete()
  /// once they have come.
  __device__ __forceinline__ void fetch(Vectors& raw, int at) const {
    if (!kAhead && lane() == 0) {
      const TileChunk next = chunk(at + kWarps);
      if (next.inside) fetch_ahead(p[Slot::x].data + next.at, 16 * (last_of(next) + 1));
    }
    const TileChunk own = chunk(at);
    const char* x = p[Slot::x].data + own.at;
    const int last = last_of(own);
    const auto read = [&](const auto& vector) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) raw.of[j] = vector(min(lane() + 32 * j, last));
      if (!kOnVectors && own.wrapped() > 0) raw.behind = vector(last);
    };
    if (kOnVectors || own.inside) {
      read([&](int i) { return reinterpret_cast<const uint4*>(x)[i]; });
    } else {
      uint4(&edges)[2] = storage.edges[warp];
      RaggedValues<E, true>::put_edges(edges, x, last, memory());
      read([&](int i) { return i == 0 ? edges[0] : i == last ? edges[1] : reinterpret_cast<const uint4*>(x)[i]; });
      __syncwarp();
    }
    if (!kAhead) complete(raw, own);
  }
  __device__ __forceinline__ void complete(Vectors& raw, const TileChunk& chunk) const {
    if (kOnVectors || chunk.wrapped() == 0) return;
    const uint4 mask = storage.masks.of_first[lane() == 0 ? chunk.wrapped() : 0];
    raw.of[0] = chosen(mask, raw.behind, raw.of[0]);
  }
  /// Terms to 0 in slots without an element.
  __device__ __forceinline__ void clear(float (&v)[lift::kPerLane], const TileChunk& chunk) const {
    if (!kOnVectors && chunk.head > chunk.wrapped()) {
      const unsigned hole = lane() == 0 ? (1U << chunk.head) - (1U << chunk.wrapped()) : 0U;
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        if ((hole >> k & 1U) != 0) v[k] = 0.F;
    }
    const int rest = chunk.end - kWidth * lane();
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (chunk.end >= 32 * kWidth * (j + 1) || chunk.end <= 32 * kWidth * j) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        if (32 * kWidth * j + k >= rest) v[kWidth * j + k] = 0.F;
    }
  }
  /// Folds a chunk, whose terms, or elements, become values. A frame that is not the chunk's own will do for
  /// probabilities: what lies beside the chunk counts in it.
  __device__ __forceinline__ float fold(Vectors& raw, int at) const {
    __syncwarp();  // the values of the chunk before have been read
    const TileChunk own = chunk(at);
    if (kAhead) complete(raw, own);
    if constexpr (kCut || kLeaves != RaggedLeaves::softmax) fill(raw.of, own);
    float unit = 1.F;
    const lift::Node node = fold(unit, raw.of, own);
    __syncwarp();  // which values are behind
    if (lane() == 0) {
      storage.nodes[at] = node;
      if (!kStates) storage.whole[own.row].arrive(own.index == 0 ? kWarps + 1 - own.count : 1);
    }
    __syncwarp();
    return unit;
  }
  __device__ __forceinline__ lift::Node fold(float& unit, const uint4 (&raw)[kVectors], const TileChunk& chunk) const {
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
      if (32 * kWidth * j >= chunk.end) continue;
      Packed<E>::unpack(raw[j], v + kWidth * j);
      if constexpr (kLog) values.put(j, v + kWidth * j);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) v[kWidth * j + k] = terms.template term<false>(v[kWidth * j + k]);
      if constexpr (kLeaves == RaggedLeaves::softmax) values.put(j, v + kWidth * j);
    }
    if (!chunk.full()) clear(v, chunk);
    unit = terms.unit;
    const float d = lift::add_tree<kWidth, 32, float>([&](int j, int k) { return v[kWidth * j + k]; });
    return {__float_as_int(frame.top), S::mul(d, unit)};
  }
  /// Some element of the chunk in slots without one; of a row on vectors in those of its last vector, which is that of
  /// the lanes behind it, too.
  __device__ __forceinline__ void fill(uint4 (&raw)[kVectors], const TileChunk& chunk) const {
    if (kOnVectors ? chunk.end % kWidth == 0 : chunk.full()) return;
    E one;
    if constexpr (kCut) {
      const unsigned first = __shfl_sync(lift::kWholeWarp, kOnVectors ? raw[0].x : word_of(raw[0], chunk.head), 0);
      one = reinterpret_cast<const E&>(first);
    } else {
      one = reinterpret_cast<const E*>(p[Slot::x].data + chunk.at)[chunk.head];
    }
    E ones[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) ones[k] = one;
    const uint4 filler = Packed<E>::join(ones);
    if (!kOnVectors && lane() == 0 && chunk.wrapped() < chunk.head) {
      const uint4 own = raw[0];
      raw[0] = joined(joined(own, filler, chunk.head * kSize), own, chunk.wrapped() * kSize);
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int rest = chunk.end - kWidth * (lane() + 32 * j);
      if (chunk.end < 32 * kWidth * (j + 1))
        raw[j] = chosen(storage.masks.of_first[max(0, min(rest, kWidth))], raw[j], filler);
    }
  }
  /// A word whose lowest bits are the k-th element of a vector.
  static __device__ __forceinline__ unsigned word_of(const uint4& raw, int k) {
    const unsigned bytes = static_cast<unsigned>(k * kSize);
    const unsigned low = bytes < 4 ? raw.x : raw.y, high = bytes < 12 ? raw.z : raw.w;
    return (bytes < 8 ? low : high) >> (bytes % 4 * 8);
  }
  /// The states of all rows, once all nodes are there: those of one chunk a lane each of the first warp, the others a
  /// warp each. What a warp has found waits in its rows' lanes, for a result takes as many instructions as a merge.
  __device__ __forceinline__ void finish_states(unsigned& left, int bit) const {
    const int chunks = behind - before;
    bool found = warp == 0 && chunks == 1;
    lift::Node root{};
    if (found) root = storage.nodes[before];
    int turn = 0;
#pragma unroll 1
    for (unsigned more = __ballot_sync(lift::kWholeWarp, chunks > 1); more != 0; more &= more - 1) {
      if (turn++ % kWarps != warp) continue;
      const int row = __ffs(static_cast<int>(more)) - 1, first = __shfl_sync(lift::kWholeWarp, before, row),
                count = __shfl_sync(lift::kWholeWarp, chunks, row);
      const lift::Node merged =
          lift::merge_run<kTileChunks<kLeaves, kWarps> / 32>([&](int i) { return storage.nodes[first + i]; }, count);
      if (lane() == row) root = merged, found = true;
    }
    bool done = false;
    if (found) {
      const RaggedRow& r = storage.rows[lane()];
      const bool far = root.z == lift::kFar;
      if (!far) to->put_state(r.index, lift::state_of(root));
      done = !far || goes_to_queue(r);
    }
    const unsigned all_done = __ballot_sync(lift::kWholeWarp, done);
    if (lane() == 0 && all_done != 0) atomicAnd(&left, ~(all_done << bit));
  }
  /// Nothing in what lies behind the last chunks with elements, a chunk a warp.
  __device__ __forceinline__ void hide() const {
    const auto chunks = static_cast<int>(lift::chunk_count(p.n));
    const int hidden = sum_up_to((rows >> lane() & 1U) != 0 ? chunks - (behind - before) : 0);
    const int most = __shfl_sync(lift::kWholeWarp, hidden, 31);
#pragma unroll 1
    for (int at = warp; at < most; at += kWarps) {
      const int row = __ffs(static_cast<int>(__ballot_sync(lift::kWholeWarp, hidden > at))) - 1;
      const int index = chunks + at - __shfl_sync(lift::kWholeWarp, hidden, row);
      hide(p[Slot::y].data + (storage.rows[row].begin + index * lift::kChunk) * kSize, room_at(index));
    }
  }
  static __device__ __forceinline__ void hide(char* y, int count) { hide_run<E, kLog, kVectors, kOnVectors>(y, count); }
  /// Elements that a row has in a chunk, whether they exist or not.
  __device__ __forceinline__ int room_at(int index) const {
    return static_cast<int>(min(p.n - std::int64_t{index} * lift::kChunk, std::int64_t{lift::kChunk}));
  }
  static __device__ __forceinline__ uint4 none() {
    float nones[kWidth];
#pragma unroll
    for (float& one : nones) one = nothing<kLog>();
    return Packed<E>::pack(nones);
  }
  /// The results of a chunk.
  __device__ __forceinline__ void finish(float unit, int at, unsigned parity, unsigned& left, int bit) const {
    const TileChunk own = chunk(at);
    lift::Node root = storage.nodes[at];
    const int z = root.z;
    if (own.count > 1) {
      storage.whole[own.row].wait(parity);
      const lift::Node* nodes = storage.nodes + (at - own.index);
      root = lift::merge_run<1>([&](int i) { return nodes[i]; }, own.count);
    }
    const bool far = root.z == lift::kFar;
    if (own.index == 0 && lane() == 0) {
      const RaggedRow& r = storage.rows[own.row];
      if (!far || goes_to_queue(r)) atomicAnd(&left, ~(1U << (bit + own.row)));
    }
    if (far) return;
    const auto put = [&](const auto& result) {
      char* y = p[Slot::y].data + own.at;
      if (!kOnVectors || own.full()) {
        storage.values[warp].collect(y, own.head, own.end, result);
        if (kCut && !own.full()) hide(y + own.end * kSize, own.head + room_at(own.index) - own.end);
        return;
      }
      storage.values[warp].collect_and_hide(y, own.end, room_at(own.index), storage.masks, none(), result);
    };
    if constexpr (kLog) {
      const fold::LogNormaliser<float> norm(lift::state_of(root), fold::make_scale<float>(p.scale));
      put([&](float x) { return fast_log_probability(norm, x); });
    } else {
      // As lift::near_multiplier, of terms that are at least 2^-62.
      const int reciprocal = __float_as_int(reciprocal_of_normal(root.d));
      const float multiplier = S::mul(__int_as_float(reciprocal + ((z - root.z) << 23)), unit);
      // Terms are at least 2^-62: so are none of the results that small.
      if (multiplier >= 0x1p-60F) return put([&](float t) { return S::mul(t, multiplier); });
      put([&](float t) { return fold::Normaliser<float>::probability(t, multiplier); });
    }
  }
};

/// A block takes `rows` neighbouring rows at a time, a part of kMarked, of those that are left. Its lanes look ahead
/// for parts of which something is left.
template <class E, RaggedLeaves kLeaves, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, kRaggedTileWarps / kWarps)
    ragged_tiles(const __grid_constant__ RowProblem p, const __grid_constant__ RowResults to, unsigned* left,
                 const __grid_constant__ RaggedQueue queue, int rows) {
  begin_in_order();
  using Storage = TileStorage<E, kLeaves, kWarps>;
  extern __shared__ __align__(16) char tile_memory[];
  Storage& storage = *reinterpret_cast<Storage*>(tile_memory);
  storage.make();
  int turn = 0;
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
      RaggedTiles<E, kLeaves, kWarps>(p, &to, nullptr, queue, storage, first, todo).run(turn++, word, bit);
    }
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
