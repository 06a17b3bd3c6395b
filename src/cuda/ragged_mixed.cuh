// Ragged rows by their parts (ragged_parts.cuh). Rows up to a chunk are taken by groups of lanes, which leave longer
// ones on a queue for blocks, and these the longest on a list for all blocks.
#pragma once

#include "cuda/backward_ragged.cuh"
#include "cuda/launch.hpp"
#include "cuda/levels.cuh"
#include "cuda/long_parts.cuh"
#include "cuda/outside.cuh"
#include "cuda/states.hpp"

#include <algorithm>
#include <tuple>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Chunks up to which a block has a row to itself. Measured of others: what it reads again is still in the L2 cache.
inline constexpr int kMixedChunks = 64;
/// The same of few rows; the list has room for longer ones.
inline constexpr int kMixedFewChunks = RaggedQueue::kLong / lift::kChunk;
/// Mean length up to which many rows are a lane's.
inline constexpr std::int64_t kMeanOfLaneRows = 16;

/// Where longer rows stand, in the workspace.
template <class State>
struct MixedMemory {
  GradientQueue queue{};
  RaggedListOf<State> list{};

  MixedMemory(const RowProblem& p, Parts& parts) {
    queue.counters = parts.take<GradientQueue::Counters>(1);
    queue.capacity = static_cast<unsigned>(std::min(p.rows, p.ragged_elements / lift::kChunk));
    queue.rows = parts.take<int>(queue.capacity);
    list.capacity = RaggedListOf<State>::most_groups(p.ragged_elements);
    list.taken = &queue.counters->groups;
    list.states = parts.take<State>(list.capacity);
    list.groups = parts.take<typename RaggedListOf<State>::Group>(list.capacity);
  }
};

/// Nothing is on the queue and the list, and where no row is the result is as if hidden.
template <class S>
__global__ void __launch_bounds__(kMixedThreads)
    ragged_mixed_begin(const __grid_constant__ RowProblem p, GradientQueue::Counters* counters, S outside) {
  begin_in_order();
  if (blockIdx.x == 0 && threadIdx.x == 0) *counters = {};
  if (p[Slot::y].given) fill_outside_rows(p, outside);
}

/// Of a warp's neighbouring rows, one a lane, those of more than `behind` elements that a part holds, a group of lanes
/// each. states: of each lane's row, if that is what leaves.
template <class Part>
__device__ __forceinline__ void take_rows(const RowProblem& p, const RaggedRow& own, int behind,
                                          typename Part::State* states) {
  constexpr int kLanes = Part::kLanes;
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / kLanes;
  unsigned left = __ballot_sync(lift::kWholeWarp, own.n > behind && own.n <= Part::kSlots);
#pragma unroll 1
  while (left != 0) {
    // Groups without a row of their own take part with another one and write nothing.
    int from = 0;
    bool writes = false;
    if constexpr (kLanes == 1) {
      writes = (left >> lane & 1U) != 0;
      from = writes ? lane : __ffs(static_cast<int>(left)) - 1;
      left = 0;
    } else {
#pragma unroll
      for (int g = 0; g < 32 / kLanes; ++g) {
        if (left != 0 && g <= group) from = __ffs(static_cast<int>(left)) - 1, writes = g == group;
        left &= left - 1;
      }
    }
    const int n = __shfl_sync(lift::kWholeWarp, static_cast<int>(own.n), from);
    const PartedRow r(p, {own.index + (from - lane), __shfl_sync(lift::kWholeWarp, own.begin, from), n});
    Part part(p, r);
    part.load(p, r, 0, n);
    if constexpr (Part::kOfRow) {
      if (writes && lane % kLanes == 0) states[from] = part.state();
    } else {
      if (writes) part.template write<true>(p, r, 0, n, part.state());
    }
  }
}

