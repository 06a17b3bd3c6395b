// Rows up to 1024 elements of which a mask, lengths or a causal limit hide elements, or with scales of their own: they
// and their masks fly to shared memory on their own, a group of lanes a row.
#pragma once

#include "cuda/choose.hpp"
#include "cuda/hidden.cuh"
#include "cuda/odd_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

struct HiddenRows : HiddenProblem {
  int mask_pitch = 0;        ///< bytes between landing places of masks
  bool mask_joined = false;  ///< a warp's masks lie end to end, and land as one run
  bool mask_shared = false;  ///< many rows have theirs from the same few lines of memory
  bool lengths = false;      ///< rows may be cut short
  bool cut = false;          ///< of rows that are not joined only what lengths leave is read
  bool alike = false;        ///< all rows are of one length and scale, and their masks, if any, joined
  bool stepped = false;      ///< `steps` say where what a row has lies
  HiddenSteps steps{};

  SOFTFOLD_HD int mask_bytes(int rows) const { return p[Slot::mask].given ? mask_room(rows * mask_pitch) : 0; }
};

/// Rows that fill the slots of their lanes, on vectors.
template <class E, int kLanes_, int kVectors>
struct FilledTile {
  static constexpr int kLanes = kLanes_, kRows = 32 / kLanes, kBytes = kLanes * kVectors * 16;
  static constexpr int shift = 0, kFull = kVectors;
  int lane, turn;

  /// Rows end to end meet in banks: as LaneRow has it, each begins with another vector, of which the tree sees nothing.
  __device__ __forceinline__ FilledTile(const char*, int, int row, bool joined)
      : lane(static_cast<int>(threadIdx.x) % kLanes),
        turn(kLanes < 8 && joined ? row / (kBytes < 128 ? 128 / kBytes : 1) % kVectors : 0) {}
  __device__ __forceinline__ int place(int j) const { return lane + kLanes * (j ^ turn); }
  __device__ __forceinline__ void gather_only(uint4 (&raw)[kVectors], const char* first, E) const {
    gather_any(raw, first);
  }
  __device__ __forceinline__ void gather_any(uint4 (&raw)[kVectors], const char* first) const {
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
template <class E, int kLanes, int kVectors, int kFull_>
struct HiddenTile : OddTile<E, kLanes, kVectors, kFull_> {
  using Base = OddTile<E, kLanes, kVectors, kFull_>;
  static constexpr int turn = 0, kFull = kFull_;
  __device__ __forceinline__ HiddenTile(const char* first, int n, int, bool) : Base(first, n) {}

  /// In slots without an element stands anything.
  __device__ __forceinline__ void gather_any(uint4 (&raw)[kVectors], const char* first) const {
    const auto* at = reinterpret_cast<const uint4*>(first - Base::shift * Base::kSize);
    const int last = (Base::end - 1) / Base::kWidth;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int place = Base::lane + kLanes * j;
      raw[j] = at[j < kFull ? place : min(place, last)];
    }
    if (Base::wrapped() > 0 && Base::lane == 0)
      raw[0] = joined(raw[0], at[kLanes * kVectors], Base::shift * Base::kSize);
  }
};

/// A row that is on its way; mask: where its mask begins, from the first landing place of its run's
/// masks on.
struct ComingRow {
  int length, mask;
  double scale;
};

/// A warp's rows on their way: kOddRuns sets of kRows, of x, or of y and dy.
template <class E, int kRows, int kOperands>
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

