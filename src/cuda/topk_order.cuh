// Which of many words in shared memory are the largest, and their order: by a block of threads, in counted steps.
#pragma once

#include "cuda/topk_select.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kOrderWarps = 8, kOrderThreads = 32 * kOrderWarps;
inline constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;

/// What a block of kOrderThreads finds its way with, beside kBins counts.
struct OrderShared {
  int sums[kOrderWarps];
  int digit, left, equal;                                 ///< of nth()
  std::uint32_t high, low, differing, differing_indices;  ///< of Buckets
};

/// The sum of what the threads before this one have. By all threads of kWarps warps together, with one barrier; another
/// one has to lie before the next call.
template <class Count, int kWarps>
__device__ __forceinline__ Count sum_before(Count own, Count (&sums)[kWarps]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Count up_to = sum_up_to(own);
  if (lane == 31) sums[warp] = up_to;
  __syncthreads();
  Count before = up_to - own;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) before += w < warp ? sums[w] : 0;
  return before;
}

__device__ __forceinline__ void clear_bins(unsigned* bins) {
  for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kOrderThreads) bins[b] = 0;
  __syncthreads();
}

/// The rank-th largest of `count` >= rank words, with zeros for those of its lower bits that are not needed to tell
/// `rank` words from the others. By all threads together; ends with a barrier.
template <class Word>
__device__ __forceinline__ Word nth(const Word* words, int count, int rank, unsigned* bins, OrderShared& shared) {
  constexpr int kPer = kBins / kOrderThreads;
  Word prefix = 0, mask = 0;
  int shift = 8 * static_cast<int>(sizeof(Word));
#pragma unroll 1
  do {
    shift = max(shift - kDigitBits, 0);
    clear_bins(bins);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kOrderThreads) {
      const Word word = words[i];
      if ((word & mask) == prefix) atomicAdd(&bins[kBins - 1 - static_cast<int>(word >> shift & (kBins - 1))], 1U);
    }
    __syncthreads();
    const unsigned* own = bins + kPer * threadIdx.x;  // from the largest digit on
    int all = 0;
#pragma unroll
    for (int b = 0; b < kPer; ++b) all += static_cast<int>(own[b]);
    int left = rank - sum_before(all, shared.sums);
    if (left > 0 && left <= all) {
      int b = 0;
      for (; left > static_cast<int>(own[b]); ++b) left -= static_cast<int>(own[b]);
      shared.digit = kBins - 1 - (kPer * static_cast<int>(threadIdx.x) + b);
      shared.left = left, shared.equal = static_cast<int>(own[b]);
    }
    __syncthreads();
    prefix |= static_cast<Word>(shared.digit) << shift;
    mask = ~Word{0} << shift;
    rank = shared.left;
  } while (rank != shared.equal && shift > 0);
  __syncthreads();
  return prefix;
}

/// The best first: a bitonic sort of any count, as if padded by what comes last. By all threads of a block together.
template <class A, class Before>
__device__ void sort_best_first(A* a, std::int64_t count, const Before& before) {
  const auto pass = [&](std::int64_t flip) {
    for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const std::int64_t j = i ^ flip;
      if (j <= i || j >= count || !before(a[j], a[i])) continue;
      const A swapped = a[i];
      a[i] = a[j];
      a[j] = swapped;
    }
    __syncthreads();
  };
#pragma unroll 1
  for (std::int64_t run = 2; run < 2 * count; run *= 2) {
    pass(run - 1);
#pragma unroll 1
    for (std::int64_t stride = run / 4; stride > 0; stride /= 2) pass(stride);
  }
}

