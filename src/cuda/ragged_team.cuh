// A ragged row by a team: a few lanes, a warp, or a block. Rows that lie as most do, read once as far as they fit.
#pragma once

#include "cuda/cut_tile.cuh"
#include "cuda/ragged_any.cuh"
#include "cuda/ragged_queue.cuh"
#include "cuda/ragged_stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Warps of a block, and blocks of a processor: with more, vectors and terms would not stay in registers.
inline constexpr int kRaggedWarps = 8, kRaggedBlocks = 2;
/// Chunks of a row that wait in shared memory for its sum, a warp; one more waits in registers.
inline constexpr int kParked = 2;
/// The longest row that a warp takes alone.
inline constexpr int kWarpElements = (kParked + 1) * lift::kChunk;

/// Rows of a word of marks, in which kernels leave rows to those behind them.
inline constexpr int kMarked = 32;

/// What is kept of a chunk's fold until its row's sum is known.
struct ChunkKept {
  int z;  ///< of its node
  float unit;
};

/// A warp's parked chunks: terms, or elements of log_softmax.
struct RaggedParking {
  float4 values[kParked][lift::kPerLane / 4][32];
  ChunkKept kept[kParked];

  __device__ __forceinline__ void park(int slot, const float (&v)[lift::kPerLane], const ChunkKept& of) {
#pragma unroll
    for (int i = 0; i < lift::kPerLane / 4; ++i)
      values[slot][i][threadIdx.x % 32] = {v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]};
    __syncwarp();  // all have fetched what was there
    if (threadIdx.x % 32 == 0) kept[slot] = of;
  }
  /// Behind a barrier that the warp's lanes have met at since it parked.
  __device__ __forceinline__ ChunkKept fetch(int slot, float (&v)[lift::kPerLane]) const {
#pragma unroll
    for (int i = 0; i < lift::kPerLane / 4; ++i) {
      const float4 a = values[slot][i][threadIdx.x % 32];
      v[4 * i] = a.x, v[4 * i + 1] = a.y, v[4 * i + 2] = a.z, v[4 * i + 3] = a.w;
    }
    return kept[slot];
  }
};

/// What a team of warps shares: the nodes of up to kNodes chunks, and the tree that grows over them.
template <int kNodes>
struct TeamStorage {
  using Tree = lift::TreeBuilder<fold::LogSumExp<float>>;
  lift::Node nodes[kNodes];
  lift::Node row;
  alignas(Tree) char memory[sizeof(Tree)];  ///< shared memory has no constructors

  __device__ __forceinline__ Tree& tree() { return *reinterpret_cast<Tree*>(memory); }
  __device__ __forceinline__ void plant() { new (memory) Tree; }
  __device__ __forceinline__ lift::Node merge(int count) const {
    return lift::merge_some([&](int i) { return nodes[i]; }, count);
  }
};

/// The memory of x, of elements E.
template <class E>
SOFTFOLD_HD Extent extent_of(const RowProblem& p) {
  const char* x = p[Slot::x].data;
  return {x, x + p.ragged_elements * static_cast<std::int64_t>(sizeof(E))};
}

/// A row: few words, for registers are short.
struct RaggedRow {
  std::int64_t index, begin, n;
};

/// What an offset says is clamped, so that no memory outside x is touched.
__device__ __forceinline__ std::int64_t offset_at(const RowProblem& p, const char* at) {
  return clamp(integer_at(p[Slot::offsets].dtype, at), p.ragged_elements);
}
__device__ __forceinline__ RaggedRow ragged_row(const RowProblem& p, std::int64_t row) {
  const Operand& o = p[Slot::offsets];
  const char* at = o.data + row * o.strides[0];
  const std::int64_t begin = offset_at(p, at), end = offset_at(p, at + o.strides[0]);
  return {row, begin, max(end - begin, std::int64_t{0})};
}

/// Its operands.
template <class E>
struct RaggedView {
  const RowProblem& p;
  const RaggedRow& r;
  static constexpr std::int64_t kSize = sizeof(E);

  __device__ __forceinline__ const char* x(std::int64_t i) const { return p[Slot::x].data + (r.begin + i) * kSize; }
  __device__ __forceinline__ char* y(std::int64_t i) const { return p[Slot::y].data + (r.begin + i) * kSize; }
  __device__ __forceinline__ fold::Scale<float> scale() const { return fold::make_scale<float>(p.scale); }
};

