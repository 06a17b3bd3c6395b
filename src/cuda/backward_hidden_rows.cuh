// The gradients of softmax and log_softmax of rows up to 1024 of which a mask, lengths or a causal limit hide elements,
// or with scales of their own: y, dy and masks fly to shared memory on their own, a group of lanes a row.
#pragma once

#include "cuda/gradient_hidden.cuh"
#include "cuda/odd_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

struct HiddenRows : HiddenGradient {
  int mask_pitch;    ///< bytes between landing places of masks
  bool mask_joined;  ///< a warp's masks lie end to end, and land as one run
  bool cut;          ///< of rows that are not joined only what lengths leave is read
  bool alike;        ///< all rows are of one length and scale

  SOFTFOLD_HD int mask_bytes(int rows) const { return p[Slot::mask].given ? mask_room(rows * mask_pitch) : 0; }
};

/// Lanes with fewer vectors leave registers for more of them: 16 bit is bound by instructions, not by memory.
template <class E>
inline constexpr int kHiddenVectors = sizeof(E) == 2 ? 4 : 8;
template <class E>
inline constexpr int kHiddenBlocks = sizeof(E) == 2 ? 4 : 3;

/// Rows that fill the slots of their lanes, on vectors.
template <class E, int kLanes_, int kVectors>
struct FilledTile {
  static constexpr int kLanes = kLanes_, kRows = 32 / kLanes, kBytes = kLanes * kVectors * 16;
  static constexpr int shift = 0;
  int lane, turn;

  /// Rows end to end meet in banks: as LaneRow has it, each begins with another vector, of which the tree sees nothing.
  __device__ __forceinline__ FilledTile(const char*, int, int row, bool joined)
      : lane(static_cast<int>(threadIdx.x) % kLanes),
        turn(kLanes < 8 && joined ? row / (kBytes < 128 ? 128 / kBytes : 1) % kVectors : 0) {}
  static __device__ __forceinline__ int wrapped() { return 0; }
  __device__ __forceinline__ int place(int j) const { return lane + kLanes * (j ^ turn); }
  __device__ __forceinline__ void gather_only(uint4 (&raw)[kVectors], const char* first, E) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) raw[j] = reinterpret_cast<const uint4*>(first)[place(j)];
  }
  template <class Vector>
  __device__ __forceinline__ void write_vectors(char* y, const Vector& vector) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) reinterpret_cast<uint4*>(y)[place(j)] = vector(j);
  }
};
/// Others.
template <class E, int kLanes, int kVectors, int kFull>
struct HiddenTile : OddTile<E, kLanes, kVectors, kFull> {
  static constexpr int turn = 0;
  __device__ __forceinline__ HiddenTile(const char* first, int n, int, bool)
      : OddTile<E, kLanes, kVectors, kFull>(first, n) {}
};

/// A row that is on its way; mask: in which of 16 bytes its mask begins.
struct ComingRow {
  int length, mask;
  float scale;
};

/// A warp's rows on their way: kOddRuns sets of kRows.
template <class E, int kRows>
class HiddenSets {
  using Place = OddPlace<E>;

  const HiddenRows& p_;
  char* memory_;  ///< the block's
  CopyBarrier* landed_;
  ComingRow* coming_;
  int warp_, lane_;

 public:
  __device__ __forceinline__ HiddenSets(const HiddenRows& p, char* memory, CopyBarrier* landed, ComingRow* coming)
      : p_(p),
        memory_(memory),
        landed_(landed),
        coming_(coming),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ bool masked() const { return p_.p[Slot::mask].given; }
  __device__ __forceinline__ bool has(int run) const { return base(run) < p_.y.rows; }
  __device__ __forceinline__ std::int64_t base(int run) const {
    return ((static_cast<std::int64_t>(blockIdx.x) * kOddRuns + run) * kOddWarps + warp_) * kRows;
  }
  __device__ __forceinline__ int count(int run) const {
    return static_cast<int>(min(static_cast<std::int64_t>(kRows), p_.y.rows - base(run)));
  }
  __device__ __forceinline__ Place place(int run, const PlainRows& rows, int operand) const {
    const char* first = rows.x + base(run) * rows.x_stride;
    char* room = memory_ + ((run * kOddWarps + warp_) * 2 + operand) * Place::bytes(p_.y, kRows);
    return {rows.joined ? place_in_sectors(room, first) : room, first};
  }
  __device__ __forceinline__ ComingRow coming(int run, int row) const {
    if (p_.alike) return {static_cast<int>(p_.y.n), 0, p_.scale};
    return coming_[run * kRows + row];
  }
  /// A row's mask, which begins so far into its vector of bytes.
  __device__ __forceinline__ const char* mask(int run, int row, int low) const {
    char* room = masks(run);
    if (!p_.mask_joined) return room + kCopySector + row * p_.mask_pitch + low;
    const char* first = first_mask(run);
    return mask_place(room, first) + reinterpret_cast<std::uintptr_t>(first) % 16 + row * p_.mask_pitch;
  }
  __device__ __forceinline__ void wait(int run) const { landed_[run].wait(0); }

