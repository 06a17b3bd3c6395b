// Ragged rows, whose lengths only the device knows: the launch is made for their mean, and every length is right.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/softmax_rows.cuh"

#include <new>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// What leaves: results of x's shape, or one a row (logsumexp, state).
enum class RaggedLeaves { softmax, log_softmax, row };

/// Elements that a team of warps holds at a time, and the tree that grows over them from a row's start.
struct TeamStorage {
  using Tree = lift::TreeBuilder<fold::LogSumExp<float>>;
  static constexpr int kMostWarps = 8;
  lift::Node nodes[kMostWarps];
  double far[kMostWarps];
  fold::LogSumExp<float>::State row;
  alignas(Tree) char memory[sizeof(Tree)];  ///< shared memory has no constructors

  __device__ __forceinline__ Tree& tree() { return *reinterpret_cast<Tree*>(memory); }
  __device__ __forceinline__ void plant() { new (memory) Tree; }
};

/// A team of kWarps warps (a warp, or a block) on one row after the other.
template <class E, RaggedLeaves kLeaves, int kWarps>
struct RaggedTeam {
  using Lse = fold::LogSumExp<float>;
  using Fold = lift::WarpFold<16 / static_cast<int>(sizeof(E))>;
  using Elements = Tile<E, 32>;
  static constexpr bool kLog = kLeaves == RaggedLeaves::log_softmax;
  static constexpr int kSize = static_cast<int>(sizeof(E));

  const RowProblem& p;
  const Row& r;
  TeamStorage& storage;
  fold::Scale<float> scale;
  lift::Factor factor;
  int warp, lane;

