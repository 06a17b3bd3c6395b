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

template <class E>
__global__ void __launch_bounds__(kFilterWarps * 32, 2)
    topk_filter(const __grid_constant__ TopkProblem p, const __grid_constant__ TopkShare share, lift::Factor factor) {
  using Elements = Tile<E, 32>;
  using Fold = lift::WarpFold<Elements::kWidth>;
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
  const std::int64_t begin = static_cast<std::int64_t>(segment) * share.chunks * lift::kChunk;
  const char* x = p[Slot::x].data + (p.outer_rank == 0 ? 0 : row * p[Slot::x].strides[0]);
  const int chunks =
      static_cast<int>(min(static_cast<std::int64_t>(share.chunks), (p.n - begin + lift::kChunk - 1) / lift::kChunk));
  const Elements tile(x);
  const auto first_of = [&](int chunk) { return begin + static_cast<std::int64_t>(chunk) * lift::kChunk; };
  const auto size_of_chunk = [&](int chunk) { return static_cast<int>(clamp(p.n - first_of(chunk), lift::kChunk)); };
  uint4 raw[Elements::kVectors];
  const auto fetch = [&](int chunk) {
    if (chunk < chunks)
      tile.gather(raw, x + first_of(chunk) * static_cast<std::int64_t>(sizeof(E)), size_of_chunk(chunk),
                  lift::absent(factor.c));
  };
  fetch(warp);
  if (threadIdx.x == 0) root = fold::LogSumExp<float>::identity();
  Select select(shared, best + k, k);
#pragma unroll 1
  for (int base = 0; base < chunks; base += warps) {
    const int chunk = base + warp, n = size_of_chunk(chunk);
    const bool mine = chunk < chunks;
    const auto first = static_cast<std::uint32_t>(first_of(chunk));
    float v[lift::kPerLane];
    Entry highest = 0;
    if (mine) {
      const auto extremes = tile.unpack(v, raw, n, factor);
      fetch(chunk + warps);
      if (share.with_states) {
        const auto folded = Fold::reduce(v, factor.c, extremes);
        if (threadIdx.x % 32 == 0) nodes[chunk] = folded.state;
      }
      highest = entry_of(extremes.high, first);
    }
    const auto visit = [&](const auto& take) {
      // What is below the bound is so in its value too; where the bound's value is NaN, or there is none, all pass.
      const float least = fold::Ranked<float>{static_cast<std::uint32_t>(select.bound() >> 32), 0}.value();
#pragma unroll
      for (int i = 0; i < lift::kPerLane; ++i) {
        if (v[i] < least) continue;
        const int at = tile.element(i / Elements::kWidth, i % Elements::kWidth);
        if (at < n) take(entry_of(v[i], first + static_cast<std::uint32_t>(at)));
      }
    };
    select.offer(
        highest,
        [&] {
          Entry top = 0;
          if (mine) visit([&](Entry e) { top = e > top ? e : top; });
          return top;
        },
        visit);
  }
  const int taken = select.finish(best);
  if (share.with_states) {
    if (warp == 0) {
      const State s = lift::merge_states([&](int i) { return nodes[i]; }, chunks);
      if (threadIdx.x == 0) root = s;
    }
    __syncthreads();
  }
  if (share.segments == 1) return put_row(p, row, root, best, taken);
  const std::int64_t part = row * share.segments + segment;
  for (int j = static_cast<int>(threadIdx.x); j < k; j += static_cast<int>(blockDim.x))
    share.entries[part * k + j] = j < taken ? best[j] : 0;
  if (threadIdx.x == 0) share.states[part] = root;
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
    select.offer(
        e, [&] { return e; }, [&](const auto& keep) { keep(e); });
  }
  const int taken = select.finish(best);
  put_row(p, row, root, best, taken);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
