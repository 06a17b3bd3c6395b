// Plain rows of one to eight vectors that lie end to end: a lane a row, whatever it holds.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/reciprocal.cuh"
#include "cuda/row_results.cuh"
#include "cuda/softmax_plain.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Warps of a block, sets of rows that each has in flight, and vectors that a lane's rows of a set have at most.
inline constexpr int kLaneWarps = 4, kLaneSets = 2, kLaneVectors = 8;
/// Blocks of a processor.
template <class E, int kVectors>
inline constexpr int kLaneBlocks = kVectors * 16 / static_cast<int>(sizeof(E)) > 32 ? 5 : 6;

struct LaneRows {
  PlainRows rows;
  int each;                  ///< rows that a lane has in a set
  const char* dy = nullptr;  ///< of gradients: lies as x does
  float scale = 1.F;         ///< of gradients
};

/// A lane's row in shared memory.
template <class E, int kVectors>
struct LaneRow {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(E)), kCount = kVectors * kWidth;
  using Fold = lift::WarpFold<kWidth, 1, kCount>;
  /// Of the vectors that a row has, the largest power of two.
  static constexpr int kTurns = kVectors & -kVectors;

  char* at;
  /// Bytes by which the offsets of vectors differ from their order, lest the eight lanes that read at a time meet in a
  /// bank. The tree does not see it: whatever vectors are called, j and j ^ s meet for every stride s.
  int turn;

  __device__ __forceinline__ LaneRow(char* place, int row)
      : at(place + row * kVectors * 16), turn(row / (8 / kTurns) % kTurns * 16) {}
  __device__ __forceinline__ uint4& vector(int j) const { return *reinterpret_cast<uint4*>(at + (16 * j ^ turn)); }

  /// The elements, of which none is missing, and their extremes.
  __device__ __forceinline__ lift::Extremes take(float (&v)[kCount], float) const {
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

/// A warp's sets of rows: they fly to shared memory on their own while others are folded.
template <int kVectors>
class LaneSets {
 public:
  static constexpr int kBytes = 16 * kVectors, kRoom = room_in_sectors(32 * 16 * kLaneVectors);

  /// x: of the rows, the first; memory: kLaneSets * kRoom bytes.
  __device__ __forceinline__ LaneSets(const LaneRows& p, const char* x, char* memory, CopyBarrier (&landed)[kLaneSets])
      : p_(p), place_(place_in_sectors(memory, x)), landed_(landed) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < kLaneSets) landed[lane].init(1);
    CopyBarrier::publish();
    __syncwarp();
    if (lane > 0) return;
#pragma unroll
    for (int set = 0; set < kLaneSets; ++set) {
      if (!has(set)) break;
      landed[set].expect(bytes(set));
      landed[set].copy(place(set), x + first(set) * kBytes, bytes(set));
    }
  }
  /// Whether there is a set.
  __device__ __forceinline__ bool has(int set) const { return first(set) < p_.rows.rows; }
  __device__ __forceinline__ std::int64_t first(int set) const {
    const std::int64_t all = static_cast<std::int64_t>(blockIdx.x) * kLaneSets + set;
    return (all * kLaneWarps + threadIdx.x / 32) * 32 * p_.each;
  }
  /// The rows of a set that there is.
  __device__ __forceinline__ int count(int set) const {
    return static_cast<int>(min(static_cast<std::int64_t>(32 * p_.each), p_.rows.rows - first(set)));
  }
  __device__ __forceinline__ int bytes(int set) const { return count(set) * kBytes; }
  __device__ __forceinline__ char* place(int set) const { return place_ + set * kRoom; }
  __device__ __forceinline__ void wait(int set) const { landed_[set].wait(0); }

  /// What stands in the set's place, to y; by all lanes. bulk_drain() before the block ends.
  __device__ __forceinline__ void send(int set, char* y) const {
    fence_for_copy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) bulk_store(y + first(set) * kBytes, place(set), bytes(set));
  }

 private:
  const LaneRows& p_;
  char* place_;
  CopyBarrier (&landed_)[kLaneSets];
};

/// The results of each lane's row in its place.
template <bool kLog, class Row>
__device__ __forceinline__ void put_lane_row(const PlainRows& p, const Row& row) {
  using S = fold::Scalar<float>;
  const auto constant = [&](const auto& state) { return constant_of<kLog>(state, p.empty).value; };
  float v[Row::kCount];
  const float nothing = lift::absent(p.factor.c);
  const auto folded = Row::Fold::terms(v, p.factor.c, row.take(v, nothing));
  if constexpr (kLog) {
    if (!folded.dense && !fold::LogSumExp<float>::is_regular(folded.state)) return row.fill(constant(folded.state));
    asm volatile("" ::: "memory");  // the elements come once more, instead of staying in registers beside their terms
    row.take(v, nothing);
    finish<kLog, Row::kCount>(
        v, true, 1.F, [&] { return p.log_normaliser(folded.state, true); }, [](int) {});
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
    softmax_lane_rows(const __grid_constant__ LaneRows p) {
  begin_in_order();
  using Sets = LaneSets<kVectors>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kLaneWarps][kLaneSets];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Sets sets(p, p.rows.x, landing_memory + warp * (kLaneSets * Sets::kRoom), landed[warp]);
#pragma unroll 1
  for (int set = 0; set < kLaneSets && sets.has(set); ++set) {
    const int count = sets.count(set);
    sets.wait(set);
#pragma unroll 1
    for (int i = lane; i < 32 * p.each; i += 32) {
      const LaneRow<E, kVectors> row(sets.place(set), i);
      // What lies behind the last row goes nowhere, but must not send the others the way of rows of any values.
      if (i >= count) row.fill(0.F);
      put_lane_row<kLog>(p.rows, row);
    }
    sets.send(set, p.rows.y);
  }
  bulk_drain();
}

/// logsumexp and states.
template <class E, int kVectors>
__global__ void __launch_bounds__(32 * kLaneWarps, (kLaneBlocks<E, kVectors>))
    fold_lane_rows(const __grid_constant__ LaneRows p, const __grid_constant__ RowResults to) {
  begin_in_order();
  using Sets = LaneSets<kVectors>;
  using Row = LaneRow<E, kVectors>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kLaneWarps][kLaneSets];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Sets sets(p, p.rows.x, landing_memory + warp * (kLaneSets * Sets::kRoom), landed[warp]);
#pragma unroll 1
  for (int set = 0; set < kLaneSets && sets.has(set); ++set) {
    const int count = sets.count(set);
    char* at = to.at(sets.first(set) + lane);
    sets.wait(set);
#pragma unroll 1
    for (int i = lane; i < 32 * p.each; i += 32, at += 32 * to.stride) {
      const Row row(sets.place(set), i);
      const bool exists = i < count;
      if (!exists) row.fill(0.F);
      float v[Row::kCount];
      const auto state = Row::Fold::terms(v, p.rows.factor.c, row.take(v, 0.F)).state;
      if (exists) to.put_at(at, state);
    }
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
