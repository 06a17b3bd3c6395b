// Gradients of ragged rows up to a chunk: a warp has neighbours together, as many as lie in 1024 elements. They fly to
// shared memory and back as one run.
#pragma once

#include "cuda/backward_ragged.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kRaggedGradientThreads = 128, kRaggedGradientWarps = kRaggedGradientThreads / 32;
/// Of a processor, for which it has registers and shared memory.
template <class E>
inline constexpr int kRaggedGradientBlocks = sizeof(E) == 2 ? 8 : 6;

/// Neighbouring rows that lie in at most a chunk's elements.
struct GradientPack {
  std::int64_t first;  ///< its first element in x
  int n;               ///< elements
  int count;           ///< rows
  int begin, length;   ///< of the lane's row, counted from `first`
};

/// Up to 32 neighbouring rows, a lane each.
struct GradientPage {
  RaggedRow own;  ///< n < 0: none
  int at = 0;     ///< rows of it that are done with

  __device__ __forceinline__ GradientPage(const RowProblem& p, std::int64_t first, int rows)
      : own{first + static_cast<int>(threadIdx.x) % 32, 0, -1} {
    if (static_cast<int>(threadIdx.x % 32) < rows && own.index < p.rows) own = ragged_row(p, own.index);
  }

  /// The next pack of rows up to a chunk, by all lanes. False if there is none.
  __device__ __forceinline__ bool next(GradientPack& pack) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool fits = own.n >= 0 && own.n <= lift::kChunk;
    const unsigned some = __ballot_sync(lift::kWholeWarp, lane >= at && fits && own.n > 0);
    if (some == 0) return false;
    at = __ffs(static_cast<int>(some)) - 1;
    pack.first = __shfl_sync(lift::kWholeWarp, own.begin, at);
    // Where offsets lie, a row may begin anywhere.
    const std::int64_t begin = own.begin - pack.first;
    const bool with = fits && begin >= 0 && begin + own.n <= lift::kChunk;
    const unsigned others = ~__ballot_sync(lift::kWholeWarp, with) & (lift::kWholeWarp << at);
    const int stop = others == 0 ? 32 : __ffs(static_cast<int>(others)) - 1;
    const bool in = lane >= at && lane < stop;
    const unsigned both = in ? static_cast<unsigned>(begin) | static_cast<unsigned>(own.n) << 16 : 0U;
    pack.n = __reduce_max_sync(lift::kWholeWarp, in ? static_cast<int>(begin + own.n) : 0);
    pack.count = stop - at;
    const unsigned mine = __shfl_sync(lift::kWholeWarp, both, (lane + at) % 32);
    pack.begin = lane < pack.count ? static_cast<int>(mine & 0xFFFFU) : 0;
    pack.length = lane < pack.count ? static_cast<int>(mine >> 16) : 0;
    at = stop;
    return true;
  }
};

/// What a warp has in shared memory.
template <class E>
struct alignas(kCopyLine) GradientRoom {
  char landing[GradientPlace<E>::kBytes];
  float sums[32];  ///< of rows
};

/// A pack in shared memory. What is done with elements is done with vectors, whatever rows they are of; the rows' sums
/// are found by groups of lanes.
template <class E, template <class> class Gradient>
class GradientPackTile {
  using Through = Gradient<float>;
  using Room = GradientRoom<E>;
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize;

 public:
  __device__ __forceinline__ GradientPackTile(const GradientPack& pack, const GradientPlace<E>& place, Room& room)
      : pack_(pack),
        place_(place),
        room_(room),
        lane_(static_cast<int>(threadIdx.x) % 32),
        shift_(place.shift / kSize),
        vectors_((shift_ + pack.n + kWidth - 1) / kWidth) {}

  /// y becomes dx.
  __device__ __forceinline__ void run(float scale) const {
    const unsigned any = find_any();
    find_sums();
    __syncwarp();
    find_results(any, scale);
  }

