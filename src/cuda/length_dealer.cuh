// How rows whose lengths the device alone knows are dealt out to the warps of a cluster, in units of two chunks.
#pragma once

#include "cuda/lane_sums.cuh"
#include "cuda/ragged_team.cuh"
#include "cuda/short_place.cuh"
#include "cuda/short_tile.cuh"
#include "cuda/softmax_stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Two chunks of a row, or what exists of them: what a warp takes at a time, 64 elements a lane. kAnywhere: rows may
/// begin inside vectors; kRagged: they are ragged ones, which may, too.
template <class E_, bool kAnywhere_, bool kRagged_ = false>
struct LengthUnit {
  using E = E_;
  static constexpr bool kAnywhere = kAnywhere_, kRagged = kRagged_;
  static constexpr int kCount = 64, kLanes = 16, kElements = 32 * kCount, kChunks = kElements / lift::kChunk;
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = kCount / kWidth;
  using Place = WarpPart<E, kLanes, kCount>;  ///< where it lands, if kAnywhere
  static constexpr int kBytes = kAnywhere ? room_in_sectors(Place::kBytes) : kElements * kSize;
  static constexpr int kStages = kSize == 2 ? 2 : 1;  ///< units on their way to a warp
  using Fold = lift::WarpFold<kWidth, kLanes, kCount>;

  static __device__ __forceinline__ int units(int n) { return (n + kElements - 1) / kElements; }
  /// The first element of the lane's chunk.
  static __device__ __forceinline__ int lane_begin() { return lane_index() / kLanes * lift::kChunk; }
};

/// Rows without a mask or scales of their own, whose elements become zeros where there are none; or ragged rows of
/// certain lengths.
struct LengthRows {
  RowProblem p;
  Extent x;  ///< its memory
  fold::Scale<float> scale;
  lift::Factor factor;  ///< of scale.c; plain
  float two_kappa;      ///< LogNormaliser's, which takes a division in double
  // Of ragged ones:
  std::int64_t longest;
  RaggedQueue source;  ///< if given, of the rows on it, else of all
  RaggedQueue longer;
};

/// Where one row lies, and how much of it exists.
struct LengthRow {
  const char* x;
  char* y;
  int length;
};
inline __device__ __noinline__ LengthRow length_row(const RowProblem& p, std::int64_t row) {
  const Row r = row_at(p, RowPlace(p, row));
  return {r.x, r.y, static_cast<int>(r.length)};
}

/// A warp's part of a batch. It waits in shared memory while its elements are on their way.
struct LengthJob {
  static constexpr int kNone = -1;
  const char* x;
  char* y;     ///< both of the unit's first element
  int n;       ///< elements that exist: 0 if the batch has no unit for this warp, kNone behind the last batch
  int room;    ///< elements that the row has there
  int mail;    ///< the row's first chunk in the batch
  int chunks;  ///< of the row, that exist
};

/// Up to 32 rows as a warp sees them, in order of length. In shared memory, not in registers, of which none must be
/// spilled.
struct LengthPage {
  const char* x[32];
  char* y[32];
  int length[32];
  int behind[32];     ///< units of the rows up to this one
  std::int64_t next;  ///< the first row of the next page
  int from, to;       ///< rows that are not dealt out

  __device__ __forceinline__ int units_before(int row) const { return row > 0 ? behind[row - 1] : 0; }
};

/// Puts the first `count` rows of a page in order.
template <class Unit>
__device__ __forceinline__ void arrange(LengthPage& page, int count) {
  constexpr int kNone = 1 << 24;
  const int lane = lane_index();
  const ShortOrder order = ShortOrder::sorted((lane < count ? page.length[lane] : kNone) * 32 + lane);
  const int length = lane < count ? order.length() : 0;
  const char* x = page.x[order.owner()];
  char* y = page.y[order.owner()];
  const int behind = sum_up_to(Unit::units(length));
  __syncwarp();
  page.x[lane] = x, page.y[lane] = y, page.length[lane] = length, page.behind[lane] = behind;
  if (lane == 0) page.from = 0, page.to = count;
  __syncwarp();
}

/// The next page of ragged rows, of those that clusters stay for; longer ones to the queue, by one warp of a cluster.
template <class Unit>
__device__ __noinline__ void turn_ragged(const LengthRows& rows, int clusters, LengthPage& page) {
  const RowProblem& p = rows.p;
  const RaggedQueue& source = rows.source;
  const std::int64_t all = source.given() ? source.count() : p.rows;
  const int lane = lane_index();
  const char* x = p[Slot::x].data;
  char* y = p[Slot::y].data;
  std::int64_t first = page.next;
  int count = 0;
#pragma unroll 1
  while (count < 32 && first < all) {
    std::int64_t own = first + static_cast<std::int64_t>(lane) * clusters;
    RaggedRow r{own, 0, 0};
    if (own < all) {
      if (source.given()) own = source.row(static_cast<unsigned>(own));
      r = ragged_row(p, own);
    }
    const bool takes = r.n > 0 && r.n <= rows.longest;
    const unsigned found = __ballot_sync(lift::kWholeWarp, takes);
    const int at = count + __popc(found & ((1U << lane) - 1U));
    if (takes && at < 32) {
      page.x[at] = x + r.begin * Unit::kSize, page.y[at] = y + r.begin * Unit::kSize;
      page.length[at] = static_cast<int>(r.n);
    }
    const unsigned full = __ballot_sync(lift::kWholeWarp, takes && at >= 32);
    const int seen = full == 0 ? 32 : __ffs(static_cast<int>(full)) - 1;
    if (r.n > rows.longest && lane < seen && threadIdx.x < 32 && lift::Cluster::rank() == 0)
      rows.longer.append(own, r.n);
    first += static_cast<std::int64_t>(seen) * clusters;
    count = min(count + __popc(found), 32);
  }
  __syncwarp();
  if (lane == 0) page.next = first;  // behind the barrier: the others read it above, and votes order no memory
  arrange<Unit>(page, count);
}

