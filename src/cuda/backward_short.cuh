// The gradients of softmax and log_softmax of plain rows up to 1024: y and dy fly to shared memory on their own, and dx
// leaves from there or from registers.
#pragma once

#include "cuda/gradient_vectors.cuh"
#include "cuda/lane_rows.cuh"
#include "cuda/odd_rows.cuh"
#include "cuda/plain_gradient.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A lane a row, as softmax_lane_rows.
template <class E, int kVectors, template <class> class Gradient>
__global__ void __launch_bounds__(32 * kLaneWarps, 3) backward_lane_rows(const __grid_constant__ LaneRows p) {
  begin_in_order();
  using Sets = LaneSets<kVectors>;
  using Row = LaneRow<E, kVectors>;
  using Vectors = GradientVectors<E, Gradient, 1, kVectors>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kLaneWarps][2][kLaneSets];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  char* memory = landing_memory + warp * (2 * kLaneSets * Sets::kRoom);
  const Sets y_sets(p, p.rows.x, memory, landed[warp][0]);
  const Sets dy_sets(p, p.dy, memory + kLaneSets * Sets::kRoom, landed[warp][1]);
#pragma unroll 1
  for (int set = 0; set < kLaneSets && y_sets.has(set); ++set) {
    y_sets.wait(set), dy_sets.wait(set);
#pragma unroll 1
    for (int i = 0; i < p.each; ++i) {
      const Row y_row(y_sets.place(set), lane + 32 * i), dy_row(dy_sets.place(set), lane + 32 * i);
      typename Vectors::Vectors y, dy;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) y[j] = y_row.vector(j), dy[j] = dy_row.vector(j);
      const lift::SumNode row = Vectors::sum(y, dy);
      const Gradient<float> through{row.sum, p.scale};
#pragma unroll
      for (int j = 0; j < kVectors; ++j) y_row.vector(j) = Vectors::result(through, row.any != 0, y[j], dy[j]);
    }
    y_sets.send(set, p.rows.y);
  }
  bulk_drain();
}

/// A group of lanes a row, as softmax_odd_rows.
template <class E, int kLanes, int kVectors, int kFull, template <class> class Gradient>
__global__ void __launch_bounds__(32 * kOddWarps, 3) backward_odd_rows(const __grid_constant__ PlainGradient p) {
  begin_in_order();
  using Row = OddTile<E, kLanes, kVectors, kFull>;
  using Place = OddPlace<E>;
  using Vectors = GradientVectors<E, Gradient, kLanes, kVectors>;
  constexpr int kRows = Row::kRows;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kOddWarps][kOddRuns];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // As OddSets has it; two of them would take more registers than there are.
  const auto base_of = [&](int run) {
    return ((static_cast<std::int64_t>(blockIdx.x) * kOddRuns + run) * kOddWarps + warp) * kRows;
  };
  const auto count_of = [&](int run) {
    return static_cast<int>(min(static_cast<std::int64_t>(kRows), p.y.rows - base_of(run)));
  };
  const auto place_of = [&](int run, int operand, const PlainRows& rows) {
    const char* first = rows.x + base_of(run) * rows.x_stride;
    char* room = landing_memory + ((run * kOddWarps + warp) * 2 + operand) * Place::bytes(rows, kRows);
    return Place{rows.joined ? place_in_sectors(room, first) : room, first};
  };
  if (lane < kOddRuns) landed[warp][lane].init(2 * (p.y.joined ? 1 : kRows));
  CopyBarrier::publish();
  __syncwarp();
#pragma unroll
  for (int run = 0; run < kOddRuns; ++run) {
    if (base_of(run) >= p.y.rows) break;
    place_of(run, 0, p.y).fetch(p.y, landed[warp][run], kRows, count_of(run));
    place_of(run, 1, p.dy).fetch(p.dy, landed[warp][run], kRows, count_of(run));
  }
  __syncwarp();  // elements that no copy brings are there
#pragma unroll 1
  for (int run = 0; run < kOddRuns && base_of(run) < p.y.rows; ++run) {
    const int own = lane / kLanes, count = count_of(run);
    const Place y_place = place_of(run, 0, p.y);
    // Groups without a row of their own take part with the last one and write nothing.
    const char* at_y = y_place.row(p.y, min(own, count - 1));
    const char* at_dy = place_of(run, 1, p.dy).row(p.dy, min(own, count - 1));
    const Row tile(at_y, static_cast<int>(p.y.n));
    landed[warp][run].wait(0);
    typename Vectors::Vectors y, dy;
    tile.gather_only(y, at_y, Packed<E>::narrow(Gradient<float>::nothing()));
    tile.gather_only(dy, at_dy, Packed<E>::narrow(-0.F));
    const lift::SumNode row = Vectors::sum(y, dy);
    Vectors::stay_packed(y), Vectors::stay_packed(dy);
    constexpr unsigned all_lanes = lift::kWholeWarp >> (32 - kLanes);
    const bool any = (__ballot_sync(lift::kWholeWarp, row.any != 0) >> (own * kLanes) & all_lanes) != 0;
    const Gradient<float> through{row.sum, p.scale};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) y[j] = Vectors::result(through, any, y[j], dy[j]);
    const auto result = [&](int j) { return y[j]; };
    if (p.y.joined && kLanes <= kOddRunLanes) {
      __syncwarp();  // all have read their elements
      if (own < count) tile.write_vectors(y_place.row(p.y, own), result);
      y_place.send(p.y, p.y.y + base_of(run) * p.y.y_stride, count);
    } else if (own < count) {
      tile.write_vectors(p.y.y + (base_of(run) + own) * p.y.y_stride, result);
    }
  }
  bulk_drain();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
