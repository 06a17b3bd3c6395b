// The k best of plain rows for large k, in the same read that folds the rows' states. A sample, taken evenly from the
// whole row, tells a bound that most likely somewhat more than k elements reach; these are kept in shared memory and
// ordered there. A block takes a row, or of few rows a cluster, a segment each block.
#pragma once

#include "cuda/topk_filter.cuh"
#include "cuda/topk_order.cuh"

#include <cmath>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kMostLargeK = 8192, kMostSegments = 16;
inline constexpr std::size_t kMostLargeBytes = std::size_t{1} << 30;
inline constexpr int kLargeOwnBytes = 8 * 1024;  ///< of a block's shared memory, beside what a launch asks for; or less
static_assert(kOrderWarps == kFilterWarps);

/// A count that is hardly ever exceeded where `expected` are: four standard deviations above it.
SOFTFOLD_HD float at_most_about(float expected) { return expected + 4.F * ::sqrtf(expected) + 4.F; }

/// How rows are cut; `entries` has `room` for each segment but a row's first.
struct LargeShare : TopkShare {
  /// One vector in so many is sampled, in pairs, if there is room for as many keys.
  static constexpr int kEvery = 32, kLeastRoom = 3072;
  int room;  ///< entries that a block keeps

  __device__ __forceinline__ Entry* entries_of(std::int64_t row, int segment) const {
    return entries + (row * (segments - 1) + segment - 1) * room;
  }
  /// What reaches a bound that itself is to be reached by no fewer than k: each a number in the sample.
  static int room_for(int k) {
    const float sampled = at_most_about(at_most_about(static_cast<float>(k) / kEvery));
    return std::max(static_cast<int>(sampled) * kEvery, kLeastRoom);
  }
};

/// Of a block's memory the part in which chunks land, and entries are ordered afterwards.
template <class E>
SOFTFOLD_HD int large_landing_bytes(const LargeShare& share) {
  const int landing = kFilterWarps * share.ahead * Landing<E, 32>::kBytes, order = OrderRoom::bytes_for(share.room);
  return landing > order ? landing : order;
}

/// What a block of topk_large keeps of its stream. Every function but keep() is called by all its threads together.
class LargeSelect {
 public:
  struct Shared {
    Entry bound;
    int count, limit;  ///< places handed out; no more of them are filled
    OrderShared order;
  };

  __device__ __forceinline__ LargeSelect(Shared& shared, Entry* places, int room, int k)
      : shared_(shared), places_(places), room_(room), k_(k) {
    restart();
  }

  __device__ __forceinline__ Entry bound() const { return shared_.bound; }
  static __device__ __forceinline__ float least(Entry bound) { return value_of(bound); }

  /// As if nothing had been looked at.
  __device__ __forceinline__ void restart() {
    if (threadIdx.x == 0) shared_.bound = 0, shared_.count = 0, shared_.limit = room_;
    __syncthreads();
  }

  /// Before anything is kept: a bound by a sample of the row's n elements; 0 where all of them fit, or are sampled.
  template <class E>
  __device__ __forceinline__ void start(const char* x, std::int64_t n) {
    if (n <= room_) return;
    auto* keys = reinterpret_cast<std::uint32_t*>(places_);
    auto* bins = reinterpret_cast<unsigned*>(places_ + room_) - kBins;
    const int sampled = sample<E>(x, n, keys, static_cast<int>(bins - keys));
    const auto rank =
        static_cast<int>(at_most_about(static_cast<float>(k_) * static_cast<float>(sampled) / static_cast<float>(n)));
    __syncthreads();
    if (rank >= sampled) return;
    const std::uint32_t key = nth(keys, sampled, rank, bins, shared_.order);
    if (threadIdx.x == 0) shared_.bound = static_cast<Entry>(key) << 32;
    __syncthreads();
  }

