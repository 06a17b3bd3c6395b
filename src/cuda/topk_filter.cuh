// The k best of plain rows for small k, in the same read that folds the rows' states. A block takes a row, or one
// segment of it: a power of two of chunks, so that its state is a node of the row's tree.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/topk_row.cuh"
#include "cuda/topk_spread.cuh"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Shared memory that joins segments, a multiple of 16 bytes.
SOFTFOLD_HD int join_bytes(int k) {
  return static_cast<int>(sizeof(Entry)) * ((k + BlockSelect<1>::capacity_for(k) + 1) / 2 * 2);
}

template <class E>
Grid filter_grid(const RowProblem& p, const TopkShare& share) {
  const auto warps = static_cast<int>(std::min<std::int64_t>(kFilterWarps, lift::chunk_count(p.n)));
  const int entries = share.k + BlockSelect<lift::kPerLane>::capacity_for(share.k);
  const int mail = Spread::has_warps(share) ? static_cast<int>(sizeof(SpreadMail)) : 0;
  const int kept = std::max(static_cast<int>(sizeof(Entry)) * entries, mail);
  return segment_grid(p.rows, share, warps * 32, warps * share.ahead * Landing<E, 32>::kBytes + kept);
}

/// The results of a row from its best entries, a thread an element.
__device__ __forceinline__ void put_row(const TopkProblem& p, std::int64_t row, const fold::LogSumExp<float>::State& s,
                                        const Entry* best, int taken) {
  const TopkRow<float, PlainPlace> result(p, row, s);
  for (int j = static_cast<int>(threadIdx.x); j < p.k; j += static_cast<int>(blockDim.x)) {
    int to = j;
    if (!p.sorted && j < taken) {  // by ascending index
      to = 0;
      for (int i = 0; i < taken; ++i) to += index_of(best[i]) < index_of(best[j]) ? 1 : 0;
    }
    result.put_entry(to, best, taken, j);
  }
  if (threadIdx.x == 0) result.put_lse();
}

/// topk's own rows, all alike.
struct TopkJob {
  TopkProblem p;
  bool with_states;
  lift::Factor factor;

  __device__ __forceinline__ FilterRow row(std::int64_t) const { return {static_cast<int>(p.k), with_states, factor}; }
  /// What finishes a row, made before its segments are there.
  struct Finish {
    const TopkJob& job;
    std::int64_t row;
    __device__ __forceinline__ Finish(const TopkJob& job_, std::int64_t row_) : job(job_), row(row_) {}
    __device__ __forceinline__ void operator()(const fold::LogSumExp<float>::State& s, const Entry* best, int taken) {
      put_row(job.p, row, s, best, taken);
    }
  };
};

/// The best of all segments of a row in `best`, and how many there are: as many as the selection is for.
__device__ __forceinline__ int join_entries(const TopkShare& share, std::int64_t row, int k,
                                            typename BlockSelect<1>::Shared& shared, Entry* best) {
  BlockSelect<1> select(shared, best + k, k);
  const int count = share.segments * share.k;
  const Entry* entries = share.entries + row * count;
  const int threads = static_cast<int>(blockDim.x), me = static_cast<int>(threadIdx.x);
  const auto entry = [&](int i) { return i < count ? entries[i] : 0; };
  constexpr int kAtOnce = 8;
  Entry ahead[kAtOnce];
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) ahead[i] = entry(me + i * threads);
  // The k-th of any segment bounds the k-th of all, and so does the least of as many of each as make k together.
  const int part = (k + share.segments - 1) / share.segments;
  Entry kth = 0, least = ~Entry{0};
  for (int i = me % 32; i < share.segments; i += 32) {
    kth = max(kth, entries[i * share.k + k - 1]);
    least = min(least, entries[i * share.k + part - 1]);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    kth = max(kth, __shfl_xor_sync(lift::kWholeWarp, kth, distance));
    least = min(least, __shfl_xor_sync(lift::kWholeWarp, least, distance));
  }
  select.start_at(max(kth, least));
  bool fits = true;
