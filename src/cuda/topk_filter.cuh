// The k best of plain rows for small k, in the same read that folds the rows' states. A block takes a row, or one
// segment of it: a power of two of chunks, so that its state is a node of the row's tree.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/softmax_plain.cuh"
#include "cuda/topk_row.cuh"
#include "cuda/topk_select.cuh"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where a block has too little memory for two chunks a warp and kMostFilterK / 2 entries, one is ahead.
inline constexpr int kMostAhead = 2, kBytesOfTwoAhead = 128 * 1024;
inline constexpr int kFilterWarps = 8, kMostSegmentChunks = 256, kMostFilterK = 256, kJoinThreads = 256;

/// How rows are cut, and where the segments' parts lie.
struct TopkShare {
  int chunks, segments;                   ///< of a segment, of a row
  int k;                                  ///< the most that a row has taken from it
  fold::LogSumExp<float>::State* states;  ///< [rows][segments]; null: they are not wanted
  Entry* entries;                         ///< [rows][segments][k], best first; 0 where there are fewer. Null: one
                                          ///< segment, and its row is finished at once
  fold::LogSumExp<float>::State* nodes;   ///< [rows][chunks of the row]; null: they are not wanted
  bool joins;                             ///< a row's segments are a cluster, which finishes it
  int ahead;                              ///< chunks of a warp that are on their way or looked at: 1 or 2
};

/// As few segments as keep all processors busy, without memory yet.
inline TopkShare share_rows(std::int64_t rows, std::int64_t n, int k, const DeviceTraits& device) {
  const std::int64_t chunks = lift::chunk_count(n);
  const auto pieces = [&](std::int64_t segment) { return (chunks + segment - 1) / segment; };
  std::int64_t segment = kMostSegmentChunks;
  while (segment > kFilterWarps && (segment / 2 >= chunks || rows * pieces(segment) < device.processors)) segment /= 2;
  // Two blocks a processor do not keep its memory busy with one chunk a warp; more blocks would have no room for two.
  const bool few = rows * pieces(segment) <= 2 * device.processors && segment > kFilterWarps && k <= kMostFilterK / 2 &&
                   device.shared_bytes >= kBytesOfTwoAhead;
  return {static_cast<int>(segment), static_cast<int>(pieces(segment)), k, nullptr, nullptr, nullptr, false,
          few ? kMostAhead : 1};
}

/// Shared memory that joins segments, a multiple of 16 bytes.
SOFTFOLD_HD int join_bytes(int k) {
  return static_cast<int>(sizeof(Entry)) * ((k + BlockSelect<1>::capacity_for(k) + 1) / 2 * 2);
}

template <class E>
Grid filter_grid(const RowProblem& p, const TopkShare& share) {
  const auto warps = static_cast<int>(std::min<std::int64_t>(kFilterWarps, lift::chunk_count(p.n)));
  const int entries = share.k + BlockSelect<lift::kPerLane>::capacity_for(share.k);
  return {p.rows * share.segments, warps * 32, share.joins ? share.segments : 1,
          warps * share.ahead * Landing<E, 32>::kBytes + static_cast<int>(sizeof(Entry)) * entries};
}

/// What is wanted of a row.
struct FilterRow {
  int k;             ///< 0: only states
  bool with_states;  ///< someone asks for what follows from them
  lift::Factor factor;
};