  __device__ __forceinline__ bool cut_short() const { return p_.lengths; }
  __device__ __forceinline__ bool masked() const { return p_.p[Slot::mask].given; }
  __device__ __forceinline__ bool has(int run) const { return base(run) < p_.rows.rows; }
  __device__ __forceinline__ std::int64_t base(int run) const {
    return ((static_cast<std::int64_t>(blockIdx.x) * kOddRuns + run) * kOddWarps + warp_) * kRows;
  }
  __device__ __forceinline__ int count(int run) const {
    return static_cast<int>(min(static_cast<std::int64_t>(kRows), p_.rows.rows - base(run)));
  }
  __device__ __forceinline__ Place place(int run, const PlainRows& rows, int operand) const {
    const char* first = rows.x + base(run) * rows.x_stride;
    char* room = memory_ + ((run * kOddWarps + warp_) * kOperands + operand) * Place::bytes(p_.rows, kRows);
    return {rows.joined ? place_in_sectors(room, first) : room, first};
  }
  __device__ __forceinline__ ComingRow coming(int run, int row) const {
    if (p_.alike) return {static_cast<int>(p_.rows.n), 0, p_.p.scale};
    return coming_[run * kRows + row];
  }
  /// A row's mask; begins: as ComingRow has it.
  __device__ __forceinline__ const char* mask(int run, int row, int begins) const {
    char* room = masks(run);
    if (!p_.mask_joined) return room + kCopyLine + begins;
    const char* first = first_mask(run);
    return mask_place(room, first) + reinterpret_cast<std::uintptr_t>(first) % 16 + row * p_.mask_pitch;
  }
  __device__ __forceinline__ void wait(int run) const { landed_[run].wait(0); }
  /// find.operator()<kMask, kWhole, kCut>(mask, n), of which find_shown() makes what a row's elements are.
  template <class Tile, class Find>
  __device__ __forceinline__ void find_shown(int run, int row, const ComingRow& its, const Tile&,
                                             const Find& find) const {
    const auto n = static_cast<int>(p_.rows.n);
    if (!masked()) return find.template operator()<false, Tile::kFull, true>(nullptr, n);
    const char* own = mask(run, row, its.mask);
    p_.lengths ? find.template operator()<true, Tile::kFull, true>(own, n)
               : find.template operator()<true, Tile::kFull, false>(own, n);
  }

  /// Sends all on its way.
  __device__ __forceinline__ void fetch() const {
    if (lane_ < kOddRuns) landed_[lane_].init(kOperands * (p_.rows.joined ? 1 : kRows) + mask_copies());
    CopyBarrier::publish();
    __syncwarp();
    if (p_.cut) fetch_each();
    const int n = static_cast<int>(p_.rows.n), each = p_.rows.joined ? 1 : kRows;
#pragma unroll 1
    for (int i = lane_; i < kOperands * kOddRuns * each; i += 32) {
      const int operand = i % kOperands, run = i / kOperands % kOddRuns, row = i / kOperands / kOddRuns;
      if (!has(run)) continue;
      const PlainRows& rows = operand == 0 ? p_.rows : p_.dy;
      const Place to = place(run, rows, operand);
      const int own = row >= count(run) ? 0 : p_.cut ? coming(run, row).length : n;
      fetch_bytes(run, to.place + row * rows.pitch, to.first + row * rows.x_stride,
                  (p_.rows.joined ? count(run) * n : own) * static_cast<int>(sizeof(E)), {rows.x_begin, rows.x_end});
    }
    if (!p_.alike && !p_.cut) fetch_each();
    if (masked() && p_.mask_joined && lane_ < kOddRuns && has(lane_))
      fetch_bytes(lane_, mask_place(masks(lane_), first_mask(lane_)), first_mask(lane_), count(lane_) * n, p_.mask);
    __syncwarp();  // bytes that no copy brings are there
  }

  /// The results of each group's row, vector(j) the lane's j-th; by all lanes. bulk_drain() before the block ends.
  template <class Tile, class Vector>
  __device__ __forceinline__ void put(int run, const Tile& tile, const Vector& vector) const {
    const int own = lane_ / Tile::kLanes;
    if (p_.rows.joined && Tile::kLanes <= kOddRunLanes) {
      const Place to = place(run, p_.rows, 0);
      __syncwarp();  // all have read their elements
      if (own < count(run)) tile.write_vectors(to.row(p_.rows, own), vector);
      to.send(p_.rows, p_.rows.y + base(run) * p_.rows.y_stride, count(run));
    } else if (own < count(run)) {
      tile.write_vectors(p_.rows.y + (base(run) + own) * p_.rows.y_stride, vector);
    }
  }