/// By one lane: asks for whole vectors to be brought to the L2 cache.
__device__ __forceinline__ void fetch_ahead(const char* x, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(x), "r"(bytes) : "memory");
}
/// The same of up to `most` of a row's elements from the given one on.
template <class E>
__device__ __forceinline__ void fetch_ahead(const RowProblem& p, const RaggedRow& r, std::int64_t from,
                                            int most = kWarpElements) {
  if (from >= r.n) return;
  const char* x = p[Slot::x].data;
  const auto whole = [](const char* at) { return reinterpret_cast<std::uintptr_t>(at) & ~std::uintptr_t{15}; };
  const std::uintptr_t begin = whole(x + (r.begin + from) * static_cast<std::int64_t>(sizeof(E)) + 15),
                       end = whole(x + (r.begin + min(r.n, from + most)) * static_cast<std::int64_t>(sizeof(E)));
  if (begin < end) fetch_ahead(reinterpret_cast<const char*>(begin), static_cast<int>(end - begin));
}

/// A team of kWarps warps (a warp, or a block) on one row, a chunk a warp at a time.
template <class E, RaggedLeaves kLeaves, int kWarps>
struct RaggedTeam {
  using Lse = fold::LogSumExp<float>;
  using S = fold::Scalar<float>;
  using Cut = CutTile<E, 32>;
  static constexpr int kNodes = kWarps == 1 ? kParked + 1 : 256, kNodesLevel = 8;
  using Storage = TeamStorage<kNodes>;
  static constexpr int kNearest = 4;  ///< 60 below their chunk's frame, and that 60 below its node's: 124 of 125
  static constexpr int kAhead = 2;    ///< a warp's chunks on their way to the L2 cache
  static constexpr bool kLog = kLeaves == RaggedLeaves::log_softmax;

  const RowProblem& p;
  const RaggedRow& r;
  Storage& storage;
  RaggedParking& parking;
  float c;
  int warp, lane;