/// The results of a row from its best entries, a thread an element.
__device__ __forceinline__ void put_row(const TopkProblem& p, std::int64_t row, const fold::LogSumExp<float>::State& s,
                                        const Entry* best, int taken) {
  const TopkRow<float, PlainPlace> result(p, row, s);
  for (int j = static_cast<int>(threadIdx.x); j < p.k; j += static_cast<int>(blockDim.x)) {
    const std::int64_t index = j < taken ? static_cast<std::int64_t>(index_of(best[j])) : -1;
    float value = j < taken ? value_of(best[j]) : -fold::infinity<float>();
    if (value == 0.F) value = result.element(index);  // which of both zeros it is
    int to = j;
    if (!p.sorted && j < taken) {  // by ascending index
      to = 0;
      for (int i = 0; i < taken; ++i) to += index_of(best[i]) < index_of(best[j]) ? 1 : 0;
    }
    result.put_element(to, index, value);
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

/// A block's part of a row. Each warp has its chunks, one after the other, brought to places of its own by turns.
template <class E>
struct Segment {
  using Place = Landing<E, 32>;
  using Elements = typename Place::Elements;
  static constexpr int kSize = static_cast<int>(sizeof(E));
  const PlainRows& rows;
  const char* x;
  std::uint32_t begin;    ///< in its row, of fewer than 2^32 elements
  int n, chunks;          ///< of the segment
  char* places;           ///< `ahead` of them
  CopyBarrier* barriers;  ///< one a place
  int ahead;
  int turn;             ///< chunks that have been read
  lift::Factor factor;  ///< the row's, from when it is known
  Elements tile;

  __device__ __forceinline__ Segment(const PlainRows& rows_, const TopkShare& share, std::int64_t row, int segment,
                                     char* places_, CopyBarrier* barriers_)
      : rows(rows_),
        x(rows_.x + row * rows_.x_stride + std::int64_t{segment} * share.chunks * (lift::kChunk * kSize)),
        begin(static_cast<std::uint32_t>(segment) * static_cast<std::uint32_t>(share.chunks * lift::kChunk)),
        n(static_cast<int>(clamp(rows_.n - begin, share.chunks * lift::kChunk))),
        chunks((n + lift::kChunk - 1) / lift::kChunk),
        places(places_),
        barriers(barriers_),
        ahead(share.ahead),
        turn(0),
        factor(1.F),
        tile(x) {}

  __device__ __forceinline__ const char* at(int chunk) const { return x + chunk * (lift::kChunk * kSize); }
  __device__ __forceinline__ std::uint32_t first_of(int chunk) const {
    return begin + static_cast<std::uint32_t>(chunk * lift::kChunk);
  }
  __device__ __forceinline__ int size_of(int chunk) const { return min(n - chunk * lift::kChunk, lift::kChunk); }
  /// Which of the places the chunk of a turn lies in, and how often that has been filled before, modulo 2.
  __device__ __forceinline__ int slot_of(int t) const { return t & (ahead - 1); }
  __device__ __forceinline__ unsigned phase_of(int t) const { return static_cast<unsigned>(t >> (ahead - 1)) & 1U; }
  __device__ __forceinline__ char* place() const { return places + slot_of(turn) * Place::kBytes; }
  /// Sends a chunk on its way, for the turn `later` turns from now.
  __device__ __forceinline__ void fetch(int chunk, int later) const {
    if (threadIdx.x % 32 != 0 || chunk >= chunks) return;
    const int slot = slot_of(turn + later);
    Place(places + slot * Place::kBytes, at(chunk), size_of(chunk)).fetch(barriers[slot], at(chunk), rows);
  }
  __device__ __forceinline__ void arrived() const { barriers[slot_of(turn)].wait(phase_of(turn)); }
  /// The elements of this turn's chunk, and their extremes.
  __device__ __forceinline__ lift::Extremes read(float (&v)[lift::kPerLane], int chunk) const {
    arrived();
    return Place(place(), at(chunk), size_of(chunk)).read(v, at(chunk), factor, rows);
  }
  /// A bit for each element of the value `least` or more, or for all where that is NaN.
  __device__ __forceinline__ unsigned reach(const float (&v)[lift::kPerLane], int chunk, float least) const {
    unsigned which = 0;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) which |= v[i] < least ? 0U : 1U << i;
    if (size_of(chunk) < lift::kChunk) {
#pragma unroll 1
      for (int i = 0; i < lift::kPerLane; ++i)
        if (element(i) >= size_of(chunk)) which &= ~(1U << i);
    }
    return which;
  }
  /// Of those, the ones that reach the bound whose value `least` is. `exact`: ones behind it may have that value.
  __device__ __forceinline__ unsigned reach(const float (&v)[lift::kPerLane], int chunk, Entry bound, float least,
                                            bool exact) const {
    unsigned which = reach(v, chunk, least);
    if (!exact && static_cast<std::uint32_t>(bound) == 0 && factor.plain && !fold::is_nan(least)) return which;
#pragma unroll 1
    for (unsigned rest = which; rest != 0; rest &= rest - 1) {
      const int i = __ffs(static_cast<int>(rest)) - 1;
      if (entry(chunk, i) < bound) which &= ~(1U << i);
    }
    return which;
  }
  /// Element i of a chunk that is still in its place: registers have no index.
  __device__ __forceinline__ Entry entry(int chunk, int i) const {
    const int k = element(i);
    return entry_of(fold::widen(reinterpret_cast<const E*>(place())[k + tile.shift]),
                    first_of(chunk) + static_cast<std::uint32_t>(k));
  }

 private:
  __device__ __forceinline__ int element(int i) const {
    return tile.element(i / Elements::kWidth, i % Elements::kWidth);
  }
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

/// By a block: a row from its segments' best elements and states.
template <class Finish>
__device__ __forceinline__ void finish_segments(Finish& finish, const TopkShare& share, std::int64_t row, int k,
                                                Entry* best, fold::LogSumExp<float>::State& root) {
  __shared__ typename BlockSelect<1>::Shared shared;
  if (share.states != nullptr && threadIdx.x < 32) {
    const auto* nodes = share.states + row * share.segments;
    const auto s = lift::merge_blocks([&](int i) { return nodes[i]; }, share.segments);
    if (threadIdx.x == 0) root = s;
  }
  const int taken = k > 0 ? join_entries(share, row, k, shared, best) : 0;
  finish(root, best, taken);
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

/// The largest elements of the first chunk of every warp set the bound, which rises as more chunks have been seen: at
/// first after every round, then after twice as many. A chunk that finds no room for what it has above the bound is
/// read again when all have finished.
template <class E, class Job>
__global__ void __launch_bounds__(kFilterWarps * 32, 4)
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
    if (selects && (turn & (turn + 1)) == 0 && turn + 1 < turns) select.tighten();
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
  if (own.with_states && share.nodes != nullptr) {
    for (int i = static_cast<int>(threadIdx.x); i < part.chunks; i += static_cast<int>(blockDim.x))
      share.nodes[row * lift::chunk_count(rows.n) + segment * share.chunks + i] = nodes[i];
  } else if (own.with_states) {
    if (warp == 0) {
      const State s = lift::merge_states([&](int i) { return nodes[i]; }, part.chunks);
      if (threadIdx.x == 0) root = s;
    }
    __syncthreads();
  }
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
