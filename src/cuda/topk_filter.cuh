// topk of plain rows for small k, in the same read that folds the row's state. A block takes a row, or one segment of
// it: a power of two of chunks, so that its state is a node of the row's tree.
#pragma once

#include "cuda/topk_row.cuh"
#include "cuda/topk_select.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kFilterWarps = 8, kMostSegmentChunks = 256, kMostFilterK = 256, kJoinThreads = 256;

/// How rows are cut, and where the segments' parts lie; one segment: the row is finished at once.
struct TopkShare {
  int chunks, segments;                   ///< of a segment, of a row
  fold::LogSumExp<float>::State* states;  ///< [rows][segments]
  Entry* entries;                         ///< [rows][segments][k], best first; 0 where there are fewer
  bool with_states;                       ///< someone asks for what follows from the row's state
};

/// The results of a row from its best entries, a thread an element.
__device__ __forceinline__ void put_row(const TopkProblem& p, std::int64_t row, const fold::LogSumExp<float>::State& s,
                                        const Entry* best, int taken) {
  const TopkRow<float> result(p, row, s);
  for (int j = static_cast<int>(threadIdx.x); j < p.k; j += static_cast<int>(blockDim.x)) {
    const std::int64_t index = j < taken ? static_cast<std::int64_t>(index_of(best[j])) : -1;
    int to = j;
    if (!p.sorted && j < taken) {  // by ascending index
      to = 0;
      for (int i = 0; i < taken; ++i) to += index_of(best[i]) < index_of(best[j]) ? 1 : 0;
    }
    result.put_element(to, index);
  }
  if (threadIdx.x == 0) result.put_lse();
}

/// A block's part of a row, chunk by chunk.
template <class E>
struct Segment {
  using Elements = Tile<E, 32>;
  const char* x;
  std::int64_t begin, n;  ///< of the segment in its row, of the row
  int chunks;
  Elements tile;

  __device__ __forceinline__ Segment(const TopkProblem& p, const TopkShare& share, std::int64_t row, int segment)
      : x(p[Slot::x].data + (p.outer_rank == 0 ? 0 : row * p[Slot::x].strides[0])),
        begin(static_cast<std::int64_t>(segment) * share.chunks * lift::kChunk),
        n(p.n),
        chunks(static_cast<int>(clamp((n - begin + lift::kChunk - 1) / lift::kChunk, share.chunks))),
        tile(x) {}
  __device__ __forceinline__ std::int64_t first_of(int chunk) const {
    return begin + static_cast<std::int64_t>(chunk) * lift::kChunk;
  }
  __device__ __forceinline__ int size_of(int chunk) const {
    return static_cast<int>(clamp(n - first_of(chunk), lift::kChunk));
  }
  /// The elements of a chunk, and what none of this thread's is above.
  __device__ __forceinline__ Entry load(float (&v)[lift::kPerLane], int chunk, const lift::Factor& factor,
                                        lift::Extremes& extremes) const {
    uint4 raw[Elements::kVectors];
    tile.gather(raw, x + first_of(chunk) * static_cast<std::int64_t>(sizeof(E)), size_of(chunk),
                lift::absent(factor.c));
    extremes = tile.unpack(v, raw, size_of(chunk), factor);
    return entry_of(extremes.high, static_cast<std::uint32_t>(first_of(chunk)));
  }
  /// A bit for each element that is at least `bound`; unless `exact`, also for those behind it whose value is the
  /// bound's.
  __device__ __forceinline__ unsigned reach(const float (&v)[lift::kPerLane], int chunk, Entry bound,
                                            bool exact) const {
    // Where the bound's value is NaN, or there is no bound, everything passes.
    const float least = fold::Ranked<float>{static_cast<std::uint32_t>(bound >> 32), 0}.value();
    unsigned which = 0;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) which |= v[i] < least ? 0U : 1U << i;
    which &= exist(chunk);
    if (!exact) return which;
#pragma unroll 1
    for (unsigned rest = which; rest != 0; rest &= rest - 1) {
      const int i = __ffs(static_cast<int>(rest)) - 1;
      if (entry(chunk, i) < bound) which &= ~(1U << i);
    }
    return which;
  }
  /// Element i of a chunk, from memory: registers have no index.
  __device__ __forceinline__ Entry entry(int chunk, int i) const {
    const int at = element(i);
    const auto* e = reinterpret_cast<const E*>(x) + first_of(chunk);
    return entry_of(fold::widen(e[at]), static_cast<std::uint32_t>(first_of(chunk)) + static_cast<std::uint32_t>(at));
  }

 private:
  __device__ __forceinline__ int element(int i) const {
    return tile.element(i / Elements::kWidth, i % Elements::kWidth);
  }
  __device__ __forceinline__ unsigned exist(int chunk) const {
    const int size = size_of(chunk);
    if (size == lift::kChunk) return ~0U;
    unsigned which = 0;
#pragma unroll 1
    for (int i = 0; i < lift::kPerLane; ++i) which |= element(i) < size ? 1U << i : 0U;
    return which;
  }
};

