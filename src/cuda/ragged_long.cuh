// Ragged rows that are too long for a block, or long and few. Whoever finds one puts it on a list, in groups of 32
// chunks; two kernels whose blocks share the groups follow: from elements to a state a group, and from the states to
// results, with a second read. Lengths stay on the device.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/in_order.cuh"
#include "cuda/ragged_team.cuh"
#include "cuda/short_tile.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The longest row that a block takes. Measured: what it reads a second time is still in the L2 cache.
inline constexpr std::int64_t kBlockElements = 64 * lift::kChunk;

/// The list, in the workspace. State: of a group.
template <class State_>
struct RaggedListOf {
  using State = State_;
  static constexpr int kLevel = 5, kGroup = 1 << kLevel;  ///< chunks of a group

  struct Group {
    std::int64_t row, first;  ///< first: the row's first group in the list; row -1: no row's
  };
  Group* groups;
  State* states;              ///< a group
  unsigned long long* taken;  ///< groups, also such as had no room
  long long capacity;         ///< 0: no row is to be on it

  /// Groups of rows that do not overlap, of lengths from RaggedQueue::kLong on.
  static constexpr long long most_groups(std::int64_t elements) {
    static_assert(2 * RaggedQueue::kLong > kGroup * lift::kChunk);
    return elements <= kBlockElements ? 0 : 2 * elements / (kGroup * lift::kChunk);
  }
  static __device__ __forceinline__ std::int64_t groups_of(std::int64_t n) {
    return (lift::chunk_count(n) + kGroup - 1) >> kLevel;
  }
  /// The chunks of its row, of n elements, that the at-th group has. first_group: the row's in the list.
  struct Chunks {
    std::int64_t first;
    int count;
  };
  static __device__ __forceinline__ Chunks chunks_of(std::int64_t first_group, long long at, std::int64_t n) {
    const std::int64_t first = (at - first_group) << kLevel;
    return {first, static_cast<int>(min(lift::chunk_count(n) - first, std::int64_t{kGroup}))};
  }
  __device__ __forceinline__ long long count() const { return min(static_cast<long long>(*taken), capacity); }
  __device__ __forceinline__ Group group(long long at) const { return groups[at]; }

  /// By all threads of a block. False if there is no room, as with offsets that lie.
  __device__ __forceinline__ bool append(std::int64_t row, std::int64_t n) const {
    __shared__ long long first;
    const std::int64_t groups = groups_of(n);
    __syncthreads();
    if (threadIdx.x == 0) first = static_cast<long long>(atomicAdd(taken, static_cast<unsigned long long>(groups)));
    __syncthreads();
    const bool fits = first + groups <= capacity;
    for (long long i = threadIdx.x; i < groups && first + i < capacity; i += blockDim.x)
      this->groups[first + i] = {fits ? row : -1, first};
    return fits;
  }
};

using RaggedList = RaggedListOf<fold::LogSumExp<float>::State>;

/// A group of chunks of a row from the list, and what a block must know of the row.
template <class E>
struct RaggedGroup {
  using State = RaggedList::State;
  using Tile = ShortTile<E, 32>;
  static constexpr std::int64_t kSize = sizeof(E);

  const RowProblem& p;
  RaggedRow r;
  std::int64_t first;  ///< of its chunks
  int count;

  __device__ __forceinline__ RaggedGroup(const RowProblem& p_, const RaggedList& list, long long at)
      : p(p_), r(ragged_row(p_, list.groups[at].row)) {
    const RaggedList::Chunks its = RaggedList::chunks_of(list.groups[at].first, at, r.n);
    first = its.first, count = its.count;
  }
  __device__ __forceinline__ RaggedView<E> view() const { return {p, r}; }
  __device__ __forceinline__ int length_of(std::int64_t chunk) const {
    return static_cast<int>(min(r.n - chunk * lift::kChunk, std::int64_t{lift::kChunk}));
  }
  /// Whether a chunk's elements can be read as vectors.
  __device__ __forceinline__ bool is_plain(std::int64_t chunk, const lift::Factor& factor) const {
    const char* x = view().x(chunk * lift::kChunk);
    return factor.plain && Tile(x, length_of(chunk)).inside(x, extent_of<E>(p));
  }

  __device__ __forceinline__ State state(std::int64_t chunk, const lift::Factor& factor) const {
    if (is_plain(chunk, factor)) {
      const char* x = view().x(chunk * lift::kChunk);
      const Tile tile(x, length_of(chunk));
      float v[lift::kPerLane];
      uint4 raw[Tile::kVectors];
      typename Tile::Fold::Folded own;
      tile.gather(raw, x);
      if (tile.template fold<false>(v, own, raw, factor.c)) return own.state;
    }
    float v[lift::kPerLane];
    return load_any(v, chunk, factor, true);
  }
  /// The elements of a chunk of any kind, or its terms and state.
  __device__ __noinline__ State load_any(float (&v)[lift::kPerLane], std::int64_t chunk, const lift::Factor& factor,
                                         bool terms) const {
    const char* x = view().x(chunk * lift::kChunk);
    cuda::Tile<E, 32>(x).load(v, x, nullptr, 0, length_of(chunk), factor);
    if (!terms) return {};
    return Tile::Fold::terms(v, factor.c).state;
  }