  __device__ __forceinline__ RaggedTeam(const RowProblem& p_, const Row& r_, TeamStorage& storage_)
      : p(p_),
        r(r_),
        storage(storage_),
        scale(fold::make_scale<float>(r_.scale)),
        factor(scale.c),
        warp(kWarps == 1 ? 0 : static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  static __device__ __forceinline__ void meet() {
    if constexpr (kWarps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
  static constexpr int kLevel = kWarps == 1 ? 0 : 3;  ///< of a round's node in the tree
  static_assert(1 << kLevel == kWarps);

  __device__ __forceinline__ int length_of(std::int64_t chunk) const {
    return static_cast<int>(clamp(r.length - chunk * lift::kChunk, lift::kChunk));
  }
  __device__ __forceinline__ const char* mask_of(std::int64_t chunk) const {
    return r.mask == nullptr ? nullptr : r.mask + chunk * lift::kChunk * p[Slot::mask].axis_stride;
  }
  __device__ __forceinline__ void load(float (&v)[lift::kPerLane], std::int64_t chunk) const {
    const char* x = r.x + chunk * (lift::kChunk * kSize);
    const Elements tile(x);
    tile.load(v, x, mask_of(chunk), p[Slot::mask].axis_stride, length_of(chunk), factor);
  }

  /// The node of this round's chunks: every thread gets it.
  __device__ __forceinline__ typename Lse::State merge_round(const typename Fold::Folded& own) {
    if constexpr (kWarps == 1) return own.state;
    if (lane == 0) {
      const bool is_far = own.node.z == lift::kFar;
      storage.nodes[warp] = {own.node.z, is_far ? own.state.d : own.node.d};
      if (is_far) storage.far[warp] = own.state.m;
    }
    meet();
    return lift::merge_states(
        [&](int i) {
          const lift::Node& node = storage.nodes[i];
          return node.z == lift::kFar ? typename Lse::State{storage.far[i], node.d} : lift::state_of(node);
        },
        kWarps);
  }

  /// The row's state. The terms (log_softmax: elements) of a row of one round stay in v.
  __device__ __forceinline__ typename Lse::State fold(float (&v)[lift::kPerLane], typename Fold::Folded& own,
                                                      std::int64_t chunks) {
    const bool plants = warp == 0 && lane == 0 && chunks > kWarps;
    if (plants) storage.plant();
    typename Lse::State node;
#pragma unroll 1
    for (std::int64_t first = 0; first == 0 || first < chunks; first += kWarps) {
      own = fold_chunk(v, first + warp);
      node = merge_round(own);
      if (plants) storage.tree().push(node, kLevel);
      if (chunks > kWarps) meet();
    }
    if (chunks <= kWarps) return node;
    if (plants) storage.row = storage.tree().root();
    meet();
    return storage.row;
  }
  __device__ __forceinline__ typename Fold::Folded fold_chunk(float (&v)[lift::kPerLane], std::int64_t chunk) {
    load(v, chunk);
    if constexpr (kLog) {
      return Fold::reduce(v, factor.c);
    } else {
      return Fold::terms(v, factor.c);
    }
  }

  __device__ __forceinline__ void write(float (&v)[lift::kPerLane], std::int64_t chunk, bool dense, float multiplier,
                                        const typename Lse::State& row) {
    const int n = static_cast<int>(clamp(r.n - chunk * lift::kChunk, lift::kChunk));
    if (n == 0) return;
    char* y = r.y + chunk * (lift::kChunk * kSize);
    const Elements tile(y);
    if (row.m == fold::infinity<double>() || !(row.d > 0.F)) {
      fill<E, kLog>(y, mask_of(chunk), p[Slot::mask].axis_stride, lane, 32, length_of(chunk), n,
                    constant_of<kLog>(row, p.empty));
      return;
    }
    finish<kLog>(v, dense, factor, multiplier, row, scale);
    tile.store(y, n, v);
  }

  __device__ __forceinline__ void run(std::int64_t row_index) {
    const std::int64_t chunks = lift::chunk_count(r.length), written = lift::chunk_count(r.n);
    float v[lift::kPerLane];
    typename Fold::Folded own;
    const auto row = fold(v, own, chunks);
    if constexpr (kLeaves == RaggedLeaves::row) {
      if (warp == 0 && lane == 0) write_row<float>(p, row_index, row);
      return;
    } else {
      const fold::Normaliser<float> norm(row);
      const bool held = chunks <= kWarps && written <= kWarps;
      const bool dense = held && own.dense;
      float multiplier = 0.F;
      if (held && norm.regular) multiplier = fold::Scalar<float>::mul(norm.multiplier(own.state.m), own.unit);
        // From the end: what the first read has left in the caches is the row's end.
#pragma unroll 1
      for (std::int64_t first = (written - 1) / kWarps * kWarps; first >= 0; first -= kWarps) {
        if (!held) {
          load(v, first + warp);
          float unit = 1.F;
          if (!kLog && norm.regular) unit = terms_in_frame(v, factor.c, row.m);
          multiplier = fold::Scalar<float>::mul(norm.reciprocal, unit);
        }
        write(v, first + warp, dense, multiplier, row);
      }
    }
  }
};

/// Rows of up to 32 * kLanes elements by groups of lanes, longer ones by the whole warp, one after the other.
template <class E, RaggedLeaves kLeaves, int kLanes>
__global__ void __launch_bounds__(256, 2) ragged_warp_rows(const __grid_constant__ RowProblem p) {
  __shared__ TeamStorage storage[8];
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  const std::int64_t row = min(group, p.rows - 1);
  bool by_warp = group < p.rows;
  if constexpr (kLanes < 32 && kLeaves != RaggedLeaves::row) {
    Row r = row_at(p, RowPlace(p, row));
    const bool by_group = by_warp && r.n <= 32 * kLanes;
    if (!by_group) r.n = r.length = 0;
    if (__any_sync(lift::kWholeWarp, by_group))
      softmax_group<E, kLanes, kLeaves == RaggedLeaves::log_softmax>(p, r, by_group);
    by_warp = by_warp && !by_group;
  }
  unsigned rest = __ballot_sync(lift::kWholeWarp, by_warp && threadIdx.x % kLanes == 0);
  while (rest != 0) {
    const int lane = __ffs(static_cast<int>(rest)) - 1;
    rest &= rest - 1;
    const std::int64_t one = __shfl_sync(lift::kWholeWarp, row, lane);
    const Row r = row_at(p, RowPlace(p, one));
    RaggedTeam<E, kLeaves, 1>(p, r, storage[threadIdx.x / 32]).run(one);
    __syncwarp();
  }
}

/// A block a row.
template <class E, RaggedLeaves kLeaves>
__global__ void __launch_bounds__(256, 2) ragged_block_row(const __grid_constant__ RowProblem p) {
  __shared__ TeamStorage storage;
  const std::int64_t row = blockIdx.x;
  const Row r = row_at(p, RowPlace(p, row));
  RaggedTeam<E, kLeaves, 8>(p, r, storage).run(row);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
