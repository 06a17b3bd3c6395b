// softmax and log_softmax of plain rows of one to eight vectors that lie end to end: a lane a row, whatever it holds.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/reciprocal.cuh"
#include "cuda/softmax_plain.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Warps of a block of softmax_lane_rows, sets of rows that each has in flight, and vectors of a lane's rows in a set.
inline constexpr int kLaneWarps = 4, kLaneRuns = 2, kLaneVectors = 8;
/// Blocks of a processor.
template <class E, int kVectors>
inline constexpr int kLaneBlocks = kVectors * 16 / static_cast<int>(sizeof(E)) > 32 ? 5 : 6;

/// A lane's row in shared memory.
template <class E, int kVectors>
struct LaneRow {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(E)), kCount = kVectors * kWidth;
  /// Lanes whose j-th vectors lie in as many banks as eight lanes read at a time.
  static constexpr int kApart = kVectors % 2 == 0 && (kVectors & (kVectors - 1)) == 0 ? 8 / kVectors : 0;

  char* at;
  /// Bytes by which the offsets of vectors differ from their order, lest lanes meet in a bank. The tree does not see
  /// it: vectors j and j ^ 4, whatever they are called, meet first, then j and j ^ 2.
  int turn;

  __device__ __forceinline__ LaneRow(char* place, int row)
      : at(place + row * kVectors * 16), turn(kApart == 0 ? 0 : row / kApart % kVectors * 16) {}
  __device__ __forceinline__ uint4& vector(int j) const { return *reinterpret_cast<uint4*>(at + (16 * j ^ turn)); }

  /// The elements, and their extremes.
  __device__ __forceinline__ lift::Extremes take(float (&v)[kCount]) const {
    uint4 raw[kVectors];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) raw[j] = vector(j), Packed<E>::unpack(raw[j], v + j * kWidth);
    return Packed<E>::extremes(raw);
  }
  __device__ __forceinline__ void put(const float (&v)[kCount]) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) vector(j) = Packed<E>::pack(v + j * kWidth);
  }
  __device__ __forceinline__ void fill(float value) const {
    E all[kWidth];
#pragma unroll
    for (E& one : all) one = fold::narrow<E>(value);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) vector(j) = Packed<E>::join(all);
  }
};

/// The results of each lane's row in its place.
template <class E, int kVectors, bool kLog>
__device__ __forceinline__ void fold_lane_row(const PlainRows& p, const LaneRow<E, kVectors>& row) {
  using Row = LaneRow<E, kVectors>;
  using Fold = lift::WarpFold<Row::kWidth, 1, Row::kCount>;
  using S = fold::Scalar<float>;
  const auto constant = [&](const auto& state) { return constant_of<kLog>(state, p.empty).value; };
  float v[Row::kCount];
  const auto folded = Fold::terms(v, p.factor.c, row.take(v));
  if constexpr (kLog) {
    if (!folded.dense && !fold::LogSumExp<float>::is_regular(folded.state)) return row.fill(constant(folded.state));
    asm volatile("" ::: "memory");  // the elements come once more, instead of staying in registers beside their terms
    row.take(v);
    finish<kLog, Row::kCount>(
        v, true, 1.F, [&] { return p.log_normaliser(folded.state); }, [](int) {});
  } else {
    // d is a normal number: the largest term is in it, and 64 are not many.
    const float unit = S::mul(reciprocal_of_normal(folded.state.d), folded.unit);
    if (folded.dense) {  // of all lanes, or of none
#pragma unroll
      for (float& at : v) at = S::mul(at, unit);
      return row.put(v);
    }
    if (!fold::LogSumExp<float>::is_regular(folded.state)) return row.fill(constant(folded.state));
#pragma unroll
    for (float& at : v) at = fold::Normaliser<float>::probability(at, unit);
  }
  row.put(v);
}

template <class E, int kVectors, bool kLog>
__global__ void __launch_bounds__(32 * kLaneWarps, (kLaneBlocks<E, kVectors>))
    softmax_lane_rows(const __grid_constant__ PlainRows p) {
  begin_in_order();
  constexpr int kEach = kLaneVectors / kVectors, kRows = 32 * kEach, kBytes = 16 * kVectors;
  constexpr int kRoom = room_in_sectors(kRows * kBytes);
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kLaneWarps][kLaneRuns];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto base_of = [&](int run) {
    return ((static_cast<std::int64_t>(blockIdx.x) * kLaneRuns + run) * kLaneWarps + warp) * kRows;
  };
  const auto bytes_of = [&](int run) {
    return static_cast<int>(min(static_cast<std::int64_t>(kRows), p.rows - base_of(run))) * kBytes;
  };
  char* place = place_in_sectors(landing_memory + warp * (kLaneRuns * kRoom), p.x);
  if (lane < kLaneRuns) landed[warp][lane].init(1);
  CopyBarrier::publish();
  __syncwarp();
  if (lane == 0) {
#pragma unroll
    for (int run = 0; run < kLaneRuns; ++run) {
      if (base_of(run) >= p.rows) break;
      landed[warp][run].expect(bytes_of(run));
      landed[warp][run].copy(place + run * kRoom, p.x + base_of(run) * kBytes, bytes_of(run));
    }
  }
#pragma unroll 1
  for (int run = 0; run < kLaneRuns && base_of(run) < p.rows; ++run) {
    char* own = place + run * kRoom;
    landed[warp][run].wait(0);
    // What lies behind the last row is folded, too, and goes nowhere.
#pragma unroll 1
    for (int i = 0; i < kEach; ++i) fold_lane_row<E, kVectors, kLog>(p, {own, lane + 32 * i});
    fence_for_copy();
    __syncwarp();
    if (lane == 0) bulk_store(p.y + base_of(run) * kBytes, own, bytes_of(run));
  }
  bulk_drain();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