/// Rows of more than kBehind elements that the last of Parts holds, in the order of their size, each warp `neighbours`
/// of all rows. kQueues: longer ones than a chunk come to the queue.
template <bool kQueues, int kBehind, int kMinBlocks, class... Parts>
__global__ void __launch_bounds__(kMixedThreads, kMinBlocks)
    ragged_mixed_rows(const __grid_constant__ RowProblem p, const __grid_constant__ GradientQueue queue,
                      int neighbours) {
  begin_in_order();
  using Shortest = std::tuple_element_t<0, std::tuple<Parts...>>;
  using State = typename Shortest::State;
  constexpr bool kOfRow = (Parts::kOfRow && ...);
  __shared__ State states[kOfRow ? kMixedWarps : 1][kOfRow ? 32 : 1];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = (std::int64_t{blockIdx.x} * kMixedWarps + warp) * neighbours + lane;
  RaggedRow own{row, 0, -1};
  if (lane < neighbours && row < p.rows) own = ragged_row(p, row);
  if constexpr (kQueues) queue.append(row, own.n);
  own.n = min(own.n, std::int64_t{lift::kChunk + 1});  // as an int
  State* const of_rows = kOfRow ? states[warp] : nullptr;
  int behind = kBehind;
  ((take_rows<Parts>(p, own, behind, of_rows), behind = Parts::kSlots), ...);
  if constexpr (kOfRow) {
    __syncwarp();
    if (own.n > kBehind && own.n <= behind) write_row<typename Shortest::Real>(p, row, of_rows[lane]);
  }
}

/// Rows from the queue, one after another.
template <class Part>
__global__ void __launch_bounds__(Part::kBlockThreads, Part::kThreads / Part::kBlockThreads)
    ragged_mixed_blocks(const __grid_constant__ RowProblem p, const __grid_constant__ GradientQueue queue,
                        const __grid_constant__ RaggedListOf<typename Part::State> list) {
  begin_in_order();
  using State = typename Part::State;
  __shared__ State states[kMixedChunks];
  __shared__ unsigned next;
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const unsigned longer = queue.longer(), count = longer + queue.held();
  // Those that a block would read twice are all blocks' if they are too few for these.
  const int most = longer < gridDim.x && list.capacity > 0 ? kMixedFewChunks : kMixedChunks;
#pragma unroll 1
  for (unsigned at = blockIdx.x; at < count;) {
    const RaggedRow of = ragged_row(p, at < longer ? queue.longer_row(at) : queue.rows[at - longer]);
    const std::int64_t all = lift::chunk_count(of.n);
    const bool own = all <= most;
    const int chunks = own ? static_cast<int>(all) : 0;
    const PartedRow r(p, of);
    const auto length = [&](int chunk) { return static_cast<int>(min(r.n - chunk * lift::kChunk, lift::kChunk + 0L)); };
    if (threadIdx.x == 0) next = atomicAdd(&queue.counters->taken, 1U) + gridDim.x;
    Part part(p, r);
#pragma unroll 1
    for (int i = warp; i < chunks; i += warps) {
      part.load(p, r, std::int64_t{i} * lift::kChunk, length(i));
      if (threadIdx.x % 32 == 0) states[i] = part.state();
    }
    // What lies has no room on the list.
    if (!own) list.append(of.index, of.n);
    __syncthreads();
    at = next;
    if (warp < chunks) {
      const State row = Part::merge([&](int i) { return states[i]; }, chunks);
      if constexpr (Part::kOfRow) {
        if (threadIdx.x == 0) write_row<typename Part::Real>(p, of.index, row);
      } else if (chunks <= warps) {
        part.template write<false>(p, r, std::int64_t{warp} * lift::kChunk, length(warp), row);
      } else {
        // From the end: what the first read has left in the caches is that.
#pragma unroll 1
        for (int i = chunks - 1 - warp; i >= 0; i -= warps)
          part.rewrite(p, r, std::int64_t{i} * lift::kChunk, length(i), length(i), row);
      }
    }
    __syncthreads();
  }
}

/// Null if these take the rows, else why not.
inline const char* refuses_mixed(const RowProblem& p) {
  if (const char* why = refuses_rung(p.rung)) return why;
  if (!p[Slot::offsets].given) return "rows are not ragged";
  return p.rows < 0x3FFFFFFF ? nullptr : "more rows than a grid has";
}
/// Null if, further, parts of float64 take them, or those of the other dtypes.
inline const char* refuses_double_mixed(const RowProblem& p, const Context&) {
  return p.is_double() ? refuses_mixed(p) : "elements are not float64";
}
inline const char* refuses_single_mixed(const RowProblem& p) {
  const bool wide = p.is_double() || p[Slot::y].dtype == DType::float64;
  return wide ? "float64 is not among what a part may be of" : refuses_mixed(p);
}

