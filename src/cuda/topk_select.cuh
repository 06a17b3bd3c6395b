// The k best of a stream that a block of threads looks at, a round at a time: what may be among them is kept in shared
// memory, and the bound below which nothing is kept rises when that is full.
#pragma once

#include "cuda/lane_sums.cuh"
#include "cuda/rows.cuh"
#include "softfold/fold/topk.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// An element and its place in one number that orders as fold::Ranked does: the key above, the complement of the index
/// (of rows below 2^32) below. 0 is no element.
using Entry = std::uint64_t;

__device__ __forceinline__ Entry entry_of(float x, std::uint32_t index) {
  return static_cast<Entry>(fold::Ranked<float>::of(x, 0).key) << 32 | static_cast<std::uint32_t>(~index);
}
__device__ __forceinline__ float value_of(Entry e) {
  return fold::Ranked<float>{static_cast<std::uint32_t>(e >> 32), 0}.value();
}
__device__ __forceinline__ std::uint32_t index_of(Entry e) { return ~static_cast<std::uint32_t>(e); }

/// Where a lane's hits, a bit each in `which`, stand among those of its warp. By all lanes together.
struct WarpHits {
  int before = 0, all = 0;

  __device__ __forceinline__ explicit WarpHits(unsigned which) {
    const int lane = static_cast<int>(threadIdx.x) % 32, own = __popc(which);
    const unsigned some = __ballot_sync(lift::kWholeWarp, own != 0);
    if (some == 0) return;
    before = __popc(some & ((1U << lane) - 1U)), all = __popc(some);
    if (!__any_sync(lift::kWholeWarp, own > 1)) return;
    before = sum_up_to(own);
    all = __shfl_sync(lift::kWholeWarp, before, 31);
    before -= own;
  }
};

/// By all lanes of a warp: puts at(i) for each bit i of `which` where `shared` hands out places, of which there are
/// `room`; where there are too few for all of the warp's, nothing.
template <class Shared, class At>
__device__ __forceinline__ bool keep_hits(Shared& shared, Entry* places, int room, unsigned which, const At& at) {
  const WarpHits hits(which);
  if (hits.all == 0) return true;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int from = 0;
  if (lane == 0) from = atomicAdd(&shared.count, hits.all);
  from = __shfl_sync(lift::kWholeWarp, from, 0);
  if (from + hits.all > room) {  // as for all that come later: the count never falls
    if (lane == 0) atomicMin(&shared.limit, from);
    return false;
  }
  Entry* to = places + from + hits.before;
#pragma unroll 1
  for (; which != 0; which &= which - 1) *to++ = at(__ffs(static_cast<int>(which)) - 1);
  return true;
}

/// By all threads of a block after a barrier, before anything else is kept: how many places are filled, from the first
/// on.
template <class Shared>
__device__ __forceinline__ int settle_places(Shared& shared, int room) {
  const int count = min(shared.count, shared.limit);
  __syncthreads();
  if (threadIdx.x == 0) shared.count = count, shared.limit = room;
  __syncthreads();
  return count;
}

inline constexpr int kMostKeys = 256;
inline constexpr int kBoundSlack = 16;  ///< more than k that may reach a bound
inline constexpr int kBoundBits = 20;   ///< of a key that bound_of() looks at; what is below changes little

/// A key that at least k of `count` <= kMostKeys given ones reach, and if the keys' leading bits allow it not many
/// more; 0 if there are fewer than k. Every warp looks at all of them: a barrier a bit would take longer.
template <class At>
__device__ __forceinline__ std::uint32_t bound_of(const At& at, int count, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint32_t own[kMostKeys / 32], high = 0, low = ~0U;
#pragma unroll
  for (int i = 0; i < kMostKeys / 32; ++i) {
    own[i] = 0;
    if (32 * i + lane >= count) continue;
    own[i] = at(lane + 32 * i);
    high = max(high, own[i]), low = min(low, own[i]);
  }
  high = __reduce_max_sync(lift::kWholeWarp, high), low = __reduce_min_sync(lift::kWholeWarp, low);
  int bit = 31 - __clz(static_cast<int>(high ^ low));  // -1: all are one
  std::uint32_t least = bit < 0 ? high : high & ~((2U << bit) - 1U);
  if (count < k) least = 0, bit = -1;
  // Two bits a step, whose three trials are counted in ten bits each: the sum over the lanes takes longest.
  static_assert(kMostKeys < 1 << 10);
#pragma unroll 1
  for (; bit > 31 - kBoundBits; bit -= 2) {
    const std::uint32_t upper = 1U << bit, lower = upper / 2;
    unsigned some = 0;
#pragma unroll
    for (int i = 0; i < kMostKeys / 32; ++i) {
      if (own[i] >= (least | lower)) some += 1U;
      if (own[i] >= (least | upper)) some += 1U << 10;
      if (own[i] >= (least | upper | lower)) some += 1U << 20;
    }
    const unsigned all = __reduce_add_sync(lift::kWholeWarp, some);
    const int reached[3] = {static_cast<int>(all & 1023U), static_cast<int>(all >> 10 & 1023U),
                            static_cast<int>(all >> 20)};
    if (reached[0] < k) continue;
    const int best = reached[2] >= k ? 2 : reached[1] >= k ? 1 : 0;
    least |= best == 2 ? upper | lower : best == 1 ? upper : lower;
    if ((best == 2 ? reached[2] : best == 1 ? reached[1] : reached[0]) <= k + kBoundSlack) break;
  }
  return least;
}

