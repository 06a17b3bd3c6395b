// topk for any k, dtype, stride and mask: a block a row finds the key of the k-th best a byte at a time, from the top,
// collects what is not behind it in the row's order, and sorts that.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/topk_row.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kRadixThreads = 512;

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

/// The cut that takes the k best, or everything where there is no more. All threads of the block call it together.
template <class T>
__device__ RadixCut<T> find_cut(const KeysOfRow<T>& keys, std::int64_t k, unsigned long long (&bins)[256]) {
  using Bits = typename fold::Ranked<T>::Bits;
  __shared__ std::int64_t wanted;
  __shared__ int digit;
  RadixCut<T> cut{0, 0, k};
#pragma unroll 1
  for (int shift = 8 * static_cast<int>(sizeof(Bits)) - 8; shift >= 0; shift -= 8) {
    for (int b = static_cast<int>(threadIdx.x); b < 256; b += kRadixThreads) bins[b] = 0;
    __syncthreads();
#pragma unroll 1
    for (std::int64_t base = 0; base < keys.row.length; base += kRadixThreads) {
      const std::int64_t i = base + threadIdx.x;
      int bin = -1;
      if (i < keys.row.length && keys.exists(i)) {
        const Bits key = keys.at(i).key;
        if ((key & cut.mask) == cut.prefix) bin = static_cast<int>(key >> shift & 255);
      }
      count_in_bins(bins, bin);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      std::int64_t left = cut.equal;
      int b = 255;
      for (; b > 0 && left > static_cast<std::int64_t>(bins[b]); --b) left -= static_cast<std::int64_t>(bins[b]);
      wanted = left;
      digit = b;
    }
    __syncthreads();
    cut.equal = wanted;
    cut.prefix |= static_cast<Bits>(static_cast<Bits>(digit) << shift);
    cut.mask |= static_cast<Bits>(Bits{255} << shift);
    const bool all = cut.equal >= static_cast<std::int64_t>(bins[digit]);
    __syncthreads();
    if (all) break;
  }
  return cut;
}

/// How many threads before this one say yes, and how many of the block. All threads call it together.
struct Order {
  int before, all;
};
__device__ __forceinline__ Order order_of(bool yes, int (&counts)[kRadixThreads / 32]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned votes = __ballot_sync(lift::kWholeWarp, yes);
  __syncthreads();
  if (lane == 0) counts[warp] = __popc(votes);
  __syncthreads();
  Order r{__popc(votes & ((1U << lane) - 1U)), 0};
#pragma unroll
  for (int w = 0; w < kRadixThreads / 32; ++w) {
    if (w < warp) r.before += counts[w];
    r.all += counts[w];
  }
  return r;
}

/// The taken elements in the order of the row; returns how many.
template <class T>
__device__ std::int64_t collect(const KeysOfRow<T>& keys, const RadixCut<T>& cut, fold::Ranked<T>* to) {
  __shared__ int counts[kRadixThreads / 32];
  std::int64_t taken = 0, equal = 0;
#pragma unroll 1
  for (std::int64_t base = 0; base < keys.row.length; base += kRadixThreads) {
    const std::int64_t i = base + threadIdx.x;
    const bool exists = i < keys.row.length && keys.exists(i);
    const auto entry = exists ? keys.at(i) : fold::Ranked<T>{0, 0};
    const auto leading = entry.key & cut.mask;
    const bool is_equal = exists && leading == cut.prefix;
    const Order among_equal = order_of(is_equal, counts);
    const bool take = exists && (leading > cut.prefix || (is_equal && equal + among_equal.before < cut.equal));
    const Order among_taken = order_of(take, counts);
    if (take) to[taken + among_taken.before] = entry;
    equal += among_equal.all;
    taken += among_taken.all;
  }
  __syncthreads();
  return taken;
}

/// The best first: a bitonic sort of any count, as if padded by what comes last.
template <class T>
__device__ void sort_best_first(fold::Ranked<T>* a, std::int64_t count) {
  const auto pass = [&](std::int64_t flip) {
    for (std::int64_t i = threadIdx.x; i < count; i += kRadixThreads) {
      const std::int64_t j = i ^ flip;
      if (j <= i || j >= count || !a[j].before(a[i])) continue;
      const fold::Ranked<T> swapped = a[i];
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

/// `entries`: room for k a block. No states where nobody asks for what follows from them.
template <class T>
__global__ void __launch_bounds__(kRadixThreads)
    topk_radix(const __grid_constant__ TopkProblem p, bool with_states, fold::Ranked<T>* entries) {
  begin_in_order();
  using Lse = fold::LogSumExp<T>;
  __shared__ unsigned long long bins[256];
  fold::Ranked<T>* mine = entries + blockIdx.x * p.k;
#pragma unroll 1
  for (std::int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const KeysOfRow<T> keys(p, row);
    std::int64_t taken = 0;
    if (p.k > 0) {
      taken = collect(keys, find_cut<T>(keys, p.k, bins), mine);
      if (p.sorted) sort_best_first(mine, taken);
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
