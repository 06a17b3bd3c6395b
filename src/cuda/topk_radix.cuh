// topk for any k, dtype, stride and mask: a block a row finds the key of the k-th best a digit at a time, from the top,
// collects what is not behind it in the row's order, and sorts that.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/topk_order.cuh"
#include "cuda/topk_row.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kRadixThreads = 512, kRadixWarps = kRadixThreads / 32;
inline constexpr int kRadixAtOnce = 4;             ///< elements that a thread asks for together
inline constexpr int kMostRadixBytes = 64 * 1024;  ///< of entries that a block keeps in shared memory

/// The elements of a row that exist, as keys.
template <class T>
struct KeysOfRow {
  using Entry = fold::Ranked<T>;
  const TopkProblem& p;
  Row row;

  __device__ __forceinline__ KeysOfRow(const TopkProblem& problem, std::int64_t index)
      : p(problem), row(row_at(problem, RowPlace(problem, index))) {}
  __device__ __forceinline__ bool exists(std::int64_t i) const { return is_present(row, p[Slot::mask].axis_stride, i); }
  __device__ __forceinline__ Entry at(std::int64_t i) const {
    const Operand& x = p[Slot::x];
    return Entry::of(element_at<T>(x.dtype, row.x + i * x.axis_stride), i);
  }
};

/// What is taken of a row: every key whose leading bits are above `prefix`, and the first `equal` of those that have
/// these bits.
template <class T>
struct RadixCut {
  typename fold::Ranked<T>::Bits prefix, mask;
  std::int64_t equal;
};

/// Of the elements that have the cut's leading bits, how many have which digit behind these, the largest digit first.
template <class T>
__device__ __forceinline__ void count_digits(const KeysOfRow<T>& keys, const RadixCut<T>& cut, int shift,
                                             unsigned long long (&bins)[kBins]) {
  for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kRadixThreads) bins[b] = 0;
  __syncthreads();
#pragma unroll 1
  for (std::int64_t base = threadIdx.x; base - threadIdx.x < keys.row.length; base += kRadixAtOnce * kRadixThreads) {
    int bin[kRadixAtOnce];
#pragma unroll
    for (int a = 0; a < kRadixAtOnce; ++a) {
      const std::int64_t i = base + a * kRadixThreads;
      bin[a] = -1;
      if (i >= keys.row.length || !keys.exists(i)) continue;
      const auto key = keys.at(i).key;
      if ((key & cut.mask) == cut.prefix) bin[a] = kBins - 1 - static_cast<int>(key >> shift & (kBins - 1));
    }
#pragma unroll
    for (int a = 0; a < kRadixAtOnce; ++a) count_in_bins(bins, bin[a]);
  }
  __syncthreads();
}

/// The cut that takes the k best, or everything where there is no more. All threads of the block call it together.
template <class T>
__device__ RadixCut<T> find_cut(const KeysOfRow<T>& keys, std::int64_t k, unsigned long long (&bins)[kBins]) {
  using Bits = typename fold::Ranked<T>::Bits;
  constexpr int kPer = kBins / kRadixThreads;
  __shared__ std::int64_t sums[kRadixWarps], wanted, equal;
  __shared__ int digit;
  RadixCut<T> cut{0, 0, k};
  int shift = 8 * static_cast<int>(sizeof(Bits));
#pragma unroll 1
  do {
    shift = max(shift - kDigitBits, 0);
    count_digits(keys, cut, shift, bins);
    const unsigned long long* own = bins + kPer * threadIdx.x;
    std::int64_t all = 0;
    for (int b = 0; b < kPer; ++b) all += static_cast<std::int64_t>(own[b]);
    std::int64_t left = cut.equal - sum_before(all, sums);
    // Where there are fewer than k, the last digit has them all.
    if (left > 0 && (left <= all || threadIdx.x == kRadixThreads - 1)) {
      int b = 0;
      for (; b < kPer - 1 && left > static_cast<std::int64_t>(own[b]); ++b) left -= static_cast<std::int64_t>(own[b]);
      digit = kBins - 1 - (kPer * static_cast<int>(threadIdx.x) + b);
      wanted = left, equal = static_cast<std::int64_t>(own[b]);
    }
    __syncthreads();
    cut.equal = wanted;
    cut.prefix |= static_cast<Bits>(static_cast<Bits>(digit) << shift);
    cut.mask = static_cast<Bits>(~Bits{0} << shift);
  } while (cut.equal < equal && shift > 0);
  return cut;
}

