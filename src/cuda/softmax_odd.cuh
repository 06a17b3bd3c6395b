// softmax, log_softmax and gradients of plain short rows as odd_rows.cuh has them.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/odd_rows.cuh"
#include "cuda/reciprocal.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A row for each group of lanes, of elements that may lie far apart, or are no numbers. x: in shared memory.
template <class E, int kLanes, Leaves kLeaves>
__device__ __forceinline__ void put_any_row(const PlainRows& p, const char* x, std::int64_t row, bool writes) {
  constexpr bool kLog = kLeaves == Leaves::log_softmax;
  using Elements = Tile<E, kLanes>;
  using Fold = lift::WarpFold<Elements::kWidth, kLanes>;
  const int n = static_cast<int>(p.n);
  const Elements tile(x);
  float v[lift::kPerLane];
  tile.load(v, x, n, p.factor);
  const auto own = Fold::terms(v, p.factor.c);
  if (!writes) return;
  char* y = p.y + row * p.y_stride;
  const fold::Normaliser<float> norm(own.state);
  const float unit = fold::Scalar<float>::mul(norm.reciprocal, own.unit);
  if constexpr (kLeaves == Leaves::gradient) {
    const bool leads = tile.lane == 0;
    if (leads) p.states[row] = own.state;
    const int target = p.targets[row].index;
    if (leads && target >= 0) p.targets[row] = {RowTarget::kLeft, fold::widen(reinterpret_cast<const E*>(x)[target])};
    return put_gradient<E>(tile, y, n, v, own.dense ? 0x1p-62F : 0.F, unit, p.gradients[row], {own.node, own.state},
                           [&] { tile.store(y, n, v); });
  }
  if (!norm.regular)
    return fill<E, kLog>(y, nullptr, 0, tile.lane, kLanes, n, n, constant_of<kLog>(own.state, p.empty));
  if constexpr (kLog) tile.load(v, x, n, p.factor);
  finish<kLog, lift::kPerLane>(
      v, own.dense, unit, [&] { return p.log_normaliser(own.state); }, [](int) {});
  tile.store(y, n, v);
}
/// All rows of a warp so, of up to kSlots elements with what lies around them.
template <class E, int kSlots, Leaves kLeaves>
__device__ __noinline__ void put_any_rows(const PlainRows& p, OddPlace<E> place, std::int64_t base, int count) {
  constexpr int kPower = static_cast<int>(std::bit_ceil(static_cast<unsigned>(kSlots)));
  constexpr int kLanes = kPower > lift::kPerLane ? kPower / lift::kPerLane : 1, kAtOnce = 32 / kLanes;
#pragma unroll 1
  for (int i = 0; i < count; i += kAtOnce) {
    const int own = i + static_cast<int>(threadIdx.x) % 32 / kLanes, row = min(own, count - 1);
    put_any_row<E, kLanes, kLeaves>(p, place.row(p, row), base + row, own < count);
  }
}

/// The results of the group's row, the i-th of the warp's `count`; with i >= count none. v: terms, or with log_softmax
/// elements; gradient: the row's, of Leaves::gradient. By all lanes.
template <class E, Leaves kLeaves, class Row>
__device__ __forceinline__ void put_odd_row(const PlainRows& p, const Row& tile, float (&v)[Row::kCount],
                                            const typename Row::Fold::Folded& folded, const OddPlace<E>& place,
                                            std::int64_t base, int i, int count, const KnownGradient& gradient) {
  using S = fold::Scalar<float>;
  const std::int64_t row = base + i;
  char* y = p.y + row * p.y_stride;
  const float reciprocal = reciprocal_of_normal(folded.state.d);  // d: from 0.7 to 1536
  const float unit = S::mul(reciprocal, folded.unit);
  if constexpr (kLeaves == Leaves::gradient) {
    if (i >= count) return;
    const bool leads = tile.lane == 0;
    if (leads) p.states[row] = folded.state;
    const TargetGradient<E> of_target(p, row, reinterpret_cast<const E*>(place.row(p, i)), *gradient.target,
                                      *gradient.row, folded.state, reciprocal, leads);
    put_gradient<E>(Tile<E, Row::kLanes, Row::kCount>(y), y, tile.n, v, 0x1p-62F, unit, *gradient.row,
                    {folded.node, folded.state}, [&] { tile.write(y, v); });
    of_target.template put<Row::kLanes>(y);
  } else {
    finish<kLeaves == Leaves::log_softmax, Row::kCount>(
        v, true, unit, [&] { return p.log_normaliser(folded.state); }, [](int) {});
    if (p.joined && Row::kLanes <= kOddRunLanes) {
      __syncwarp();  // all have read their elements
      if (i < count) tile.write(place.row(p, i), v);
      place.send(p, p.y + base * p.y_stride, count);
    } else if (i < count) {
      tile.write(y, v);
    }
  }
}

template <class E, int kLanes, int kVectors, int kFull, Leaves kLeaves>
__global__ void __launch_bounds__(32 * kOddWarps, (kOddBlocks<E, kVectors>))
    softmax_odd_rows(const __grid_constant__ PlainRows p) {
  begin_in_order();
  constexpr bool kLog = kLeaves == Leaves::log_softmax;
  using Row = OddTile<E, kLanes, kVectors, kFull>;
  using Place = OddPlace<E>;
  constexpr int kRows = Row::kRows, kCount = Row::kCount;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kOddWarps][kOddRuns];
  [[maybe_unused]] __shared__ WarpGradients<kOddRuns, kRows> gradients[kOddWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const OddSets<E, Fixed<kRows>> sets{p, {}, landing_memory, Place::bytes(p, kRows)};
  sets.begin(landed[warp]);
  sets.fetch(landed[warp]);
  if constexpr (kLeaves == Leaves::gradient)
    gradients[warp].fetch(p, [&](int set, int i) { return min(sets.base(set) + i, p.rows - 1); });
  __syncwarp();  // elements that no copy brings are there
#pragma unroll 1
  for (int set = 0; set < kOddRuns && sets.has(set); ++set) {
    const int own = lane / kLanes, count = sets.count(set);
    // Groups without a row of their own take part with the last one and write nothing.
    const char* x = sets.place(set).row(p, min(own, count - 1));
    const Row tile(x, static_cast<int>(p.n));
    landed[warp][set].wait(0);
    float v[kCount];
    uint4 raw[kVectors];
    typename Row::Fold::Folded folded;
    tile.gather(raw, x);
    const bool near = tile.template fold<kLog>(v, folded, raw, p.factor.c);
    if (!__all_sync(lift::kWholeWarp, near)) {
      put_any_rows<E, Row::kSlots, kLeaves>(p, sets.place(set), sets.base(set), count);
      continue;
    }
    KnownGradient gradient;
    if constexpr (kLeaves == Leaves::gradient) gradient = gradients[warp].at(set, own);
    put_odd_row<E, kLeaves>(p, tile, v, folded, sets.place(set), sets.base(set), own, count, gradient);
  }
  if constexpr (kLeaves != Leaves::gradient) bulk_drain();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