 private:
  /// Of a run.
  __device__ __forceinline__ int mask_copies() const {
    if (!masked() || (p_.mask_shared && !p_.mask_joined)) return 0;
    return p_.mask_joined ? 1 : kRows;
  }
  __device__ __forceinline__ char* masks(int run) const {
    return memory_ + kOperands * kOddWarps * kOddRuns * Place::bytes(p_.rows, kRows) +
           (run * kOddWarps + warp_) * p_.mask_bytes(kRows);
  }
  __device__ __forceinline__ const char* first_mask(int run) const {
    return p_.p[Slot::mask].data + base(run) * p_.mask_pitch;
  }
  /// By a lane: elements of any size are so many bytes.
  __device__ __forceinline__ void fetch_bytes(int run, char* to, const char* from, int bytes, const Extent& all) const {
    fetch_run<std::uint8_t>(to, landed_[run], from, bytes, all);
  }
  /// What there is of each row, and its mask, where masks do not lie end to end: rows of one mask, or whose masks lie
  /// so, are a run. By all lanes.
  __device__ __forceinline__ void fetch_each() const {
    const int n = static_cast<int>(p_.rows.n);
#pragma unroll 1
    for (int i = lane_; i < whole_warps(kOddRuns * kRows); i += 32) {
      const int run = i / kRows, row = i % kRows;
      const bool is_row = run < kOddRuns && has(run) && row < count(run);
      const std::int64_t at = is_row ? base(run) + row : 0;
      const HiddenRow own =
          p_.stepped ? HiddenRow(p_.p, p_.steps, static_cast<std::uint32_t>(at)) : HiddenRow(p_.p, at);
      const std::int64_t step = own.mask - shuffled(own.mask, lane_ - 1);
      const bool leads = !is_row || row == 0 || p_.cut || (step != 0 && step != n);
      const unsigned leaders = __ballot_sync(lift::kWholeWarp, leads), behind = leaders >> lane_ >> 1;
      const int leader = 31 - __clz(static_cast<int>(leaders & lift::kWholeWarp >> (31 - lane_)));
      const int last = behind == 0 ? 31 : lane_ + __ffs(static_cast<int>(behind)) - 1;
      const char *first = shuffled(own.mask, leader), *end = shuffled(own.mask, last) + n;
      if (is_row)
        coming_[i] = {own.length,
                      (row + leader - lane_) * p_.mask_pitch +
                          static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16 + (own.mask - first)),
                      own.scale};
      if (!masked() || p_.mask_joined) continue;
      char* to = masks(run) + kCopyLine + row * p_.mask_pitch;
      const int bytes = !is_row || !leads ? 0 : p_.cut ? own.length : static_cast<int>(end - own.mask);
      if (p_.mask_shared) {
        share_masks(to, own.mask, bytes);
      } else if (run < kOddRuns && has(run)) {
        fetch_bytes(run, to, own.mask, bytes, p_.mask);
      }
    }
    __syncwarp();
  }
  /// What each lane has, by all of them: by way of the L1 cache, as many blocks at a time ask for the same few lines.
  __device__ __forceinline__ void share_masks(char* to, const char* from, int bytes) const {
    for (unsigned left = __ballot_sync(lift::kWholeWarp, bytes > 0); left != 0; left &= left - 1) {
      const int lane = __ffs(static_cast<int>(left)) - 1;
      const char* first = shuffled(from, lane);
      const int before = static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16);
      const int end = before + __shfl_sync(lift::kWholeWarp, bytes, lane);
      char* place = const_cast<char*>(shuffled(to, lane));
      for (int i = 16 * lane_; i < end; i += 16 * 32) {
        const char* at = first - before + i;
        if (at >= p_.mask.begin && at + 16 <= p_.mask.end) {
          *reinterpret_cast<uint4*>(place + i) = *reinterpret_cast<const uint4*>(at);
        } else {
          for (int k = max(before - i, 0); k < min(end - i, 16); ++k) place[i + k] = at[k];
        }
      }
    }
  }
  static constexpr int whole_warps(int threads) { return (threads + 31) / 32 * 32; }
  static __device__ __forceinline__ const char* shuffled(const char* of, int lane) {
    return reinterpret_cast<const char*>(
        __shfl_sync(lift::kWholeWarp, reinterpret_cast<std::uintptr_t>(of), max(lane, 0)));
  }
};

/// Measured: rows of so many bytes, of which lengths hide half, are faster one by one, as far as they go.
inline constexpr int kFewestCutBytes = 512;