/// What none of this thread's elements of a chunk is above, and the best of them.
struct Tops {
  Entry highest, best;
};
template <class E>
__device__ __noinline__ Tops tops_of(const Segment<E>& part, int chunk, lift::Factor factor) {
  float v[lift::kPerLane];
  lift::Extremes extremes{};
  Tops r{part.load(v, chunk, factor, extremes), 0};
  // The first of those that equal the largest.
  const Entry value = r.highest & ~Entry{0xFFFFFFFFU};
  for (unsigned which = part.reach(v, chunk, value, false); which != 0; which &= which - 1)
    r.best = max(r.best, part.entry(chunk, __ffs(static_cast<int>(which)) - 1));
  return r;
}

/// The best of the first chunk of every warp set the bound; after it the warps go on by themselves. A chunk that finds
/// no room for what it has above the bound is read again when all have finished, in rounds that raise the bound.
template <class E>
__global__ void __launch_bounds__(kFilterWarps * 32, 3)
    topk_filter(const __grid_constant__ TopkProblem p, const __grid_constant__ TopkShare share, lift::Factor factor) {
  using Fold = lift::WarpFold<Tile<E, 32>::kWidth>;
  using Select = BlockSelect<lift::kPerLane>;
  using State = fold::LogSumExp<float>::State;
  extern __shared__ __align__(16) char memory[];
  __shared__ typename Select::Shared shared;
  __shared__ State nodes[kMostSegmentChunks], root;
  const int k = static_cast<int>(p.k);
  Entry* best = reinterpret_cast<Entry*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(share.segments);
  const int segment = static_cast<int>(blockIdx.x % static_cast<unsigned>(share.segments));
  const Segment<E> part(p, share, row, segment);
  if (threadIdx.x == 0) root = fold::LogSumExp<float>::identity();
  Select select(shared, best + k, k);
  unsigned again = 0;  // the warp's turns whose chunk found no room
  bool first = true;
  int from = warp, to = part.chunks;  // of the first chunk all warps' tops are compared, then all others follow
  do {
    Tops tops{0, 0};
    if (from < to) tops = tops_of(part, from, factor);
    select.make_room(tops.highest, tops.best);
#pragma unroll 1
    for (int chunk = from; chunk < to; chunk += warps) {
      float v[lift::kPerLane];
      lift::Extremes extremes{};
      const Entry highest = part.load(v, chunk, factor, extremes);
      if (__any_sync(lift::kWholeWarp, select.wants(highest))) {
        const unsigned which = part.reach(v, chunk, select.bound(), !first);
        if (!select.keep(which, [&](int i) { return part.entry(chunk, i); })) again |= 1U << (chunk / warps);
      }
      if (!first || !share.with_states) continue;
      const auto folded = Fold::terms(v, factor.c, extremes);
      if (threadIdx.x % 32 == 0) nodes[chunk] = folded.state;
    }
    first = false;
    select.recount();
    from = again != 0 ? warp + warps * (__ffs(static_cast<int>(again)) - 1) : 0;
    to = again != 0 ? from + 1 : 0;
    again &= again - 1;
  } while (__syncthreads_or(to) != 0);
  const int taken = select.finish(best);
  if (share.with_states) {
    if (warp == 0) {
      const State s = lift::merge_states([&](int i) { return nodes[i]; }, part.chunks);
      if (threadIdx.x == 0) root = s;
    }
    __syncthreads();
  }
  if (share.segments == 1) return put_row(p, row, root, best, taken);
  const std::int64_t at = row * share.segments + segment;
  for (int j = static_cast<int>(threadIdx.x); j < k; j += static_cast<int>(blockDim.x))
    share.entries[at * k + j] = j < taken ? best[j] : 0;
  if (threadIdx.x == 0) share.states[at] = root;
}

/// The best of all segments of a row, and its state.
__global__ void __launch_bounds__(kJoinThreads) inline topk_join(const __grid_constant__ TopkProblem p,
                                                                 const __grid_constant__ TopkShare share) {
  using Select = BlockSelect<1>;
  extern __shared__ __align__(16) char memory[];
  __shared__ typename Select::Shared shared;
  __shared__ fold::LogSumExp<float>::State root;
  const int k = static_cast<int>(p.k);
  Entry* best = reinterpret_cast<Entry*>(memory);
  const std::int64_t row = blockIdx.x;
  if (threadIdx.x == 0) root = fold::LogSumExp<float>::identity();
  if (share.with_states && threadIdx.x < 32) {
    const auto* nodes = share.states + row * share.segments;
    const auto s = lift::merge_blocks([&](int i) { return nodes[i]; }, share.segments);
    if (threadIdx.x == 0) root = s;
  }
  Select select(shared, best + k, k);
  const std::int64_t count = static_cast<std::int64_t>(share.segments) * k;
  const Entry* entries = share.entries + row * count;
#pragma unroll 1
  for (std::int64_t at = 0; at < count; at += kJoinThreads) {
    const Entry e = at + threadIdx.x < count ? entries[at + threadIdx.x] : 0;
    select.make_room(e, e);
    select.keep(select.wants(e) ? 1U : 0U, [&](int) { return e; });
  }
  const int taken = select.finish(best);
  put_row(p, row, root, best, taken);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