template <class State>
std::size_t mixed_workspace(const RowProblem& p, const Context&) {
  Parts parts(nullptr);
  (void)MixedMemory<State>(p, parts);
  return parts.used();
}

/// Warps of a block that has a row: about as many as most rows have chunks.
inline int warps_of_mixed_blocks(std::int64_t mean, int most) { return mean <= 2560 ? 4 : mean <= 4096 ? 8 : most; }

/// All kernels. Part: of lanes and slots a lane.
template <template <int, int> class Part>
void launch_mixed(const RowProblem& p, const Context& context) {
  using Chunk = Part<32, 32>;
  using State = typename Chunk::State;
  using Shorter = Part<8, 16>;  // the last of the first launch
  constexpr int kOfProcessor = Chunk::kThreads, kNone = Chunk::kOfRow ? -1 : 0;
  const int processors = traits_of(DeviceOf(p[Slot::x].data).device()).processors;
  const Scratch scratch(mixed_workspace<State>(p, context), context);
  Parts parts(scratch.data());
  const MixedMemory<State> memory(p, parts);
  const Stream begins = stream_of(context), stream = begins.following();
  const auto begin = [&]<class S>(S outside) {
    launch("ragged_mixed_begin", ragged_mixed_begin<S>, {processors, kMixedThreads}, begins, p, memory.queue.counters,
           outside);
  };
  p[Slot::y].given ? with_outside_bits(p, begin) : begin(std::uint16_t{});
  const std::int64_t mean = p.ragged_elements / p.rows;
  // Few rows are for all warps.
  const std::int64_t places = std::int64_t{Chunk::kShortThreads} / kMixedThreads * processors;
  const auto neighbours = static_cast<int>(std::clamp<std::int64_t>(ceil_div(p.rows, places * kMixedWarps), 1, 32));
  const auto rows = [&](auto kernel) {
    launch("ragged_mixed_rows", kernel, {ceil_div(p.rows, std::int64_t{neighbours} * kMixedWarps), kMixedThreads},
           stream, p, memory.queue, neighbours);
  };
  constexpr int kShortBlocks = Chunk::kShortThreads / kMixedThreads;
  mean <= kMeanOfLaneRows ? rows(ragged_mixed_rows<true, kNone, kShortBlocks, Part<1, 8>, Part<4, 8>, Shorter>)
                          : rows(ragged_mixed_rows<true, kNone, kShortBlocks, Part<4, 8>, Part<8, 8>, Shorter>);
  rows(ragged_mixed_rows<false, Shorter::kSlots, kOfProcessor / kMixedThreads, Part<8, 32>, Part<16, 32>, Chunk>);
  if (memory.queue.capacity == 0) return;
  const int threads = 32 * warps_of_mixed_blocks(mean, Chunk::kBlockThreads / 32);
  // However few rows there are: a row knows by the grid whether blocks are without one.
  launch("ragged_mixed_blocks", ragged_mixed_blocks<Chunk>, {kOfProcessor / threads * processors, threads}, stream, p,
         memory.queue, memory.list);
  if (memory.list.capacity == 0) return;
  launch_long_parts<Chunk>(p, memory.list, memory.list.capacity, stream);
}
/// The same by the part that the operation asks for.
template <template <int, int> class Softmax, template <int, int> class LogSoftmax, template <int, int> class OfRow>
void run_mixed(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  switch (p.op) {
    case Op::softmax: return launch_mixed<Softmax>(p, context);
    case Op::log_softmax: return launch_mixed<LogSoftmax>(p, context);
    default: return launch_mixed<OfRow>(p, context);
  }
}
template <template <int, int> class Softmax, template <int, int> class LogSoftmax>
void run_mixed_gradients(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  p.op == Op::softmax_backward ? launch_mixed<Softmax>(p, context) : launch_mixed<LogSoftmax>(p, context);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
