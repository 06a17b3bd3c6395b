// softmax of rows up to 1024, and states of any, that lie on vectors and that a length or a causal limit cuts short:
// straight from memory to registers and back, a warp's next rows on their way while it folds these; of 16 bit those
// behind them, too.
#pragma once

#include "cuda/first_frame.cuh"
#include "cuda/fold_slots.cuh"
#include "cuda/in_order.cuh"
#include "cuda/row_results.cuh"
#include "cuda/short_place.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// How a warp takes rows of up to 32 * kLanes elements: kRuns sets of them, a row for each group of kLanes lanes; the
/// elements of kAhead sets are in registers or on their way there. Measured: float32 wants few bytes on their way and
/// short blocks; 16 bit, of which a processor has more rows to fold, more rows a warp, whose order by length then
/// leaves out more. Neither wants more warps than fit without spilling. kFold: states alone, by longer blocks.
template <class E_, int kLanes_, bool kFold_>
struct LengthsWarp {
  using E = E_;
  static constexpr bool kNarrow = sizeof(E) == 2, kFold = kFold_;
  static constexpr int kLanes = kLanes_, kWarps = kNarrow ? 2 : 4;
  static constexpr int kRuns = kFold ? (kLanes < 8 ? 4 : 8) : kNarrow ? 4 : 2;
  static constexpr int kAhead = kNarrow || kFold ? 2 : 1, kBlocks = kNarrow ? 10 : kFold ? 4 : 5;
  static_assert(kRuns % kAhead == 0);
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(E)), kVectors = lift::kPerLane / kWidth;
  static constexpr int kRows = 32 / kLanes, kPlaces = kRuns * kRows;  ///< rows of a set, and of a warp
  /// A lane's elements in four steps, which are left out where no row of a set reaches so far.
  static constexpr int kSteps = 4, kEach = lift::kPerLane / kSteps, kOfStep = kVectors / kSteps;
  static constexpr int kElements = kEach * kLanes;  ///< of a row, in a step
  /// From one of a warp's rows to its next: where they are chunks, each warp of a block has some at a row's end.
  static constexpr int kStride = kFold && kLanes == 32 ? kWarps : 1;
};

/// A row, or a chunk of one: bytes from the beginnings of x and y (or its number), and how much of it exists;
/// ShortOrder::kNone: no row.
struct alignas(16) CutRow {
  std::int64_t x, y;
  int length;
};

/// The lane's place among all in order of length, counted in steps of `step` elements up to four.
__device__ __forceinline__ int place_by_steps(int length, int step) {
  const bool more = length > step, many = length > 2 * step, most = length > 3 * step;
  const unsigned with_more = __ballot_sync(lift::kWholeWarp, more), with_many = __ballot_sync(lift::kWholeWarp, many),
                 with_most = __ballot_sync(lift::kWholeWarp, most);
  // Of as many steps or more; of more steps.
  const unsigned at_least = most ? with_most : many ? with_many : more ? with_more : lift::kWholeWarp;
  const unsigned beyond = most ? 0U : many ? with_most : more ? with_many : with_more;
  unsigned before;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(before));
  return 32 - __popc(at_least) + __popc(at_least & ~beyond & before);
}

/// The rows of a warp from `base` on, kStride apart, or chunks of them, of which there are `all`; where groups of lanes
/// are to have similar ones, in order of length. By all lanes.
template <class Shape>
__device__ __forceinline__ void find_rows(const RowProblem& p, std::int64_t base, std::int64_t all, CutRow* found) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t wanted = base + lane * Shape::kStride;
  const bool has_row = lane < Shape::kPlaces && wanted < all;
  const std::int64_t item = has_row ? wanted : base;
  std::int64_t begin = 0, own = item;
  if (Shape::kFold && all != p.rows) {
    const std::int64_t chunks = lift::chunk_count(p.n);
    own = item / chunks, begin = (item - own * chunks) * lift::kChunk;
  }
  const RowPlace place(p, own);
  const Operand& given = p[Slot::length];
  std::int64_t length = p.n;
  if (given.given) length = clamp(integer_at(given.dtype, given.data + place.offset(given)), length);
  if (p.causal) length = clamp(place.last() + 1 + p.n - p.outer[static_cast<std::size_t>(p.outer_rank - 1)], length);
  if (Shape::kFold) length = clamp(length - begin, lift::kChunk);
  const CutRow row{place.offset(p[Slot::x]) + begin * static_cast<int>(sizeof(typename Shape::E)),
                   Shape::kFold ? item : place.offset(p[Slot::y]),
                   has_row ? static_cast<int>(length) : ShortOrder::kNone};
  // Lanes without a place come last.
  const int at =
      Shape::kLanes == 32 ? lane : place_by_steps(lane < Shape::kPlaces ? row.length : 1024, Shape::kElements);
  if (at < Shape::kPlaces) found[at] = row;
  __syncwarp();
}