template <class E>
HiddenRows hidden_rows(const RowProblem& p) {
  HiddenRows h{hidden_problem(p)};
  h.lengths = p[Slot::length].given || p.causal;
  const auto n = static_cast<int>(p.n), size = static_cast<int>(sizeof(E));
  const auto side_by_side = [&](const PlainRows& rows) {
    return rows.x_stride == std::int64_t{n} * size && (!p[Slot::y].given || rows.y_stride == rows.x_stride);
  };
  const bool end_to_end_rows = side_by_side(h.rows) && side_by_side(h.dy);
  h.cut = h.lengths && (!end_to_end_rows || n * size >= kFewestCutBytes);
  h.rows.joined = h.dy.joined = end_to_end_rows && !h.cut;
  h.rows.pitch = h.dy.pitch = OddPlace<E>::pitch(h.rows);
  h.mask_joined = h.rows.joined && masks_end_to_end(p);
  h.mask_shared = masks_are_shared(p);
  h.stepped = p.rows <= 0x7FFFFFFF;
  if (h.stepped) {
    const auto mask = row_steps(p, p[Slot::mask]), length = row_steps(p, p[Slot::length]),
               scale = row_steps(p, p[Slot::scales]);
    h.stepped = mask && length && scale;
    if (h.stepped)
      h.steps = {*mask, *length, *scale, Divisor(p.causal ? p.outer[static_cast<std::size_t>(p.outer_rank - 1)] : 1)};
  }
  h.mask_pitch = h.mask_joined ? n : (n + 15) / 16 * 16 + 16;
  h.alike = !h.lengths && !p[Slot::scales].given && (!p[Slot::mask].given || h.mask_joined);
  return h;
}

/// go.operator()<Tile, vectors of a lane>(), with the fewest lanes that hold a row by up to `most` vectors each; whole:
/// it begins and ends with vectors.
template <class E, int most, int kLanes = 1, class Go>
void with_hidden_shape(int n, bool whole, const Go& go) {
  constexpr int width = 16 / static_cast<int>(sizeof(E));
  const int vectors = whole ? n / width : std::min<int>(n + 2 * (width - 1), lift::kChunk) / width;
  // Of few for each lane one more: twice as many lanes would have half of them, not all full. Of many a ninth, for what
  // is in a row's first and last vector beside it.
  constexpr bool holds_all = kLanes * most * width == lift::kChunk, more = width == 8 && !holds_all;
  constexpr int at_most = most + (more ? 1 : 0);
  if constexpr (!holds_all)
    if (vectors > kLanes * at_most) return with_hidden_shape<E, most, 2 * kLanes>(n, whole, go);
  const int each = (vectors + kLanes - 1) / kLanes;
  if (vectors == kLanes * most && whole) return go.template operator()<FilledTile<E, kLanes, most>, most>();
  const auto tile = [&]<int kVectors, int kFull>() {
    go.template operator()<HiddenTile<E, kLanes, kVectors, kFull>, kVectors>();
  };
  if constexpr (kLanes == 1) {
    if (each <= 2) return tile.template operator()<2, 0>();
    if constexpr (most > 4)
      if (each <= 4) return tile.template operator()<4, 1>();
  }
  constexpr int some = most * 3 / 4;
  if constexpr (more)
    if (each == at_most) return tile.template operator()<at_most, at_most - 2>();
  if constexpr (most > 4)
    if (each == 5) return tile.template operator()<5, 3>();
  if (each <= some) return tile.template operator()<some, most / 2 - 1>();
  if constexpr (most > 4 && width == 8)
    if (each == 7) return tile.template operator()<7, 5>();
  tile.template operator()<most, some - 1>();
}

/// go.operator()<Tile, vectors of a lane>(rows, grid), for a kernel of kOperands.
template <class E, int kOperands, int kMost, class Go>
void launch_hidden_rows(const RowProblem& p, const Go& go) {
  const HiddenRows h = hidden_rows<E>(p);
  const bool whole = on_whole_vectors(p) && (!p[Slot::dy].given || on_vectors(p, p[Slot::dy]));
  with_hidden_shape<E, kMost>(static_cast<int>(p.n), whole, [&]<class Tile, int kVectors>() {
    constexpr int each = Tile::kRows, all = each * kOddWarps * kOddRuns;
    const int sets = kOddWarps * kOddRuns * (kOperands * OddPlace<E>::bytes(h.rows, each) + h.mask_bytes(each));
    go.template operator()<Tile, kVectors>(h, Grid{(p.rows + all - 1) / all, 32 * kOddWarps, 1, sets});
  });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