 private:
  __device__ __forceinline__ uint4& y(int i) const { return reinterpret_cast<uint4*>(place_.y_vectors)[i]; }
  __device__ __forceinline__ uint4& dy(int i) const { return reinterpret_cast<uint4*>(place_.dy_vectors)[i]; }
  __device__ __forceinline__ bool is_something(const char* y_at) const {
    return !(fold::widen(*reinterpret_cast<const E*>(y_at)) == Through::nothing());
  }

  /// A bit for each row that is empty or has anything in it. Most rows' first element is something.
  __device__ __forceinline__ unsigned find_any() const {
    unsigned any = __ballot_sync(lift::kWholeWarp, pack_.length == 0 || is_something(place_.y(pack_.begin)));
#pragma unroll 1
    for (unsigned others = ~any; others != 0; others &= others - 1) {
      const int row = __ffs(static_cast<int>(others)) - 1;
      const int begin = __shfl_sync(lift::kWholeWarp, pack_.begin, row);
      const int n = __shfl_sync(lift::kWholeWarp, pack_.length, row);
      bool some = false;
#pragma unroll 1
      for (int i = lane_; i < n; i += 32) some |= is_something(place_.y(begin + i));
      if (__any_sync(lift::kWholeWarp, some)) any |= 1U << row;
    }
    return any;
  }

  /// As many rows at a time as their lengths allow.
  __device__ __forceinline__ void find_sums() const {
    constexpr int kSizes = 5;
    int most[kSizes];  // of the lane's row, and of it and 1, 3, ... behind it
    most[0] = pack_.length;
#pragma unroll
    for (int i = 0; i + 1 < kSizes; ++i) {
      const int behind = __shfl_down_sync(lift::kWholeWarp, most[i], 1 << i);
      most[i + 1] = max(most[i], lane_ + (1 << i) < 32 ? behind : 0);
    }
    const auto longest = [&](int size, int from) { return __shfl_sync(lift::kWholeWarp, most[size], from); };
#pragma unroll 1
    for (int from = 0; from < pack_.count;) {
      if (longest(4, from) <= 16) {
        from += find_sums<2, 8>(from);
      } else if (longest(3, from) <= 64) {
        from += find_sums<4, 16>(from);
      } else if (longest(2, from) <= 128) {
        from += find_sums<8, 16>(from);
      } else if (longest(1, from) <= 256) {
        from += find_sums<16, 16>(from);
      } else if (longest(0, from) <= 512) {
        from += find_sums<32, 16>(from);
      } else {
        from += find_sums<32, 32>(from);
      }
    }
  }
  /// Of the rows from that one on, by as many groups of lanes; how many these are.
  template <int kLanes, int kCount>
  __device__ __forceinline__ int find_sums(int from) const {
    const int in_group = lane_ % kLanes, row = min(from + lane_ / kLanes, 31);
    const int begin = __shfl_sync(lift::kWholeWarp, pack_.begin, row) + in_group;
    const int own = __shfl_sync(lift::kWholeWarp, pack_.length, row) - in_group;
    const E *own_y = reinterpret_cast<const E*>(place_.y(begin)),
            *own_dy = reinterpret_cast<const E*>(place_.dy(begin));
    const float sum = lift::add_tree<1, kLanes, float, kCount>([&](int i, int) {
      const int at = kLanes * i;
      return at < own ? Through::leaf(fold::widen(own_y[at]), fold::widen(own_dy[at])) : -0.F;
    });
    if (in_group == 0) room_.sums[row] = sum;
    return 32 / kLanes;
  }

  /// For vector base + lane the last row that begins up to its first element, which is the first-th of the pack's.
  /// begin: of the lane's row.
  __device__ __forceinline__ int row_of(int base, int first, int begin) const {
    if (pack_.count == 1) return 0;
    const int own = (begin + shift_ + kWidth - 1) / kWidth - base;  // the first such vector
    const bool is_here = own >= 0 && own < 32;
    const unsigned here = __ballot_sync(lift::kWholeWarp, is_here), before = __ballot_sync(lift::kWholeWarp, own < 0);
    const unsigned starts = __reduce_or_sync(lift::kWholeWarp, is_here ? 1U << own : 0U);
    if (__popc(here) == __popc(starts)) return max(__popc(before) + __popc(starts & ((2U << lane_) - 1U)) - 1, 0);
    int row = 0;  // several begin in one
#pragma unroll 1
    for (int step = 16; step > 0; step /= 2)
      if (__shfl_sync(lift::kWholeWarp, begin, row + step) <= first) row += step;
    return row;
  }