/// By all threads of a block: the k best of `count` different entries, best first, to `to`. As many neighbouring
/// threads an entry as there are enough of; each looks at its part of the others.
__device__ __forceinline__ void put_in_order(const Entry* entries, int count, int k, Entry* to) {
  constexpr int kAtOnce = 8;
  const int threads = static_cast<int>(blockDim.x);
  int team = 1;
  while (team < 32 && 2 * team * count <= threads) team *= 2;
  const int part = static_cast<int>(threadIdx.x) % team;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) / team; i - i % 32 < count; i += threads / team) {
    const Entry e = i < count ? entries[i] : 0;
    int rank = 0;
#pragma unroll 1
    for (int j = part; j < count; j += kAtOnce * team) {
      Entry other[kAtOnce];
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a) other[a] = j + a * team < count ? entries[j + a * team] : 0;
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a) rank += other[a] > e ? 1 : 0;
    }
    for (int distance = 1; distance < team; distance *= 2) rank += __shfl_xor_sync(lift::kWholeWarp, rank, distance);
    if (i < count && part == 0 && rank < k) to[rank] = e;
  }
  __syncthreads();
}

/// k best of a block's stream. Every function but keep() is called by all threads of the block together.
///
/// Kept is everything seen that is at least bound(); at least k elements seen are, once the bound is not 0. Who keeps
/// without asking may be told that there is no room. make_room() promises it for kPer elements a thread: of all
/// threads' best, the k-th bounds the k-th of all; where that bound is used at most k + kSlack threads have anything to
/// keep, so (k + kSlack) * kPer places are always enough.
template <int kPer>
class BlockSelect {
 public:
  static constexpr int kSlack = kBoundSlack, kSpare = kPer == 1 ? 1024 : 0;
  static constexpr int capacity_for(int k) { return (k + kSlack) * kPer + kSpare; }
  struct Shared {
    Entry bound;
    float least;       ///< its value; NaN where everything passes
    int count, limit;  ///< places handed out; no more of them are filled
    int kept, room;    ///< room: at least so many places are free
  };

  /// places: capacity_for(k) of them in shared memory.
  __device__ __forceinline__ BlockSelect(Shared& shared, Entry* places, int k)
      : shared_(shared), places_(places), k_(k) {
    if (threadIdx.x == 0) {
      set_bound(shared_, 0);
      shared_.count = 0, shared_.limit = shared_.room = capacity_for(k);
    }
    __syncthreads();
  }

  __device__ __forceinline__ Entry bound() const { return shared_.bound; }
  /// Its value. NaN: everything passes, for there is no bound, or it is NaN itself.
  __device__ __forceinline__ float least() const { return shared_.least; }

  /// Before anything is kept: at least k elements to come are known to reach the bound.
  __device__ __forceinline__ void start_at(Entry bound) {
    if (threadIdx.x == 0) set_bound(shared_, bound);
    __syncthreads();
  }

  /// Before anything is kept: a bound by the keys of the threads' largest elements; 0: the thread has none.
  __device__ __forceinline__ void start(std::uint32_t key) {
    static_assert(capacity_for(1) * sizeof(Entry) >= kMostKeys * sizeof(key));
    auto* keys = reinterpret_cast<std::uint32_t*>(places_);
    keys[threadIdx.x] = key;
    __syncthreads();
    start_at(static_cast<Entry>(bound_of([&](int i) { return keys[i]; }, static_cast<int>(blockDim.x), k_)) << 32);
  }

  /// Raises the bound by what is kept, where that is much more than k.
  __device__ __forceinline__ void tighten() {
    __syncthreads();
    const bool much = shared_.count > k_ + 2 * kSlack && shared_.count <= capacity_for(k_);
    __syncthreads();
    if (much) raise<false>(shared_, places_, k_, 0);
  }

