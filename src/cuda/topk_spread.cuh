// The k best of a row whose chunks all have a warp of one cluster. The largest elements of all chunks set one bound for
// the whole row, which little more than k elements reach: these cross to the first block, which finishes the row.
#pragma once

#include "cuda/topk_segment.cuh"
#include "softfold/lift/cluster.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// What the blocks of a cluster send each other.
struct SpreadMail {
  static constexpr int kMostBlocks = 16, kMostChunks = kMostBlocks * kFilterWarps, kRoom = 64;
  alignas(8) std::uint32_t keys[2 * kMostChunks];  ///< the largest of either half of a chunk's lanes
  int counts[kMostBlocks];                         ///< of the elements that reach the bound, a block
  int count;                                       ///< this block's
  Entry entries[kMostBlocks][kRoom];               ///< in the first block: those elements
};
static_assert(2 * SpreadMail::kMostChunks <= kMostKeys);

/// A block's part in it. Every function but keep() is called by all its threads, in this order.
class Spread {
 public:
  /// Whether a row's best can be found so, where has_warps().
  static __device__ __forceinline__ bool takes(const FilterRow& row, std::int64_t n) {
    return row.factor.plain && row.k > 0 && row.k <= 2 * lift::chunk_count(n);
  }
  /// Whether all chunks of a row have a warp.
  static bool has_warps(const TopkShare& share) { return share.joins && share.chunks <= kFilterWarps; }

  __device__ __forceinline__ Spread(SpreadMail& mail, const TopkShare& share, int segment, std::int64_t n)
      : mail_(mail), segments_(share.segments), segment_(segment), chunks_(static_cast<int>(lift::chunk_count(n))) {
    if (threadIdx.x == 0) mail_.count = 0;
    lift::Cluster::arrive_relaxed();
  }

  /// key: of the largest of the lane's elements of the warp's chunk in the row.
  __device__ __forceinline__ void tell(int chunk, std::uint32_t key) {
    const bool upper = lane() >= 16;
    const std::uint32_t low = __reduce_max_sync(lift::kWholeWarp, upper ? 0U : key);
    const std::uint32_t high = __reduce_max_sync(lift::kWholeWarp, upper ? key : 0U);
    lift::Cluster::wait();  // all blocks have begun
    if (lane() < segments_ && chunk < chunks_) {
      const auto to = lift::Cluster::map(mail_.keys + 2 * chunk, static_cast<unsigned>(lane()));
      lift::Cluster::store(to, static_cast<std::uint64_t>(high) << 32 | low);
    }
    lift::Cluster::arrive();
  }
  /// At least k elements of the row reach it.
  __device__ __forceinline__ std::uint32_t bound(int k) const {
    lift::Cluster::wait();
    return bound_of([&](int i) { return mail_.keys[i]; }, 2 * chunks_, k);
  }
  /// By all lanes of a warp: at(i) for each bit i of `which` reaches it.
  template <class At>
  __device__ __forceinline__ void keep(unsigned which, const At& at) {
    const WarpHits hits(which);
    if (hits.all == 0) return;
    int from = 0;
    if (lane() == 0) from = atomicAdd(&mail_.count, hits.all);
    from = __shfl_sync(lift::kWholeWarp, from, 0);
    if (from + hits.all > SpreadMail::kRoom) return;
    unsigned to = lift::Cluster::map(mail_.entries[segment_] + from + hits.before, 0);
#pragma unroll 1
    for (; which != 0; which &= which - 1, to += sizeof(Entry))
      lift::Cluster::store(to, at(__ffs(static_cast<int>(which)) - 1));
  }
  /// After a barrier of the block.
  __device__ __forceinline__ void send() {
    if (static_cast<int>(threadIdx.x) < segments_)
      lift::Cluster::store(lift::Cluster::map(mail_.counts + segment_, threadIdx.x), mail_.count);
    lift::Cluster::arrive();
  }
  /// Whether all elements that reach the bound have found room; the same in all blocks.
  __device__ __forceinline__ bool arrives() {
    lift::Cluster::wait();
    count_ = lane() < segments_ ? mail_.counts[lane()] : 0;
    return __all_sync(lift::kWholeWarp, count_ <= SpreadMail::kRoom) != 0;
  }
  /// By the first block: the k best, best first, in `best`, behind which there is room for what has arrived; how many
  /// there are.
  __device__ __forceinline__ int finish(Entry* best, int k) const {
    const int end = sum_up_to<SpreadMail::kMostBlocks>(count_);
    const int all = __shfl_sync(lift::kWholeWarp, end, SpreadMail::kMostBlocks - 1);
    constexpr int kTeam = kFilterWarps * 32 / SpreadMail::kMostBlocks;
    const int from = static_cast<int>(threadIdx.x) / kTeam;
    const int count = __shfl_sync(lift::kWholeWarp, count_, from);
    Entry* to = best + k + __shfl_sync(lift::kWholeWarp, end, from) - count;
    for (int i = static_cast<int>(threadIdx.x) % kTeam; i < count; i += kTeam) to[i] = mail_.entries[from][i];
    __syncthreads();
    put_in_order(best + k, all, k, best);
    return min(all, k);
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  SpreadMail& mail_;
  int segments_, segment_, chunks_;
  int count_ = 0;  ///< of the block of the lane's number
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
