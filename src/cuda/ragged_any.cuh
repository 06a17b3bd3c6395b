// Ragged rows of any kind: those with NaN or infinities, with elements far apart or a scale of 0.
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
struct AnyStorage {
  using Tree = lift::TreeBuilder<fold::LogSumExp<float>>;
  static constexpr int kMostWarps = 8;
  lift::Node nodes[kMostWarps];
  double far[kMostWarps];
  fold::LogSumExp<float>::State row;
  alignas(Tree) char memory[sizeof(Tree)];  ///< shared memory has no constructors

  __device__ __forceinline__ Tree& tree() { return *reinterpret_cast<Tree*>(memory); }
  __device__ __forceinline__ void plant() { new (memory) Tree; }
};

/// A team of a warp, or of a block's 8, on one row.
template <class E, RaggedLeaves kLeaves>
struct AnyRow {
  using Lse = fold::LogSumExp<float>;
  using Fold = lift::WarpFold<16 / static_cast<int>(sizeof(E))>;
  using Elements = Tile<E, 32>;
  static constexpr bool kLog = kLeaves == RaggedLeaves::log_softmax;
  static constexpr int kSize = static_cast<int>(sizeof(E));

  const RowProblem& p;
  const Row& r;
  AnyStorage& storage;
  fold::Scale<float> scale;
  lift::Factor factor;
  int warps, warp, lane;

  __device__ __forceinline__ AnyRow(const RowProblem& p_, const Row& r_, AnyStorage& storage_, int warps_)
      : p(p_),
        r(r_),
        storage(storage_),
        scale(fold::make_scale<float>(r_.scale)),
        factor(scale.c),
        warps(warps_),
        warp(warps_ == 1 ? 0 : static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void meet() const {
    if (warps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  __device__ __forceinline__ int length_of(std::int64_t chunk) const {
    return static_cast<int>(clamp(r.length - chunk * lift::kChunk, lift::kChunk));
  }
  __device__ __forceinline__ void load(float (&v)[lift::kPerLane], std::int64_t chunk) const {
    const char* x = r.x + chunk * (lift::kChunk * kSize);
    const Elements tile(x);
    tile.load(v, x, nullptr, 0, length_of(chunk), factor);
  }

  /// The node of this round's chunks: every thread gets it.
  __device__ __forceinline__ typename Lse::State merge_round(const typename Fold::Folded& own) {
    if (warps == 1) return own.state;
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
        warps);
  }

  /// The row's state. The terms (log_softmax: elements) of a row of one round stay in v.
  __device__ __forceinline__ typename Lse::State fold(float (&v)[lift::kPerLane], typename Fold::Folded& own,
                                                      std::int64_t chunks) {
    const bool plants = warp == 0 && lane == 0 && chunks > warps;
    if (plants) storage.plant();
    typename Lse::State node;
#pragma unroll 1
    for (std::int64_t first = 0; first == 0 || first < chunks; first += warps) {
      own = fold_chunk(v, first + warp);
      node = merge_round(own);
      if (plants) storage.tree().push(node, __ffs(warps) - 1);  // a round's node is that of as many chunks
      if (chunks > warps) meet();
    }
    if (chunks <= warps) return node;
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
      fill<E, kLog>(y, nullptr, 0, lane, 32, length_of(chunk), n, constant_of<kLog>(row, p.empty));
      return;
    }
    finish<kLog>(v, dense, factor, multiplier, row, scale);
    tile.store(y, n, v);
  }

  /// Returns the row's state, and writes the results that are of its shape.
  __device__ __forceinline__ typename Lse::State run() {
    const std::int64_t chunks = lift::chunk_count(r.length), written = lift::chunk_count(r.n);
    float v[lift::kPerLane];
    typename Fold::Folded own;
    const auto row = fold(v, own, chunks);
    if constexpr (kLeaves != RaggedLeaves::row) {
      const fold::Normaliser<float> norm(row);
      const bool held = chunks <= warps && written <= warps;
      const bool dense = held && own.dense;
      float multiplier = 0.F;
      if (held && norm.regular) multiplier = fold::Scalar<float>::mul(norm.multiplier(own.state.m), own.unit);
        // From the end: what the first read has left in the caches is the row's end.
#pragma unroll 1
      for (std::int64_t first = (written - 1) / warps * warps; first >= 0; first -= warps) {
        if (!held) {
          load(v, first + warp);
          float unit = 1.F;
          if (!kLog && norm.regular) unit = terms_in_frame(v, factor.c, row.m);
          multiplier = fold::Scalar<float>::mul(norm.reciprocal, unit);
        }
        write(v, first + warp, dense, multiplier, row);
      }
    }
    return row;
  }
};

/// By all threads of a team: a warp, or a block of AnyStorage::kMostWarps. A function of its own, so that other rows do
/// not pay for it.
template <class E, RaggedLeaves kLeaves>
__device__ __noinline__ fold::LogSumExp<float>::State any_row(const RowProblem& p, std::int64_t row,
                                                              AnyStorage& storage, int warps) {
  const Row r = row_at(p, RowPlace(p, row));
  return AnyRow<E, kLeaves>(p, r, storage, warps).run();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