/// Deals out rows. A batch is rows of one page that have no more units together than the cluster has warps: the longest
/// that are left, then the shortest for which there still is room. Every warp of the cluster comes to the same batches
/// by itself.
template <class Unit, bool kLog>
struct LengthDealer {
  using E = typename Unit::E;

  int warps, unit;  ///< of the cluster; the warp's place in every batch: neighbours lie in different blocks

  __device__ __forceinline__ LengthDealer() {
    const unsigned blocks = lift::Cluster::size();
    warps = static_cast<int>(blockDim.x / 32 * blocks);
    unit = static_cast<int>(threadIdx.x / 32 * blocks + lift::Cluster::rank());
  }

  /// A page that is all dealt out.
  static __device__ __forceinline__ void begin(LengthPage& page) {
    const int lane = lane_index();
    page.x[lane] = page.y[lane] = nullptr, page.length[lane] = 0;
    if (lane == 0) page.next = blockIdx.x / lift::Cluster::size(), page.from = page.to = 0;
    __syncwarp();
  }

  /// The warp's part of the next batch; what no element of its rows can exist of, but not in the units, is written.
  __device__ __forceinline__ void next(const LengthRows& rows, int clusters, LengthPage& page, LengthJob& job) const {
    const RowProblem& p = rows.p;
    if (page.from == page.to) {
      if constexpr (Unit::kRagged)
        turn_ragged<Unit>(rows, clusters, page);
      else
        turn(p, clusters, page);
    }
    const int lane = static_cast<int>(threadIdx.x) % 32, from = page.from, to = page.to;
    const int behind = page.behind[lane], units = Unit::units(page.length[lane]), before = behind - units;
    const int all = page.units_before(to), done = page.units_before(from);
    const bool is_left = lane >= from && lane < to, is_long = is_left && all - before <= warps;
    const int long_from = to - __popc(__ballot_sync(lift::kWholeWarp, is_long));
    const int rest = page.units_before(long_from), room = warps - (all - rest);
    const bool is_short = is_left && !is_long && behind - done <= room;
    const int short_to = from + __popc(__ballot_sync(lift::kWholeWarp, is_short));
    // The batch's units before the lane's row.
    const int first = is_long ? before - rest : warps - room + before - done;
    const bool takes = is_long || is_short;
    const unsigned mine = __ballot_sync(lift::kWholeWarp, takes && first <= unit && unit < first + units);
    LengthJob own{nullptr, nullptr, from == to ? LengthJob::kNone : 0, 0, 0, 0};
    if (mine != 0) {
      const int row = __ffs(static_cast<int>(mine)) - 1, dealt = __shfl_sync(lift::kWholeWarp, first, row);
      const int begin = (unit - dealt) * Unit::kElements, length = page.length[row];
      own = {page.x[row] + begin * Unit::kSize,
             page.y[row] + begin * Unit::kSize,
             min(length - begin, Unit::kElements),
             Unit::kRagged ? min(length - begin, Unit::kElements) : room_at(p, begin),
             dealt * Unit::kChunks,
             (length + lift::kChunk - 1) / lift::kChunk};
    }
    if constexpr (!Unit::kRagged) {
      unsigned others = __ballot_sync(lift::kWholeWarp, takes) & ~mine;
#pragma unroll 1
      for (; others != 0; others &= others - 1) {
        const int row = __ffs(static_cast<int>(others)) - 1, dealt = __shfl_sync(lift::kWholeWarp, first, row);
        // Whoever has no unit of the row has at most one of those behind its end.
        const int count = __shfl_sync(lift::kWholeWarp, units, row);
        const int begin = (warps - 1 - unit + (unit < dealt ? 0 : count)) * Unit::kElements;
        hide_run<E, kLog, Unit::kVectors, !Unit::kAnywhere>(page.y[row] + begin * Unit::kSize, room_at(p, begin));
      }
    }
    __syncwarp();  // all have read the page
    if (lane == 0) job = own, page.from = short_to, page.to = long_from;
    __syncwarp();
  }

 private:
  static __device__ __forceinline__ void turn(const RowProblem& p, int clusters, LengthPage& page) {
    const int lane = lane_index();
    // Pages of nearly one size: a few rows alone would not fill their batch.
    const std::int64_t first = page.next, rows = (p.rows - first + clusters - 1) / clusters;
    const auto count = static_cast<int>(rows > 64 ? 32 : rows > 32 ? (rows + 1) / 2 : rows);
    LengthRow r{nullptr, nullptr, 0};
    if (lane < count) r = length_row(p, first + static_cast<std::int64_t>(lane) * clusters);
    page.x[lane] = r.x, page.y[lane] = r.y, page.length[lane] = r.length;
    __syncwarp();
    if (lane == 0) page.next = first + static_cast<std::int64_t>(count) * clusters;  // all have read it
    arrange<Unit>(page, count);
  }

  /// Elements that a row has in the unit at `begin`.
  static __device__ __forceinline__ int room_at(const RowProblem& p, int begin) {
    return min(static_cast<int>(p.n) - begin, Unit::kElements);
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