  /// The results of a chunk of a row with this state.
  __device__ __forceinline__ void write(std::int64_t chunk, const lift::Factor& factor, const State& row) const {
    const fold::Normaliser<float> norm(row);
    if (!norm.regular || !fold::LogSumExp<float>::is_fast(row.m) || !is_plain(chunk, factor))
      return write_any(chunk, factor, row);
    const char* x = view().x(chunk * lift::kChunk);
    char* y = view().y(chunk * lift::kChunk);
    const Tile tile(x, length_of(chunk));
    float v[lift::kPerLane];
    uint4 raw[Tile::kVectors];
    tile.gather(raw, x);
#pragma unroll
    for (int j = 0; j < Tile::kVectors; ++j) Packed<E>::unpack(raw[j], v + j * Tile::kWidth);
    if (p.op == Op::log_softmax) {
      finish<true>(v, false, factor, 1.F, row, view().scale());
      return Tile(y, tile.n).template put<true>(y, tile.n, v);
    }
    const lift::FrameTerms terms(factor.c, static_cast<float>(row.m));
    const float multiplier = fold::Scalar<float>::mul(norm.reciprocal, terms.unit);
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) v[i] = terms.template term<true>(v[i]);
    finish<false>(v, false, factor, multiplier, row, view().scale());
    Tile(y, tile.n).template put<false>(y, tile.n, v);
  }
  __device__ __noinline__ void write_any(std::int64_t chunk, const lift::Factor& factor, const State& row) const {
    const fold::Normaliser<float> norm(row);
    char* y = view().y(chunk * lift::kChunk);
    const int n = length_of(chunk), lane = static_cast<int>(threadIdx.x) % 32;
    const bool log = p.op == Op::log_softmax;
    if (!norm.regular) {
      if (log) return fill<E, true>(y, nullptr, 0, lane, 32, n, n, constant_of<true>(row, p.empty));
      return fill<E, false>(y, nullptr, 0, lane, 32, n, n, constant_of<false>(row, p.empty));
    }
    float v[lift::kPerLane];
    load_any(v, chunk, factor, false);
    if (log) {
      finish<true>(v, false, factor, 1.F, row, view().scale());
    } else {
      const float unit = terms_in_frame(v, factor.c, row.m);
      finish<false>(v, false, factor, fold::Scalar<float>::mul(norm.reciprocal, unit), row, view().scale());
    }
    cuda::Tile<E, 32>(y).store(y, n, v);
  }
};

/// From elements to the states of groups.
template <class E>
__global__ void __launch_bounds__(32 * kRaggedWarps, 3)
    ragged_long_fold(const __grid_constant__ RowProblem p, const __grid_constant__ RaggedList list) {
  begin_in_order();
  using State = RaggedList::State;
  __shared__ State states[RaggedList::kGroup];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const lift::Factor common(fold::make_scale<float>(p.scale).c);
#pragma unroll 1
  for (long long at = blockIdx.x; at < list.count(); at += gridDim.x) {
    if (list.groups[at].row < 0) continue;
    const RaggedGroup<E> group(p, list, at);
#pragma unroll 1
    for (int i = warp; i < group.count; i += kRaggedWarps) {
      const State own = group.state(group.first + i, common);
      if (lane == 0) states[i] = own;
    }
    __syncthreads();
    if (warp == 0) {
      const State all = lift::merge_states([&](int i) { return states[i]; }, group.count);
      if (lane == 0) list.states[at] = all;
    }
    __syncthreads();
  }
}

/// By a warp: the state of a row from its groups' states.
__device__ __forceinline__ RaggedList::State state_of_groups(const RaggedList::State* states, std::int64_t count) {
  constexpr int kRun = 256, kRunLevel = RaggedList::kLevel + 8;
  if (count <= kRun) return lift::merge_states([&](int i) { return states[i]; }, static_cast<int>(count));
  lift::TreeBuilder<fold::LogSumExp<float>> tree;
#pragma unroll 1
  for (std::int64_t i = 0; i < count; i += kRun) {
    const auto run = states + i;
    tree.push(lift::merge_states([&](int k) { return run[k]; }, static_cast<int>(min(count - i, std::int64_t{kRun}))),
              kRunLevel);
  }
  return tree.root();
}

/// From the states to results of x's shape, or one a row. From the end: what the first read has left in the caches is
/// that.
template <class E>
__global__ void __launch_bounds__(32 * kRaggedWarps, 3)
    ragged_long_write(const __grid_constant__ RowProblem p, const __grid_constant__ RaggedList list) {
  begin_in_order();
  using State = RaggedList::State;
  __shared__ State row;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const lift::Factor common(fold::make_scale<float>(p.scale).c);
  const bool one_a_row = p.op != Op::softmax && p.op != Op::log_softmax;
  std::int64_t known = -1;  // whose state is in `row`
#pragma unroll 1
  for (long long at = list.count() - 1 - blockIdx.x; at >= 0; at -= gridDim.x) {
    const RaggedList::Group its = list.groups[at];
    if (its.row < 0 || (one_a_row && at != its.first)) continue;
    const RaggedGroup<E> group(p, list, at);
    if (its.row != known) {
      __syncthreads();
      if (warp == 0) {
        const State all = state_of_groups(list.states + its.first, RaggedList::groups_of(group.r.n));
        if (threadIdx.x == 0) row = all;
      }
      __syncthreads();
      known = its.row;
    }
    if (one_a_row) {
      if (threadIdx.x == 0) write_row<float>(p, its.row, row);
      continue;
    }
#pragma unroll 1
    for (int i = group.count - 1 - warp; i >= 0; i -= kRaggedWarps) group.write(group.first + i, common, row);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