/// The taken elements in the order of the row; returns how many.
template <class T>
__device__ std::int64_t collect(const KeysOfRow<T>& keys, const RadixCut<T>& cut, fold::Ranked<T>* to) {
  __shared__ int counts[kRadixAtOnce][kRadixWarps];  // elements above the cut, times 2^16, and equal ones
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const unsigned lower = (1U << threadIdx.x % 32) - 1U;
  std::int64_t above = 0, equal = 0;
#pragma unroll 1
  for (std::int64_t base = threadIdx.x; base - threadIdx.x < keys.row.length; base += kRadixAtOnce * kRadixThreads) {
    typename fold::Ranked<T>::Bits key[kRadixAtOnce];
    int before[kRadixAtOnce];
    unsigned takes = 0;
#pragma unroll
    for (int a = 0; a < kRadixAtOnce; ++a) {
      const std::int64_t i = base + a * kRadixThreads;
      const bool exists = i < keys.row.length && keys.exists(i);
      key[a] = exists ? keys.at(i).key : 0;
      const bool is_above = exists && (key[a] & cut.mask) > cut.prefix;
      const bool is_equal = exists && (key[a] & cut.mask) == cut.prefix;
      const unsigned all_above = __ballot_sync(lift::kWholeWarp, is_above);
      const unsigned all_equal = __ballot_sync(lift::kWholeWarp, is_equal);
      if (is_above || is_equal) takes |= 1U << a;
      before[a] = __popc(all_above & lower) << 16 | __popc(all_equal & lower);
      if (lower == 0) counts[a][warp] = __popc(all_above) << 16 | __popc(all_equal);
    }
    __syncthreads();
    int sum = 0;
#pragma unroll
    for (int a = 0; a < kRadixAtOnce; ++a)
#pragma unroll
      for (int w = 0; w < kRadixWarps; ++w) {
        if (w == warp) before[a] += sum;
        sum += counts[a][w];
      }
    __syncthreads();
#pragma unroll
    for (int a = 0; a < kRadixAtOnce; ++a) {
      if ((takes >> a & 1U) == 0) continue;
      const std::int64_t equals = equal + (before[a] & 0xFFFF);
      if (equals >= cut.equal && (key[a] & cut.mask) == cut.prefix) continue;
      to[above + (before[a] >> 16) + min(equals, cut.equal)] = {key[a], base + a * kRadixThreads};
    }
    above += sum >> 16, equal += sum & 0xFFFF;
  }
  __syncthreads();
  return above + min(equal, cut.equal);
}

/// `entries`: room for k a block; null: they fit in its shared memory. No states where nobody asks for what follows
/// from them.
template <class T>
__global__ void __launch_bounds__(kRadixThreads)
    topk_radix(const __grid_constant__ TopkProblem p, bool with_states, fold::Ranked<T>* entries) {
  begin_in_order();
  using Lse = fold::LogSumExp<T>;
  extern __shared__ __align__(16) char memory[];
  __shared__ unsigned long long bins[kBins];
  auto* mine = entries == nullptr ? reinterpret_cast<fold::Ranked<T>*>(memory) : entries + blockIdx.x * p.k;
#pragma unroll 1
  for (std::int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const KeysOfRow<T> keys(p, row);
    std::int64_t taken = 0;
    if (p.k > 0) {
      taken = collect(keys, find_cut<T>(keys, p.k, bins), mine);
      if (p.sorted) sort_best_first(mine, taken, [](const auto& a, const auto& b) { return a.before(b); });
    }
    const auto state = with_states ? row_state<T>(p, RowPlace(p, row), keys.row, row, nullptr) : Lse::identity();
    const TopkRow<T> result(p, row, state);
    for (std::int64_t j = threadIdx.x; j < p.k; j += kRadixThreads)
      result.put_element(j, j < taken ? mine[j].index : -1);
    if (threadIdx.x == 0) result.put_lse();
    __syncthreads();
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