  __device__ __forceinline__ RaggedTeam(const RowProblem& p_, const RaggedRow& r_, float c_, Storage& storage_,
                                        RaggedParking& parking_)
      : p(p_),
        r(r_),
        storage(storage_),
        parking(parking_),
        c(c_),
        warp(kWarps == 1 ? 0 : static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  static __device__ __forceinline__ void meet() {
    if constexpr (kWarps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
  __device__ __forceinline__ RaggedView<E> view() const { return {p, r}; }
  __device__ __forceinline__ int length_of(std::int64_t chunk) const {
    return static_cast<int>(min(r.n - chunk * lift::kChunk, std::int64_t{lift::kChunk}));
  }

  /// A chunk's node, kFar for what any_row must take. Its terms (log_softmax: elements) stay in v.
  __device__ __forceinline__ lift::Node fold_chunk(float (&v)[lift::kPerLane], float& unit, std::int64_t chunk) const {
    const char* first = view().x(chunk * lift::kChunk);
    const Cut tile(first, length_of(chunk));
    if (!tile.inside(first, extent_of<E>(p))) return {lift::kFar, 0.F};
    uint4 raw[Cut::kVectors];
    typename Cut::Fold::Folded own;
    tile.template gather<kLeaves != RaggedLeaves::softmax>(raw, first);
    if (!tile.template fold<kLog>(v, own, raw, c)) return {lift::kFar, 0.F};
    unit = own.unit;
    return own.node;
  }

  /// The row's node, kFar for what any_row must take. Of the warp's chunks the last stays in v, those before it are
  /// parked, as far as there is room.
  __device__ __forceinline__ lift::Node fold(float (&v)[lift::kPerLane], ChunkKept& kept, std::int64_t chunks) const {
    const bool plants = kWarps > 1 && threadIdx.x == 0 && chunks > kNodes;
    if (plants) storage.plant();
    int high = lift::kNone, low = lift::kFar;  // of the planter: its nodes' extremes
    int done = 0;
#pragma unroll 1
    for (std::int64_t base = 0; base < chunks; base += kNodes) {
      const int count = static_cast<int>(min(chunks - base, std::int64_t{kNodes}));
#pragma unroll 1
      for (int i = warp; i < count; i += kWarps, ++done) {
        if (kLeaves != RaggedLeaves::row && done > 0) parking.park((done - 1) % kParked, v, kept);
        if (kWarps > 1 && lane == 0) fetch_ahead<E>(p, r, (base + i + kAhead * kWarps) * lift::kChunk, lift::kChunk);
        const lift::Node own = fold_chunk(v, kept.unit, base + i);
        kept.z = own.z;
        if (kWarps == 1 && chunks == 1) return own;
        if (lane == 0) storage.nodes[i] = own;
      }
      meet();
      if (chunks <= kNodes) return storage.merge(count);
      if (warp == 0) {
        const lift::Node node = storage.merge(count);
        high = max(high, node.z), low = min(low, node.z);
        if (plants && high != lift::kFar) storage.tree().push(lift::state_of(node), kNodesLevel);
      }
      meet();
    }
    // No term may lie so far below the row's frame, which may lie above its own, that it would be flushed.
    if (plants) {
      const bool near = high != lift::kFar && high - low <= kNearest;
      storage.row = near ? lift::node_of(storage.tree().root()) : lift::Node{lift::kFar, 0.F};
    }
    meet();
    return storage.row;
  }

  /// A chunk that did not stay: once more, in its row's frame.
  __device__ __forceinline__ float again(float (&v)[lift::kPerLane], std::int64_t chunk, float m) const {
    const char* first = view().x(chunk * lift::kChunk);
    uint4 raw[Cut::kVectors];
    Cut(first, length_of(chunk)).template gather<false>(raw, first);
    const lift::FrameTerms terms(c, m);
#pragma unroll
    for (int j = 0; j < Cut::kVectors; ++j) Packed<E>::unpack(raw[j], v + j * Cut::kWidth);
    float unit = 1.F;
    if constexpr (!kLog) {
      unit = terms.unit;
#pragma unroll
      for (int i = 0; i < lift::kPerLane; ++i) v[i] = terms.template term<true>(v[i]);
    }
    return unit;
  }

  /// The results of a row with this state, from its end: what the first read has left in the caches is that.
  __device__ __forceinline__ void write(float (&v)[lift::kPerLane], ChunkKept& kept, std::int64_t chunks,
                                        const lift::Node& root) const {
    const typename Lse::State row = lift::state_of(root);
    const float reciprocal = S::div(1.F, row.d);
    const int mine = static_cast<int>((chunks - warp + kWarps - 1) / kWarps);
#pragma unroll 1
    for (int i = mine - 1; i >= 0; --i) {
      const std::int64_t chunk = warp + static_cast<std::int64_t>(i) * kWarps;
      const bool stayed = i >= mine - 1 - kParked;
      float multiplier = reciprocal;
      if (stayed) {
        if (i < mine - 1) kept = parking.fetch(i % kParked, v);
        const auto below = static_cast<float>(kept.z - root.z);
        multiplier = S::mul(S::mul(reciprocal, S::times_power_of_two(1.F, below)), kept.unit);
      } else {
        multiplier = S::mul(reciprocal, again(v, chunk, static_cast<float>(row.m)));
      }
      finish<kLog>(v, stayed, lift::Factor(c), multiplier, row, view().scale());
      char* y = view().y(chunk * lift::kChunk);
      Cut(y, length_of(chunk)).store(y, v);
    }
  }

  /// Folds the row and writes its results, if it has any of its shape. A kFar node: nothing is written.
  __device__ __forceinline__ lift::Node run() const {
    const std::int64_t chunks = lift::chunk_count(r.n);
    float v[lift::kPerLane];
    ChunkKept kept{};
    const lift::Node row = fold(v, kept, chunks);
    if (kLeaves != RaggedLeaves::row && row.z != lift::kFar) write(v, kept, chunks, row);
    return row;
  }
};

/// Rows of at most CutTile::kLongest elements, but not none, by groups of lanes. Returns their nodes, kFar for what
/// any_row must take; groups without a row of their own take part in another and write nothing.
template <class E, RaggedLeaves kLeaves, int kLanes>
__device__ __forceinline__ lift::Node ragged_group(const RowProblem& p, const RaggedRow& r, const lift::Factor& factor,
                                                   bool writes) {
  constexpr bool kLog = kLeaves == RaggedLeaves::log_softmax;
  using Cut = CutTile<E, kLanes>;
  using S = fold::Scalar<float>;
  const RaggedView<E> view{p, r};
  const char* first = view.x(0);
  const Cut cut(first, static_cast<int>(r.n));
  if (!cut.inside(first, extent_of<E>(p))) return {lift::kFar, 0.F};
  float v[lift::kPerLane];
  typename Cut::Fold::Folded own;
  uint4 raw[Cut::kVectors];
  cut.template gather<kLeaves != RaggedLeaves::softmax>(raw, first);
  if (!cut.template fold<kLog>(v, own, raw, factor.c) || !factor.plain) return {lift::kFar, 0.F};
  if (kLeaves == RaggedLeaves::row || !writes) return own.node;
  finish<kLog>(v, true, factor, S::mul(S::div(1.F, own.state.d), own.unit), own.state, view.scale());
  cut.store(view.y(0), v);
  return own.node;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