  /// After it each thread may keep kPer elements. No element of this thread is above `highest`; `best` is the best of
  /// them.
  __device__ __forceinline__ void make_room(Entry highest, Entry best) {
    const int hits = __syncthreads_count(highest >= bound() && highest != 0) * kPer;
    int room = shared_.room;
    if (room < hits) {
      room = capacity_for(k_) - settle();
      if (room < hits) {
        raise<true>(shared_, places_, k_, best);
        return;
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) shared_.room = room - hits;
    __syncthreads();
  }

  /// Whether anything up to `highest` would be kept.
  __device__ __forceinline__ bool wants(Entry highest) const { return highest >= bound() && highest != 0; }

  /// By all lanes of a warp: keeps at(i) for each bit i of `which`, or where there is no room for all of the warp's,
  /// nothing.
  template <class At>
  __device__ __forceinline__ bool keep(unsigned which, const At& at) {
    return keep_hits(shared_, places_, capacity_for(k_), which, at);
  }
  /// As if nothing had been kept; the bound stays.
  __device__ __forceinline__ void restart() {
    __syncthreads();
    if (threadIdx.x == 0) shared_.count = 0, shared_.limit = shared_.room = capacity_for(k_);
    __syncthreads();
  }
  /// What was kept without make_room() counts from here on.
  __device__ __forceinline__ void recount() {
    __syncthreads();
    if (threadIdx.x == 0) shared_.room = 0;
  }

  /// The k best, best first, in `to` (room for k, shared); returns how many there are.
  __device__ __forceinline__ int finish(Entry* to) {
    __syncthreads();
    if (settle() > 2 * (k_ + kSlack)) raise<false>(shared_, places_, k_, 0);
    const int count = shared_.count;
    put_in_order(places_, count, k_, to);
    return min(count, k_);
  }

 private:
  static __device__ __forceinline__ void set_bound(Shared& shared, Entry bound) {
    shared.bound = bound;
    shared.least = fold::Ranked<float>{static_cast<std::uint32_t>(bound >> 32), 0}.value();
  }

  __device__ __forceinline__ int settle() { return settle_places(shared_, capacity_for(k_)); }

  /// How many of the first `count` places, and with kBest of the threads' best, are at least e.
  template <bool kBest>
  static __device__ __forceinline__ int at_least(Entry e, const Entry* places, int count, Entry best) {
    int n = kBest ? __syncthreads_count(best >= e) : 0;
    for (int base = 0; base < count; base += static_cast<int>(blockDim.x)) {
      const int i = base + static_cast<int>(threadIdx.x);
      n += __syncthreads_count(i < count && places[i] >= e);
    }
    return n;
  }

  /// Raises the bound to the k-th of what is kept and of all threads' best, or to somewhat less, such that few enough
  /// are at least that; then drops what is below. Where many are kept a bit at a time from the top.
  template <bool kBest>
  static __device__ __noinline__ void raise(Shared& shared, Entry* places, int k, Entry best) {
    const int count = shared.count;
    if (best < shared.bound) best = 0;
    Entry bound = 0;
    if (!kBest && count <= kMostKeys)
      bound = static_cast<Entry>(bound_of([&](int i) { return static_cast<std::uint32_t>(places[i] >> 32); }, count, k))
              << 32;
    int have = at_least<kBest>(max(bound, Entry{1}), places, count, best);
#pragma unroll 1
    for (int bit = bound == 0 ? 63 : 63 - kBoundBits; bit >= 0 && have > k + kSlack; --bit) {
      const Entry trial = bound | Entry{1} << bit;
      const int n = at_least<kBest>(trial, places, count, best);
      if (n < k) continue;
      bound = trial;
      have = n;
    }
    bound = max(bound, shared.bound);
    __syncthreads();
    if (threadIdx.x == 0) {
      set_bound(shared, bound);
      shared.kept = 0;
      shared.room = capacity_for(k) - have * kPer;
    }
    __syncthreads();
    for (int base = 0; base < count; base += static_cast<int>(blockDim.x)) {
      const int i = base + static_cast<int>(threadIdx.x);
      const Entry e = i < count ? places[i] : 0;
      __syncthreads();
      // Never beyond what all threads have read: no more are kept than were looked at.
      if (e >= bound && e != 0) places[atomicAdd(&shared.kept, 1)] = e;
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.count = shared.kept;
    __syncthreads();
  }

  Shared& shared_;
  Entry* places_;
  int k_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
