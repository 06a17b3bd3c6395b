// topk of short plain rows for a larger k, in registers: a warp a row, or a block of a warp a chunk. The key of the
// k-th best is found bit by bit from the highest one: each time the row's keys that reach it are counted. Those that do
// are ranked in shared memory.
#pragma once

#include "cuda/small_blocks.cuh"
#include "cuda/topk_row.cuh"
#include "cuda/topk_select.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kMostSearchK = 256;

/// kWarps: that have a row.
template <int kWarps>
struct SearchBlock {
  static constexpr int kRows = kWarps == 1 ? 4 : 1, kThreads = 32 * kWarps * kRows;
};

/// What they exchange.
template <int kWarps>
struct SearchShared {
  Entry found[kMostSearchK], ranked[kMostSearchK];
  fold::LogSumExp<float>::State states[kWarps];
  int counts[2][kWarps];

  static __device__ __forceinline__ void sync() {
    if constexpr (kWarps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
};

/// One of kWarps warps that have a row of up to 32 * kCount elements each, a lane's a warp apart.
template <class E, int kCount, int kWarps>
class RowSearch {
 public:
  using Shared = SearchShared<kWarps>;
  /// Elements of 16 bits, widened, tell nothing apart by these.
  static constexpr int kLowBits = sizeof(E) == 4 ? 0 : std::is_same_v<E, fold::BFloat16> ? 16 : 13;

  __device__ __forceinline__ RowSearch(const E* x, int n, Shared& shared)
      : lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(kWarps == 1 ? 0 : static_cast<int>(threadIdx.x) / 32),
        shared_(shared) {
    E own[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) own[j] = x[min(element(j), n - 1)];
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      keys_[j] = element(j) < n ? fold::Ranked<float>::of(fold::widen(own[j]), 0).key : 0U;
  }
  /// The k best of at least as many, by ascending index.
  __device__ __forceinline__ void find(int k) {
    std::uint32_t least = 0;  // of which at least k are as large
    int count = 0;
#pragma unroll 1
    for (int bit = 31; bit >= kLowBits && count != k; --bit) {
      const std::uint32_t next = least | 1U << bit;
      const int reach = all_of(count_of([&](std::uint32_t key) { return key >= next; }));
      if (reach >= k) least = next, count = reach;
    }
    const std::uint32_t last = least | ((1U << kLowBits) - 1U);
    const int above = count_of([&](std::uint32_t key) { return key > last; });
    const int reach = kWarps == 1 ? 0 : count_of([&](std::uint32_t key) { return key >= least; });
    // Of those that equal the k-th, the first.
    int equal = k - all_of(above), at = 0;
    if constexpr (kWarps > 1) {
      const auto& aboves = shared_.counts[turn_ ^ 1];
      const auto& reaches = exchange(reach);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w == warp_) break;
        const int taken = min(reaches[w] - aboves[w], equal);
        at += aboves[w] + taken, equal -= taken;
      }
    }
    int equal_at = 0;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const bool reaches = keys_[j] >= least, equals = reaches && keys_[j] <= last;
      const unsigned all_equal = __ballot_sync(lift::kWholeWarp, equals);
      const bool taken = reaches && (!equals || equal_at + before(all_equal) < equal);
      const unsigned all = __ballot_sync(lift::kWholeWarp, taken);
      if (taken)
        shared_.found[at + before(all)] = static_cast<Entry>(keys_[j]) << 32 | ~static_cast<std::uint32_t>(element(j));
      at += __popc(all), equal_at += __popc(all_equal);
    }
    Shared::sync();
  }

 private:
  __device__ __forceinline__ int element(int j) const { return 32 * kCount * warp_ + lane_ + 32 * j; }
  template <class Of>
  __device__ __forceinline__ int count_of(const Of& of) const {
    int count = 0;
#pragma unroll
    for (int j = 0; j < kCount; ++j) count += of(keys_[j]) ? 1 : 0;
    return __reduce_add_sync(lift::kWholeWarp, count);
  }
  /// What all warps have, until the exchange after the next.
  __device__ __forceinline__ const int (&exchange(int own))[kWarps] {
    int(&counts)[kWarps] = shared_.counts[turn_];
    turn_ ^= 1;
    if (lane_ == 0) counts[warp_] = own;
    __syncthreads();
    return counts;
  }
  __device__ __forceinline__ int all_of(int own) {
    if constexpr (kWarps == 1) return own;
    int sum = 0;
    for (const int count : exchange(own)) sum += count;
    return sum;
  }
  __device__ __forceinline__ int before(unsigned lanes) const { return __popc(lanes & ((1U << lane_) - 1U)); }

  int lane_, warp_, turn_ = 0;
  Shared& shared_;
  std::uint32_t keys_[kCount];
};

/// By `threads` threads: `count` entries, which no two are alike, the best one first.
__device__ __forceinline__ void rank_entries(const Entry* from, int count, Entry* to, int thread, int threads) {
  constexpr int kAtOnce = 4;
#pragma unroll 1
  for (int first = thread; first < count; first += threads * kAtOnce) {
    Entry own[kAtOnce];
    int rank[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) own[i] = from[min(first + threads * i, count - 1)];
    for (int j = 0; j < count; ++j) {
      const Entry other = from[j];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) rank[i] += other > own[i] ? 1 : 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + threads * i < count) to[rank[i]] = own[i];
  }
}

template <class E, int kCount, int kWarps>
__global__ void __launch_bounds__(SearchBlock<kWarps>::kThreads)
    topk_search(const __grid_constant__ TopkProblem p, const __grid_constant__ SmallRows rows, bool with_states) {
  begin_in_order();
  using Lse = fold::LogSumExp<float>;
  using Access = PlainAccess<E>;
  constexpr int kThreads = 32 * kWarps;  // of a row
  __shared__ SearchShared<kWarps> of_rows[SearchBlock<kWarps>::kRows];
  const int thread = static_cast<int>(threadIdx.x) % kThreads, own = static_cast<int>(threadIdx.x) / kThreads;
  const unsigned index = blockIdx.x * SearchBlock<kWarps>::kRows + static_cast<unsigned>(own);
  if (index >= static_cast<unsigned>(rows.rows)) return;
  auto& shared = of_rows[own];
  if (with_states) {
    const int chunk = thread / 32;
    const SmallRow<Access, 32, kCount> row(rows, index, chunk * lift::kChunk + thread % 32);
    const auto state = state_of_small_row(rows, row);
    if (thread % 32 == 0) shared.states[chunk] = state;
  }
  const int taken = min(static_cast<int>(p.k), rows.n);
  const char* x = rows.x.data + static_cast<std::int64_t>(index) * rows.x.inner;
  RowSearch<E, kCount, kWarps>(reinterpret_cast<const E*>(x), rows.n, shared).find(taken);
  const Entry* best = shared.found;
  if (p.sorted) {
    rank_entries(best, taken, shared.ranked, thread, kThreads);
    SearchShared<kWarps>::sync();
    best = shared.ranked;
  }
  const TopkRow<float, PlainPlace> result(p, index,
                                          with_states ? root_of<Lse, kWarps>(shared.states) : Lse::identity());
  for (int j = thread; j < p.k; j += kThreads) result.put_entry(j, best, taken, j);
  if (thread == 0) result.put_lse();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