  __device__ __forceinline__ void find_results(unsigned any, float scale) const {
    constexpr int kNever = 2 * lift::kChunk;
    const int begin = lane_ < pack_.count ? pack_.begin : kNever;
#pragma unroll 1
    for (int base = 0; base < vectors_; base += 32) {
      const int i = min(base + lane_, vectors_ - 1), first = kWidth * i - shift_;
      const int row = row_of(base, first, begin);
      float a[kWidth], b[kWidth], sums[kWidth];
      unsigned there = any >> row & 1U ? 0xFFU : 0U;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sums[k] = room_.sums[row];
#pragma unroll 1
      for (int next = row + 1;; ++next) {
        const int its = __shfl_sync(lift::kWholeWarp, begin, min(next, 31)) - first;
        const int at = next < 32 ? max(its, 0) : kWidth;
        if (!__any_sync(lift::kWholeWarp, at < kWidth)) break;
        if (at >= kWidth) continue;
        const float sum = room_.sums[next];
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          if (k >= at) sums[k] = sum;
        const unsigned behind = 0xFFU << at;
        there = (there & ~behind) | (any >> next & 1U ? behind : 0U);
      }
      Packed<E>::unpack(y(i), a);
      Packed<E>::unpack(dy(i), b);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) b[k] = gradient_value(Through{sums[k], scale}, a[k], b[k]);
      if (any != lift::kWholeWarp) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          if ((there >> k & 1U) == 0) b[k] = 0.F;
      }
      const uint4 dx = PackedGradients<E>::pack(b);
      __syncwarp();
      if (base + lane_ < vectors_) y(i) = dx;
    }
  }

  const GradientPack& pack_;
  const GradientPlace<E>& place_;
  Room& room_;
  int lane_, shift_, vectors_;
};

/// A warp has a page of `rows` rows at a time.
template <class E, template <class> class Gradient>
__global__ void __launch_bounds__(kRaggedGradientThreads, kRaggedGradientBlocks<E>)
    backward_ragged_rows(const __grid_constant__ RowProblem p, const __grid_constant__ GradientQueue queue, int rows) {
  begin_in_order();
  using Place = GradientPlace<E>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier barriers[kRaggedGradientWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const RaggedGradient<E> of{p};
  CopyBarrier& landed = barriers[warp];
  GradientRoom<E>& room = reinterpret_cast<GradientRoom<E>*>(landing_memory)[warp];
  if (lane == 0) landed.init(1);
  CopyBarrier::publish();
  __syncwarp();
  const std::int64_t step = std::int64_t{gridDim.x} * kRaggedGradientWarps * rows;
  unsigned parity = 0;
  std::int64_t first = (std::int64_t{blockIdx.x} * kRaggedGradientWarps + warp) * rows;
  GradientPage ahead = GradientPage(p, first, rows);
#pragma unroll 1
  for (; first < p.rows; first += step) {
    GradientPage page = ahead;
    ahead = GradientPage(p, first + step, rows);
    queue.append(page.own.index, page.own.n);
    GradientPack pack;
#pragma unroll 1
    while (page.next(pack)) {
      const Place place(of, room.landing, pack.first);
      __syncwarp();  // all have read what of the results before these is no vector
      if (lane == 0) {
        bulk_drain();  // the results before these have left
        place.fetch(of, landed, pack.first, pack.n);
      }
      __syncwarp();
      landed.wait(parity);
      parity ^= 1U;
      GradientPackTile<E, Gradient>(pack, place, room).run(static_cast<float>(p.scale));
      send_run<E>(place.y_vectors, of.dx(pack.first), pack.n);
    }
  }
  bulk_drain();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
