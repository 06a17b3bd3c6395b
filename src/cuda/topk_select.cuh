// The k best of a stream that a block of threads looks at, a round at a time: what may be among them is kept in shared
// memory, and the bound below which nothing is kept rises when that is full.
#pragma once

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
__device__ __forceinline__ std::uint32_t index_of(Entry e) { return ~static_cast<std::uint32_t>(e); }

/// k best of a block's stream. Every function but keep() is called by all threads of the block together.
///
/// Kept is everything seen that is at least `bound`; at least k elements seen are, once bound is not 0. A round brings
/// up to kPer elements a thread. Of all rounds' best a thread, the k-th bounds the k-th of all; where that bound is
/// used at most k + kSlack threads have anything to keep: so (k + kSlack) * kPer places are always enough. Spare ones
/// make that rare.
template <int kPer>
class BlockSelect {
 public:
  static constexpr int kSlack = 16, kSpare = 1024;
  static constexpr int capacity_for(int k) { return (k + kSlack) * kPer + kSpare; }
  struct Shared {
    int count, limit;  ///< places handed out; no more of them are filled
    int kept;
    int sums[4];
  };

  /// places: capacity_for(k) of them in shared memory.
  __device__ __forceinline__ BlockSelect(Shared& shared, Entry* places, int k)
      : shared_(shared), places_(places), k_(k), room_(capacity_for(k)) {
    if (threadIdx.x == 0) shared_.count = 0, shared_.limit = capacity_for(k);
    __syncthreads();
  }

  __device__ __forceinline__ Entry bound() const { return bound_; }

  /// By all threads: after it each of them may keep kPer elements. No element of this thread is above `highest`; `best`
  /// is the best of them.
  __device__ __forceinline__ void make_room(Entry highest, Entry best) {
    const int hits = __syncthreads_count(highest >= bound_ && highest != 0);
    if (room_ < hits * kPer) {
      room_ = capacity_for(k_) - settle();
      if (room_ < hits * kPer) return raise(best);
    }
    room_ -= hits * kPer;
  }

  /// Whether anything up to `highest` would be kept.
  __device__ __forceinline__ bool wants(Entry highest) const { return highest >= bound_ && highest != 0; }

  /// By all lanes of a warp: keeps at(i) for each bit i of `which`, or where there is no room for all of the warp's,
  /// nothing. make_room() is to be called before, or after for what was not kept.
  template <class At>
  __device__ __forceinline__ bool keep(unsigned which, const At& at) {
    const int lane = static_cast<int>(threadIdx.x) % 32, own = __popc(which);
    const int all = __reduce_add_sync(lift::kWholeWarp, own);
    if (all == 0) return true;
    int from = 0;
    if (lane == 0) from = atomicAdd(&shared_.count, all);
    from = __shfl_sync(lift::kWholeWarp, from, 0);
    if (from + all > capacity_for(k_)) {  // as for all that come later: the count never falls
      if (lane == 0) atomicMin(&shared_.limit, from);
      return false;
    }
    int before = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(lift::kWholeWarp, before, distance);
      if (lane >= distance) before += other;
    }
    Entry* to = places_ + from + before - own;
#pragma unroll 1
    for (; which != 0; which &= which - 1) *to++ = at(__ffs(static_cast<int>(which)) - 1);
    return true;
  }
  /// What was kept without make_room() counts from here on.
  __device__ __forceinline__ void recount() { room_ = 0; }

  /// The k best, best first, in `to` (room for k, shared); returns how many there are.
  __device__ __forceinline__ int finish(Entry* to) {
    __syncthreads();
    if (settle() > 2 * (k_ + kSlack)) raise(0);
    const int count = shared_.count;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
      const Entry e = places_[i];
      int rank = 0;
#pragma unroll 4
      for (int j = 0; j < count; ++j) rank += places_[j] > e ? 1 : 0;
      if (rank < k_) to[rank] = e;
    }
    __syncthreads();
    return min(count, k_);
  }

 private:
  /// After a barrier, before anything else is kept: how many places are filled, from the first on.
  __device__ __forceinline__ int settle() {
    const int count = min(shared_.count, shared_.limit);
    __syncthreads();
    if (threadIdx.x == 0) shared_.count = count, shared_.limit = capacity_for(k_);
    __syncthreads();
    return count;
  }

  /// A number added over the block. Successive calls alternate between the sums.
  __device__ __forceinline__ int add_over_block(int a, int turn) {
    a = __reduce_add_sync(lift::kWholeWarp, a);
    if (threadIdx.x % 32 == 0) atomicAdd(&shared_.sums[turn % 4], a);
    __syncthreads();
    if (threadIdx.x == 0) shared_.sums[(turn + 2) % 4] = 0;
    return shared_.sums[turn % 4];
  }

  /// Raises the bound to the k-th of what is kept and of all threads' best, or to somewhat less: a bit at a time from
  /// the top, until few enough are at least that; then drops what is below.
  __device__ __noinline__ void raise(Entry best) {
    const int count = shared_.count;
    if (best < bound_) best = 0;
    if (threadIdx.x < 4) shared_.sums[threadIdx.x] = 0;
    if (threadIdx.x == 0) shared_.kept = 0;
    __syncthreads();
    const auto at_least = [&](Entry e) {
      int n = best >= e ? 1 : 0;
      for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
        n += places_[i] >= e ? 1 : 0;
      return n;
    };
    int turn = 0, have = add_over_block(at_least(1), turn++);
    Entry bound = 0;
#pragma unroll 1
    for (int bit = 63; bit >= 0 && have > k_ + kSlack; --bit) {
      const Entry trial = bound | Entry{1} << bit;
      const int n = add_over_block(at_least(trial), turn++);
      if (n < k_) continue;
      bound = trial;
      have = n;
    }
    if (bound > bound_) bound_ = bound;
    drop(count);
    room_ = capacity_for(k_) - have * kPer;
  }

  /// Moves what is at least the bound to the front.
  __device__ __forceinline__ void drop(int count) {
    for (int base = 0; base < count; base += static_cast<int>(blockDim.x)) {
      const int i = base + static_cast<int>(threadIdx.x);
      const Entry e = i < count ? places_[i] : 0;
      __syncthreads();
      // Never beyond what all threads have read: no more are kept than were looked at.
      if (e >= bound_ && e != 0) places_[atomicAdd(&shared_.kept, 1)] = e;
    }
    __syncthreads();
    if (threadIdx.x == 0) shared_.count = shared_.kept;
    __syncthreads();
  }

  Shared& shared_;
  Entry* places_;
  int k_, room_;  ///< room_: at least so many places are free
  Entry bound_ = 0;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