/// The states of rows of any values. All lanes of a warp together.
template <class E, int kLanes>
__device__ __noinline__ fold::LogSumExp<float>::State cut_state_of_any(const char* x, int length, float c) {
  const lift::Factor factor(c);
  float v[lift::kPerLane];
  const Tile<E, kLanes> tile(x);
  tile.load(v, x, length, factor);
  return lift::WarpFold<16 / static_cast<int>(sizeof(E)), kLanes>::terms(v, factor.c).state;
}

inline __device__ __noinline__ void put_folded(const FoldResults& to, std::int64_t item,
                                               fold::LogSumExp<float>::State state) {
  to.put(item, state);
}

/// Rows whose elements lie near their first one; those of a set in which some do not are left to short_rows_of_any.
/// Of the shapes that fold: instead of results of softmax, the states of rows' chunks, or rows' results.
template <class Shape>
__global__ void __launch_bounds__(32 * Shape::kWarps, Shape::kBlocks)
    lengths_warp(const __grid_constant__ ShortRows rows, std::int64_t all, const __grid_constant__ FoldResults to) {
  begin_in_order();
  using E = typename Shape::E;
  using S = fold::Scalar<float>;
  constexpr int kLanes = Shape::kLanes, kWidth = Shape::kWidth, kVectors = Shape::kVectors, kRows = Shape::kRows,
                kPlaces = Shape::kPlaces, kSteps = Shape::kSteps, kOfStep = Shape::kOfStep, kEach = Shape::kEach,
                kElements = Shape::kElements, kAhead = Shape::kAhead;
  constexpr bool kFold = Shape::kFold;
  __shared__ CutRow found[Shape::kWarps][kPlaces];
  __shared__ float2 folded[Shape::kWarps][kFold ? kPlaces : 1];  // states of numbers that are near; m and d
  __shared__ VectorMasks<E> masks;
  const RowProblem& p = rows.p;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, place = lane % kLanes;
  const std::int64_t base =
      static_cast<std::int64_t>(blockIdx.x) * Shape::kWarps * kPlaces + (Shape::kStride == 1 ? warp * kPlaces : warp);
  masks.make();
  __syncthreads();
  if (base >= all) return;
  find_rows<Shape>(p, base, all, found[warp]);
  const CutRow* row = found[warp] + lane / kLanes;
  uint4 ahead[kAhead][kVectors];
  // Of the vectors that a row has, those of a step; the others keep what they hold.
  const auto fetch = [&](uint4(&raw)[kVectors], const char* x, int length, int step) {
#pragma unroll
    for (int j = step * kOfStep; j < (step + 1) * kOfStep; ++j)
      if (kWidth * kLanes * j < length) raw[j] = *reinterpret_cast<const uint4*>(x + 16 * kLanes * j);
  };
  const auto x_of = [&](const CutRow* of) { return p[Slot::x].data + settled(of->x + 16 * place); };
#pragma unroll
  for (int set = 0; set < kAhead; ++set) {
    const CutRow* of = row + set * kRows;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) fetch(ahead[set], x_of(of), of->length - kWidth * place, step);
  }
  const unsigned mask_at = settled(shared_address(&masks));
  unsigned left = 0;
  const auto fold_set = [&](uint4(&raw)[kVectors], int run) {
    // A set: how far its rows reach, and where the one lies that takes its registers.
    const int length = row->length;
    const int longest = __reduce_max_sync(lift::kWholeWarp, length),
              least = __reduce_min_sync(lift::kWholeWarp, length);
    const auto keep = [&](float m, float d) {
      if (place == 0) folded[warp][run * kRows + lane / kLanes] = length > 0 ? float2{m, d} : float2{-INFINITY, 0.F};
    };
    const bool has_next = run + kAhead < Shape::kRuns;
    const CutRow* next = row + (has_next ? kAhead * kRows : 0);
    const char* next_x = x_of(next);
    const int next_length = has_next ? next->length - kWidth * place : 0;
    // Elements to terms, step by step; as soon as a step's registers are free, that set's elements are asked for.
    const FirstFrame<E> frame(__shfl_sync(lift::kWholeWarp, length > 0 ? raw[0].x : 0U, lane / kLanes * kLanes),
                              rows.factor.c);
    const auto terms = frame.terms();
    VectorExtremes<E> extremes(frame.filler);
    float v[lift::kPerLane];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float* const own = v + step * kEach;
      if (longest > step * kElements) {
        const bool is_cut = least < (step + 1) * kElements;
        const int end = length - kWidth * place - step * kElements;
        if (is_cut) {
#pragma unroll
          for (int j = 0; j < kOfStep; ++j) {
            const uint4 mask = shared_vector(mask_at + 16 * max(0, min(end - kWidth * kLanes * j, kWidth)));
            frame.fill(raw[step * kOfStep + j], mask);
          }
        }
#pragma unroll
        for (int j = 0; j < kOfStep; ++j)
          extremes.see(raw[step * kOfStep + j]), Packed<E>::unpack(raw[step * kOfStep + j], own + kWidth * j);
#pragma unroll
        for (int i = 0; i < kEach; ++i) own[i] = terms.template term<false>(own[i]);
        if (is_cut) {
#pragma unroll
          for (int i = 0; i < kEach; ++i)
            if (i % kWidth >= end - kWidth * kLanes * (i / kWidth)) own[i] = 0.F;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kEach; ++i) own[i] = 0.F;
      }
      fetch(raw, next_x, next_length, step);
    }
    if (kFold && longest <= 0) return keep(0.F, 0.F);
    const float d = lift::add_tree<kWidth, kLanes, float>([&](int j, int k) { return v[j * kWidth + k]; });
    if (!__all_sync(lift::kWholeWarp, frame.holds(extremes.all()))) {
      left |= 1U << run;
      return;
    }
    if constexpr (kFold) {
      const float top = range_of<kLanes>(extremes.all(), rows.factor.c).top;
      return keep(top, lowered(d, top - frame.s));
    }
    // Terms to results; zeros behind what exists.
    const float multiplier = length > 0 ? reciprocal_of_normal(d) : 0.F;
    char* y = p[Slot::y].data + settled(row->y + 16 * place);
    const int room = length >= 0 ? static_cast<int>(p.n) - kWidth * place : 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) v[j * kWidth + k] = S::mul(v[j * kWidth + k], multiplier);
      const uint4 result = Packed<E>::pack(v + j * kWidth);
      if (kWidth * kLanes * j < room) *reinterpret_cast<uint4*>(y + 16 * kLanes * j) = result;
    }
  };
#pragma unroll 1
  for (int run = 0; run < Shape::kRuns; run += kAhead) {
#pragma unroll
    for (int set = 0; set < kAhead; ++set, row += kRows) fold_set(ahead[set], run + set);
  }
  if constexpr (kFold) {
    __syncwarp();
    const CutRow& own = found[warp][lane % kPlaces];
    if (lane < kPlaces && own.length >= 0 && (left >> lane / kRows & 1U) == 0) {
      const float2 state = folded[warp][lane];
      to.put(own.y, {static_cast<double>(state.x), state.y});
    }
  }
  row = found[warp] + lane / kLanes;
#pragma unroll 1
  for (; left != 0; left >>= 1, row += kRows) {
    if ((left & 1U) == 0) continue;
    if constexpr (kFold) {
      const auto state = cut_state_of_any<E, kLanes>(p[Slot::x].data + row->x, max(row->length, 0), rows.scale.c);
      if (place == 0 && row->length >= 0) put_folded(to, row->y, state);
    } else {
      short_rows_of_any<E, kLanes>(p, p[Slot::x].data + row->x, p[Slot::y].data + row->y, max(row->length, 0), p.scale,
                                   row->length >= 0);
    }
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