  /// By all lanes of a warp: keeps at(i) for each bit i of `which`, or where there is no room for all of the warp's,
  /// nothing.
  template <class At>
  __device__ __forceinline__ bool keep(unsigned which, const At& at) const {
    return keep_hits(shared_, places_, room_, which, at);
  }

  /// After a barrier: how many places are filled, from the first on.
  __device__ __forceinline__ int settle() const { return settle_places(shared_, room_); }
  /// After a barrier, with as many places filled: drops all but the k best, if there are more. These set the bound.
  __device__ __noinline__ void raise(unsigned* bins) const {
    const int count = settle();
    if (count <= k_) return;
    const Entry bound = nth(places_, count, k_, bins, shared_.order);
    if (threadIdx.x == 0) shared_.bound = bound, shared_.count = 0;
    __syncthreads();
#pragma unroll 1
    for (int base = 0; base < count; base += kOrderThreads) {
      const int i = base + static_cast<int>(threadIdx.x);
      const Entry e = i < count ? places_[i] : 0;
      __syncthreads();
      // Never beyond what all threads have read: no more are kept than were looked at.
      if (i < count && e >= bound) places_[atomicAdd(&shared_.count, 1)] = e;
    }
    __syncthreads();
  }
  /// More places than were handed out have been filled.
  __device__ __forceinline__ void filled_up_to(int count) const {
    if (threadIdx.x == 0) shared_.count = count;
    __syncthreads();
  }

  __device__ __forceinline__ Entry* places() const { return places_; }
  __device__ __forceinline__ int room() const { return room_; }
  __device__ __forceinline__ int k() const { return k_; }
  __device__ __forceinline__ OrderShared& order() const { return shared_.order; }

 private:
  /// Keys of pairs of vectors that lie evenly in the row, at most `most` of them; how many.
  template <class E>
  static __device__ __forceinline__ int sample(const char* x, std::int64_t n, std::uint32_t* keys, int most) {
    constexpr int kWidth = Tile<E, 32>::kWidth, kAtOnce = 4;
    const char* first = x + (16 - reinterpret_cast<std::uintptr_t>(x) % 16) % 16;
    const char* end = x + n * static_cast<std::int64_t>(sizeof(E));
    const int vectors = static_cast<int>((end - first) / 16);
    int apart = 2 * LargeShare::kEvery;
    while (vectors / apart * 2 * kWidth > most) apart *= 2;
    const int count = vectors / apart * 2;
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < count; at += kAtOnce * kOrderThreads) {
      uint4 raw[kAtOnce];
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a) {
        const int i = min(at + a * kOrderThreads, count - 1);
        raw[a] = reinterpret_cast<const uint4*>(first)[i / 2 * apart + i % 2];
      }
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a) {
        float v[kWidth];
        Packed<E>::unpack(raw[a], v);
        const int i = at + a * kOrderThreads;
#pragma unroll
        for (int j = 0; j < kWidth; ++j)
          if (i < count) keys[i * kWidth + j] = fold::Ranked<float>::of(v[j], 0).key;
      }
    }
    return count * kWidth;
  }

  Shared& shared_;
  Entry* places_;
  int room_, k_;
};

/// Those of a warp's turns that had found no room, read again until one finds none; what is left of them.
template <class E>
__device__ __noinline__ unsigned look_again(Segment<E> part, unsigned again, LargeSelect select) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Entry bound = select.bound();
#pragma unroll 1
  for (; again != 0; again &= again - 1, ++part.turn) {
    const int chunk = warp + kFilterWarps * (__ffs(static_cast<int>(again)) - 1);
    float v[lift::kPerLane];
    part.fetch(chunk, 0);
    part.read(v, chunk);
    const unsigned which = part.reach(v, chunk, bound, LargeSelect::least(bound), true);
    const bool fits = select.keep(which, [&](int i) { return part.entry(chunk, i); });
    __syncwarp();
    if (!fits) break;
  }
  return again;
}