/// Cuts the range of given entries into kBins parts, the best entries in the first one. Bits that all keys have alike
/// at their end, as those of 16-bit elements, make room for leading bits of the indices, so that equal elements spread.
class Buckets {
 public:
  /// By all threads together; ends with a barrier.
  __device__ __forceinline__ Buckets(const Entry* entries, int count, OrderShared& shared) {
    if (threadIdx.x == 0) shared.high = 0, shared.low = ~0U, shared.differing = shared.differing_indices = 0;
    __syncthreads();
    const Entry first = entries[0];
    std::uint32_t high = 0, low = ~0U;
    Entry differing = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kOrderThreads) {
      const auto key = static_cast<std::uint32_t>(entries[i] >> 32);
      high = max(high, key), low = min(low, key), differing |= entries[i] ^ first;
    }
    high = __reduce_max_sync(lift::kWholeWarp, high), low = __reduce_min_sync(lift::kWholeWarp, low);
    const unsigned keys = __reduce_or_sync(lift::kWholeWarp, static_cast<unsigned>(differing >> 32));
    const unsigned indices = __reduce_or_sync(lift::kWholeWarp, static_cast<unsigned>(differing));
    if (threadIdx.x % 32 == 0) {
      atomicMax(&shared.high, high), atomicMin(&shared.low, low);
      atomicOr(&shared.differing, keys), atomicOr(&shared.differing_indices, indices);
    }
    __syncthreads();
    alike_ = shared.differing == 0 ? 32 : __ffs(static_cast<int>(shared.differing)) - 1;
    skipped_ = __clz(static_cast<int>(shared.differing_indices));
    const auto ends = static_cast<std::uint32_t>((std::uint64_t{1} << alike_) - 1U);
    high_ = shared.high | ends;
    factor_ = kBins / (static_cast<float>(high_ - (shared.low & ~ends)) + 1.F);
  }
  /// Rises as entries fall: every step is monotone.
  __device__ __forceinline__ int of(Entry e) const {
    const auto leading = static_cast<std::uint32_t>(e >> 32 >> alike_);
    const auto indices =
        static_cast<std::uint32_t>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(e)) << skipped_);
    const std::uint32_t word = __funnelshift_rc(indices, leading, static_cast<unsigned>(32 - alike_));
    return min(static_cast<int>(static_cast<float>(high_ - word) * factor_), kBins - 1);
  }

 private:
  int alike_, skipped_;  ///< bits at the keys' end and at the indices' beginning that all have alike
  std::uint32_t high_;
  float factor_;
};

/// Where entries are ordered: counts, and numbers of entries.
struct OrderRoom {
  unsigned* bins;        ///< kBins
  std::uint16_t* order;  ///< one an entry

  static SOFTFOLD_HD int bytes_for(int entries) { return kBins * 4 + (2 * entries + 15) / 16 * 16; }
  __device__ __forceinline__ explicit OrderRoom(char* memory)
      : bins(reinterpret_cast<unsigned*>(memory)), order(reinterpret_cast<std::uint16_t*>(memory + kBins * 4)) {}
};

/// put(j, e) for the k best of `count` different entries, j-th from the best, a thread each. By all threads together.
/// Buckets leave a few entries each, whose ranks are counted; where one has many, the entries are sorted.
template <class Put>
__device__ __forceinline__ void put_best(Entry* entries, int count, int k, const OrderRoom& room, OrderShared& shared,
                                         const Put& put) {
  constexpr int kPer = kBins / kOrderThreads, kMostInBucket = 64;
  const Buckets buckets(entries, count, shared);
  const int me = static_cast<int>(threadIdx.x);
  clear_bins(room.bins);
  for (int i = me; i < count; i += kOrderThreads) atomicAdd(&room.bins[buckets.of(entries[i])], 1U);
  __syncthreads();
  unsigned* own = room.bins + kPer * me;
  unsigned sizes[kPer], most = 0;
  int all = 0;
#pragma unroll
  for (int b = 0; b < kPer; ++b) sizes[b] = own[b], all += static_cast<int>(sizes[b]), most = max(most, sizes[b]);
  auto begin = static_cast<unsigned>(sum_before(all, shared.sums));
  if (__syncthreads_or(most > kMostInBucket ? 1 : 0) != 0) {
    sort_best_first(entries, count, [](Entry a, Entry b) { return a > b; });
    for (int j = me; j < min(count, k); j += kOrderThreads) put(j, entries[j]);
    return;
  }
#pragma unroll
  for (int b = 0; b < kPer; ++b) own[b] = begin, begin += sizes[b];
  __syncthreads();
  for (int i = me; i < count; i += kOrderThreads)
    room.order[atomicAdd(&room.bins[buckets.of(entries[i])], 1U)] = static_cast<std::uint16_t>(i);
  __syncthreads();  // a bucket's place now says where it ends
  for (int j = me; j < count; j += kOrderThreads) {
    const Entry e = entries[room.order[j]];
    const int bucket = buckets.of(e), end = static_cast<int>(room.bins[bucket]);
    int at = bucket == 0 ? 0 : static_cast<int>(room.bins[bucket - 1]), rank = at;
    if (rank >= k) break;  // as for all that come later
    for (; at < end; ++at) rank += entries[room.order[at]] > e ? 1 : 0;
    if (rank < k) put(rank, e);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