  /// Sends all on its way.
  __device__ __forceinline__ void fetch() const {
    if (lane_ < kOddRuns)
      landed_[lane_].init(2 * (p_.y.joined ? 1 : kRows) + (masked() ? p_.mask_joined ? 1 : kRows : 0));
    CopyBarrier::publish();
    __syncwarp();
    if (!p_.alike) fetch_each();
    const int n = static_cast<int>(p_.y.n), each = p_.y.joined ? 1 : kRows;
#pragma unroll 1
    for (int i = lane_; i < 2 * kOddRuns * each; i += 32) {
      const int operand = i % 2, run = i / 2 % kOddRuns, row = i / 2 / kOddRuns;
      if (!has(run)) continue;
      const PlainRows& rows = operand == 0 ? p_.y : p_.dy;
      const Place to = place(run, rows, operand);
      const int own = row >= count(run) ? 0 : p_.cut ? coming(run, row).length : n;
      fetch_bytes(run, to.place + row * rows.pitch, to.first + row * rows.x_stride,
                  (p_.y.joined ? count(run) * n : own) * static_cast<int>(sizeof(E)), {rows.x_begin, rows.x_end});
    }
    if (masked() && p_.mask_joined && lane_ < kOddRuns && has(lane_))
      fetch_bytes(lane_, mask_place(masks(lane_), first_mask(lane_)), first_mask(lane_), count(lane_) * n, p_.mask);
    __syncwarp();  // bytes that no copy brings are there
  }

 private:
  __device__ __forceinline__ char* masks(int run) const {
    return memory_ + 2 * kOddWarps * kOddRuns * Place::bytes(p_.y, kRows) +
           (run * kOddWarps + warp_) * p_.mask_bytes(kRows);
  }
  __device__ __forceinline__ const char* first_mask(int run) const {
    return p_.p[Slot::mask].data + base(run) * p_.mask_pitch;
  }
  /// By a lane: elements of any size are so many bytes.
  __device__ __forceinline__ void fetch_bytes(int run, char* to, const char* from, int bytes, const Extent& all) const {
    fetch_run<std::uint8_t>(to, landed_[run], from, bytes, all);
  }
  /// What there is of each row, and its mask, where masks do not lie end to end.
  __device__ __forceinline__ void fetch_each() const {
#pragma unroll 1
    for (int i = lane_; i < kOddRuns * kRows; i += 32) {
      const int run = i / kRows, row = i % kRows;
      if (!has(run)) break;
      const bool is_row = row < count(run);
      const HiddenRow own(p_.p, base(run) + (is_row ? row : 0));
      coming_[i] = {own.length, static_cast<int>(reinterpret_cast<std::uintptr_t>(own.mask) % 16), own.scale};
      if (masked() && !p_.mask_joined)
        fetch_bytes(run, masks(run) + kCopySector + row * p_.mask_pitch, own.mask,
                    is_row ? p_.cut ? own.length : static_cast<int>(p_.y.n) : 0, p_.mask);
    }
    __syncwarp();
  }
};

/// A group of lanes a row.
template <class E, class Tile, int kVectors, template <class> class Gradient>
__global__ void __launch_bounds__(32 * kOddWarps, kHiddenBlocks<E>)
    backward_hidden_rows(const __grid_constant__ HiddenRows p) {
  begin_in_order();
  constexpr int kLanes = Tile::kLanes, kRows = Tile::kRows;
  using Vectors = HiddenVectors<E, Gradient, kLanes, kVectors>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kOddWarps][kOddRuns];
  __shared__ ComingRow coming[kOddWarps][kOddRuns * kRows];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const HiddenSets<E, kRows> sets(p, landing_memory, landed[warp], coming[warp]);
  sets.fetch();
#pragma unroll 1
  for (int run = 0; run < kOddRuns && sets.has(run); ++run) {
    const int own = lane / kLanes, count = sets.count(run);
    // Groups without a row of their own take part with the last one and write nothing.
    const int some = min(own, count - 1);
    const OddPlace<E> y_place = sets.place(run, p.y, 0);
    const char *at_y = y_place.row(p.y, some), *at_dy = sets.place(run, p.dy, 1).row(p.dy, some);
    const ComingRow row = sets.coming(run, some);
    const Tile tile(at_y, static_cast<int>(p.y.n), some, p.y.joined);
    sets.wait(run);
    typename Vectors::Vectors y, dy;
    tile.gather_only(y, at_y, Packed<E>::narrow(Gradient<float>::nothing()));
    tile.gather_only(dy, at_dy, Packed<E>::narrow(-0.F));
    typename Vectors::Shown shown;
    if (sets.masked()) {
      shown.template find<true>(sets.mask(run, some, row.mask), tile.shift, row.length, tile.wrapped(), tile.turn);
    } else {
      shown.template find<false>(nullptr, tile.shift, row.length, tile.wrapped(), tile.turn);
    }
    Vectors::hide(y, dy, shown);
    const lift::SumNode sum = Vectors::sum(y, dy);
    Vectors::stay_packed(y), Vectors::stay_packed(dy);
    constexpr unsigned all_lanes = lift::kWholeWarp >> (32 - kLanes);
    const bool any = (__ballot_sync(lift::kWholeWarp, sum.any != 0) >> (own * kLanes) & all_lanes) != 0;
    Vectors::finish(y, dy, shown, Gradient<float>{sum.sum, row.scale}, any);
    const auto result = [&](int j) { return y[j]; };
    if (p.y.joined && kLanes <= kOddRunLanes) {
      __syncwarp();  // all have read their elements
      if (own < count) tile.write_vectors(y_place.row(p.y, own), result);
      y_place.send(p.y, p.y.y + sets.base(run) * p.y.y_stride, count);
    } else if (own < count) {
      tile.write_vectors(p.y.y + (sets.base(run) + own) * p.y.y_stride, result);
    }
  }
  bulk_drain();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