/// By all warps of a block, until none is left; the bound rises in between.
template <class E>
__device__ __forceinline__ void look_at_rest(Segment<E>& part, unsigned again, const LargeSelect& select,
                                             unsigned* bins) {
  while (__syncthreads_or(again != 0 ? 1 : 0) != 0) {
    select.raise(bins);
    fence_for_copy();  // chunks land where the bins are
    __syncthreads();
    const unsigned left = look_again<E>(part, again, select);
    part.turn += __popc(again) - __popc(left) + (left != 0 ? 1 : 0);
    again = left;
  }
}

/// What the blocks of a cluster tell each other: how many entries each has, and once more if they were too few.
struct LargeMail {
  int counts[2][kMostSegments];

  /// By all threads of all blocks, after these have begun: `count` entries of this one to where the first block finds
  /// them. How many all blocks have.
  __device__ __forceinline__ int exchange(const LargeShare& share, std::int64_t row, int attempt, int segment,
                                          const Entry* entries, int count) {
    const int me = static_cast<int>(threadIdx.x);
    if (segment != 0)
      for (int i = me; i < count; i += kOrderThreads) share.entries_of(row, segment)[i] = entries[i];
    if (me < share.segments) lift::Cluster::store(lift::Cluster::map(&counts[attempt][segment], threadIdx.x), count);
    lift::Cluster::arrive();
    lift::Cluster::wait();
    int all = 0;
    for (int s = 0; s < share.segments; ++s) all += counts[attempt][s];
    return all;
  }
};

/// By the first block of a cluster: the other segments' entries, which are `all` with its own, beside these. How many
/// it has then.
__device__ __forceinline__ int gather_segments(const LargeSelect& select, const LargeShare& share, std::int64_t row,
                                               const int* counts, int all, unsigned* bins) {
  constexpr int kAtOnce = 8;
  const int more = all - counts[0];
  int have = counts[0];
#pragma unroll 1
  for (int done = 0; done < more;) {
    const int some = min(more - done, select.room() - have);
    int segment = 1, before = 0;  // of the other segments' entries
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < some; at += kAtOnce * kOrderThreads) {
      Entry entries[kAtOnce];
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a) {
        const int i = done + min(at + a * kOrderThreads, some - 1);
        while (i - before >= counts[segment]) before += counts[segment++];
        entries[a] = share.entries_of(row, segment)[i - before];
      }
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a)
        if (at + a * kOrderThreads < some) select.places()[have + at + a * kOrderThreads] = entries[a];
    }
    done += some, have += some;
    select.filled_up_to(have);
    if (done == more) break;
    select.raise(bins);
    have = select.k();
  }
  __syncthreads();
  return have;
}

/// The results of a row whose `count` kept entries have its k best among them.
__device__ __forceinline__ void put_large(const TopkProblem& p, std::int64_t row,
                                          const fold::LogSumExp<float>::State& s, const LargeSelect& select, int count,
                                          const OrderRoom& room) {
  const TopkRow<float, PlainPlace> result(p, row, s);
  if (threadIdx.x == 0) result.put_lse();
  Entry* entries = select.places();
  const auto turned = [](Entry e) { return e >> 32 | e << 32; };
  if (!p.sorted) {  // by ascending index, which lies below as its complement
    select.raise(room.bins);
    count = select.k();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kOrderThreads) entries[i] = turned(entries[i]);
    __syncthreads();
  }
  put_best(entries, count, select.k(), room, select.order(), [&](int j, Entry e) {
    if (!p.sorted) e = turned(e);
    float value = value_of(e);
    if (value == 0.F) value = result.element(index_of(e));  // which of both zeros it is
    result.put_element(j, index_of(e), value);
  });
}