#pragma unroll 1
  for (int at = 0; at < count; at += kAtOnce * threads) {
    unsigned which = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (at > 0) ahead[i] = entry(at + me + i * threads);
      if (select.wants(ahead[i])) which |= 1U << i;
    }
    fits = select.keep(which, [&](int i) { return entries[at + me + i * threads]; }) && fits;
  }
  if (__syncthreads_or(fits ? 0 : 1) != 0) {
    select.restart();
#pragma unroll 1
    for (int at = 0; at < count; at += threads) {
      const Entry e = entry(at + me);
      select.make_room(e, e);
      select.keep(select.wants(e) ? 1U : 0U, [&](int) { return e; });
    }
  }
  return select.finish(best);
}

/// By a warp of a block, before a barrier: the row's state from its segments', if they are wanted.
__device__ __forceinline__ void join_states(const TopkShare& share, std::int64_t row,
                                            fold::LogSumExp<float>::State& root) {
  if (share.states == nullptr || threadIdx.x >= 32) return;
  const auto* nodes = share.states + row * share.segments;
  const auto s = lift::merge_blocks([&](int i) { return nodes[i]; }, share.segments);
  if (threadIdx.x == 0) root = s;
}

/// By a block: a row from its segments' best elements and states.
template <class Finish>
__device__ __forceinline__ void finish_segments(Finish& finish, const TopkShare& share, std::int64_t row, int k,
                                                Entry* best, fold::LogSumExp<float>::State& root) {
  __shared__ typename BlockSelect<1>::Shared shared;
  join_states(share, row, root);
  const int taken = k > 0 ? join_entries(share, row, k, shared, best) : 0;
  finish(root, best, taken);
}

/// By a block, after a barrier: the states of its chunks, or of all of them in root, to where they are wanted.
template <class E>
__device__ __forceinline__ void put_states(const Segment<E>& part, const TopkShare& share, std::int64_t row,
                                           int segment, const fold::LogSumExp<float>::State* nodes,
                                           fold::LogSumExp<float>::State& root) {
  if (share.nodes != nullptr) {
    for (int i = static_cast<int>(threadIdx.x); i < part.chunks; i += static_cast<int>(blockDim.x))
      share.nodes[row * lift::chunk_count(part.rows.n) + segment * share.chunks + i] = nodes[i];
    return;
  }
  if (threadIdx.x < 32) {
    const auto s = lift::merge_states([&](int i) { return nodes[i]; }, part.chunks);
    if (threadIdx.x == 0) root = s;
  }
  __syncthreads();
}

/// A row that Spread takes, with a chunk a warp. False where its bound does not tell few elements from the rest, as if
/// nothing had been done.
template <class E, class Job>
__device__ __forceinline__ bool filter_spread(const Job& job, const Segment<E>& part, const FilterRow& own,
                                              const TopkShare& share, std::int64_t row, int segment, SpreadMail& mail,
                                              fold::LogSumExp<float>::State* nodes,
                                              fold::LogSumExp<float>::State& root) {
  extern __shared__ __align__(16) char memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool there = warp < part.chunks;
  Spread spread(mail, share, segment, part.rows.n);
  typename Job::Finish finish(job, row);  // while the elements are on their way
  float v[lift::kPerLane];
  lift::Extremes extremes{};
  if (there) extremes = part.read(v, warp);
  spread.tell(segment * kFilterWarps + warp, there ? fold::Ranked<float>::of(extremes.high, 0).key : 0U);
  if (there && own.with_states) {
    const auto folded = lift::WarpFold<Tile<E, 32>::kWidth>::reduce(v, own.factor.c, extremes);
    if (threadIdx.x % 32 == 0) nodes[warp] = folded.state;
  }
  const std::uint32_t bound = spread.bound(own.k);
  const float least = fold::Ranked<float>{bound, 0}.value();
  if (there && !__all_sync(lift::kWholeWarp, extremes.high < least)) {
    const unsigned which = part.reach(v, warp, static_cast<Entry>(bound) << 32, least, false);
    spread.keep(which, [&](int i) { return part.entry(warp, i); });
  }
  __syncthreads();
  if (own.with_states) put_states(part, share, row, segment, nodes, root);
  if (share.states != nullptr && threadIdx.x == 0) share.states[row * share.segments + segment] = root;
  spread.send();
  if (!spread.arrives()) return false;
  if (segment != 0) return true;
  Entry* best = reinterpret_cast<Entry*>(memory);
  join_states(share, row, root);
  const int taken = spread.finish(best, own.k);
  finish(root, best, taken);
  return true;
}