/// A chunk that finds no room for what it has above the bound is read again, once the bound has risen to the k-th of
/// what is kept; if too few had reached the bound, all chunks, from no bound on.
template <class E>
__global__ void __launch_bounds__(kOrderThreads, 3)
    topk_large(const __grid_constant__ TopkJob job, const __grid_constant__ PlainRows rows,
               const __grid_constant__ LargeShare share) {
  begin_in_order();
  using Fold = lift::WarpFold<Tile<E, 32>::kWidth>;
  using State = fold::LogSumExp<float>::State;
  extern __shared__ __align__(16) char memory[];
  __shared__ LargeSelect::Shared shared;
  __shared__ LargeMail mail;
  __shared__ State nodes[kMostSegmentChunks], root;
  __shared__ CopyBarrier barriers[kFilterWarps][kMostAhead];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(share.segments);
  const int segment = static_cast<int>(blockIdx.x % static_cast<unsigned>(share.segments));
  if (share.joins) lift::Cluster::arrive_relaxed();
  if (threadIdx.x % 32 < kMostAhead) {
    barriers[warp][threadIdx.x % 32].init(1);
    CopyBarrier::publish();
  }
  __syncwarp();
  Segment<E> part(rows, share, row, segment, memory + warp * share.ahead * Landing<E, 32>::kBytes, barriers[warp]);
  part.factor = job.factor;
  for (int i = 0; i < share.ahead; ++i) part.fetch(warp + kFilterWarps * i, i);
  if (threadIdx.x == 0) root = fold::LogSumExp<float>::identity();
  const OrderRoom room(memory);  // where chunks land before
  auto* places = reinterpret_cast<Entry*>(memory + large_landing_bytes<E>(share));
  LargeSelect select(shared, places, share.room, static_cast<int>(job.p.k));
  select.start<E>(rows.x + row * rows.x_stride, rows.n);
  const Entry bound = select.bound();
  const float least = LargeSelect::least(bound);
  unsigned again = 0;  // the warp's turns whose chunk found no room
#pragma unroll 1
  for (int chunk = warp; chunk < part.chunks; chunk += kFilterWarps) {
    float v[lift::kPerLane];
    const lift::Extremes extremes = part.read(v, chunk);
    if (!__all_sync(lift::kWholeWarp, extremes.high < least)) {
      const unsigned which = part.reach(v, chunk, bound, least, false);
      if (!select.keep(which, [&](int i) { return part.entry(chunk, i); })) again |= 1U << part.turn;
    }
    __syncwarp();
    part.fetch(chunk + kFilterWarps * share.ahead, share.ahead);
    ++part.turn;
    if (job.with_states) {
      const auto folded = Fold::terms(v, job.factor.c, extremes);
      if (threadIdx.x % 32 == 0) nodes[chunk] = folded.state;
    }
  }
  __syncthreads();
  if (job.with_states) put_states(part, share, row, segment, nodes, root);
  if (share.states != nullptr && threadIdx.x == 0) share.states[row * share.segments + segment] = root;
  if (share.joins) lift::Cluster::wait();
  int kept = 0, all = 0, attempt = 0;
#pragma unroll 1
  for (;; ++attempt) {
    look_at_rest<E>(part, again, select, room.bins);
    all = kept = select.settle();
    if (share.joins) all = mail.exchange(share, row, attempt, segment, places, kept);
    if (attempt > 0 || all >= select.k()) break;
    select.restart();
    again = part.chunks > warp ? ~0U >> (31 - (part.chunks - 1 - warp) / kFilterWarps) : 0U;  // all
  }
  if (segment != 0) return;
  if (share.joins) {
    join_states(share, row, root);
    kept = gather_segments(select, share, row, mail.counts[attempt], all, room.bins);
  }
  put_large(job.p, row, root, select, kept, room);
}

template <class E>
Grid large_grid(const RowProblem& p, const LargeShare& share) {
  return segment_grid(p.rows, share, kOrderThreads,
                      large_landing_bytes<E>(share) + share.room * static_cast<int>(sizeof(Entry)));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