/// One more chunk a warp, read again because it had found no room; `chunks` where a warp has none.
template <class E>
__device__ __noinline__ void keep_again(Segment<E> part, int chunk, BlockSelect<lift::kPerLane> select) {
  float v[lift::kPerLane];
  Entry highest = 0, best = 0;
  if (chunk < part.chunks) {
    part.fetch(chunk, 0);
    const float high = part.read(v, chunk).high;
    highest = entry_of(high, part.first_of(chunk));
    // The first of those that equal the largest.
    for (unsigned which = part.reach(v, chunk, high); which != 0; which &= which - 1)
      best = max(best, part.entry(chunk, __ffs(static_cast<int>(which)) - 1));
  }
  select.make_room(highest, best);
  if (chunk >= part.chunks) return;
  if (__any_sync(lift::kWholeWarp, select.wants(highest))) {
    select.keep(part.reach(v, chunk, select.bound(), select.least(), true),
                [&](int i) { return part.entry(chunk, i); });
  }
  __syncwarp();
}

/// The largest elements of the first chunk of every warp set the bound, which rises as more chunks have been seen,
/// after 1, 2, 4, … rounds. A chunk that finds no room for what it has above the bound is read again when all have
/// finished. kBlocks: of a processor; of two, with few chunks a warp, raising it after the first round takes more than
/// it saves. kSpread: for few rows, of which Spread::takes() more than it refuses.
template <class E, class Job, int kBlocks, bool kSpread>
__global__ void __launch_bounds__(kFilterWarps * 32, kBlocks)
    topk_filter(const __grid_constant__ Job job, const __grid_constant__ PlainRows rows,
                const __grid_constant__ TopkShare share) {
  begin_in_order();
  using Fold = lift::WarpFold<Tile<E, 32>::kWidth>;
  using Select = BlockSelect<lift::kPerLane>;
  using State = fold::LogSumExp<float>::State;
  extern __shared__ __align__(16) char memory[];
  __shared__ typename Select::Shared shared;
  __shared__ State nodes[kMostSegmentChunks], root;
  __shared__ CopyBarrier barriers[kFilterWarps][kMostAhead];
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(share.segments);
  const int segment = static_cast<int>(blockIdx.x % static_cast<unsigned>(share.segments));
  if (threadIdx.x % 32 < kMostAhead) {
    barriers[warp][threadIdx.x % 32].init(1);
    CopyBarrier::publish();
  }
  __syncwarp();
  const int warp_bytes = share.ahead * Landing<E, 32>::kBytes;
  Segment<E> part(rows, share, row, segment, memory + warp * warp_bytes, barriers[warp]);
  for (int i = 0; i < share.ahead; ++i) part.fetch(warp + warps * i, i);
  const FilterRow own = job.row(row);
  part.factor = own.factor;
  Entry* best = reinterpret_cast<Entry*>(memory + warps * warp_bytes);
  const bool selects = own.k > 0;
  if (!selects && !own.with_states) {
    for (; part.turn < share.ahead && warp + warps * part.turn < part.chunks; ++part.turn)
      part.arrived();  // no copy may outlive its block
    if (share.joins && segment == 0) typename Job::Finish(job, row)(fold::LogSumExp<float>::identity(), nullptr, 0);
    return;
  }
  if (threadIdx.x == 0) root = fold::LogSumExp<float>::identity();
  if constexpr (kSpread) {
    auto& mail = *reinterpret_cast<SpreadMail*>(best);
    if (Spread::takes(own, rows.n) && filter_spread<E>(job, part, own, share, row, segment, mail, nodes, root)) return;
  }
  Select select(shared, best + share.k, own.k);
  unsigned again = 0;  // the warp's turns whose chunk found no room
  const int turns = (part.chunks + warps - 1) / warps;
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn) {
    const int chunk = warp + warps * turn;
    float v[lift::kPerLane];
    lift::Extremes extremes{};
    if (chunk < part.chunks) extremes = part.read(v, chunk);
    if (turn == 0 && selects)
      select.start(chunk < part.chunks && own.factor.plain ? fold::Ranked<float>::of(extremes.high, 0).key : 0U);
    if (chunk < part.chunks) {
      if (selects) {
        const float least = select.least();
        if (!__all_sync(lift::kWholeWarp, extremes.high < least)) {
          const unsigned which = part.reach(v, chunk, select.bound(), least, false);
          if (!select.keep(which, [&](int i) { return part.entry(chunk, i); })) again |= 1U << turn;
        }
      }
      __syncwarp();
      part.fetch(chunk + warps * share.ahead, share.ahead);
      ++part.turn;
      if (own.with_states) {
        const auto folded = Fold::terms(v, own.factor.c, extremes);
        if (threadIdx.x % 32 == 0) nodes[chunk] = folded.state;
      }
    }
    const bool raises = (turn & (turn + 1)) == 0 && (turn > 0 || kBlocks > 2) && turn + 1 < turns;
    if (selects && raises) select.tighten();
  }
  int taken = 0;
  if (selects) {
    if (__syncthreads_or(again != 0 ? 1 : 0) != 0) {
      select.recount();
      do {
        const int chunk = again != 0 ? warp + warps * (__ffs(static_cast<int>(again)) - 1) : part.chunks;
        keep_again<E>(part, chunk, select);
        if (again != 0) ++part.turn;
        again &= again - 1;
      } while (__syncthreads_or(again != 0 ? 1 : 0) != 0);
    }
    taken = select.finish(best);
  } else {
    __syncthreads();
  }
  const std::int64_t at = row * share.segments + segment;
  if (own.with_states) put_states(part, share, row, segment, nodes, root);
  if (share.entries == nullptr) return typename Job::Finish(job, row)(root, best, taken);
  for (int j = static_cast<int>(threadIdx.x); j < share.k; j += static_cast<int>(blockDim.x))
    share.entries[at * share.k + j] = j < taken ? best[j] : 0;
  if (share.states != nullptr && threadIdx.x == 0) share.states[at] = root;
  if (!share.joins) return;
  lift::Cluster::arrive();
  typename Job::Finish finish(job, row);
  lift::Cluster::wait();
  if (segment != 0) return;
  finish_segments(finish, share, row, own.k, reinterpret_cast<Entry*>(memory), root);
}

template <class E, class Job>
void launch_filter(const Job& job, const PlainRows& rows, const TopkShare& share, const Grid& grid, Stream stream) {
  const auto go = [&](auto kernel) { launch("topk_filter", kernel, grid, stream, job, rows, share); };
  if (Spread::has_warps(share)) return go(topk_filter<E, Job, 3, true>);
  // Memory has room for two blocks with two chunks a warp on their way, of float32: these may have more registers.
  if constexpr (sizeof(E) == 4)
    if (share.ahead == kMostAhead) return go(topk_filter<E, Job, 2, false>);
  go(topk_filter<E, Job, 4, false>);
}

/// For rows of more segments than a cluster has blocks.
template <class Job>
__global__ void __launch_bounds__(kJoinThreads)
    topk_join(const __grid_constant__ Job job, const __grid_constant__ TopkShare share) {
  begin_in_order();
  extern __shared__ __align__(16) char memory[];
  __shared__ fold::LogSumExp<float>::State root;
  typename Job::Finish finish(job, blockIdx.x);
  finish_segments(finish, share, blockIdx.x, share.k, reinterpret_cast<Entry*>(memory), root);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
