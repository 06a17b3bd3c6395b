// Plain rows of up to 1024 elements that do not fill 4, 8, 16 or 32 lanes, or begin inside vectors: lanes have as many
// vectors as the rows need, and only the last ones ask what in them is the row's.
#pragma once

#include "cuda/short_place.cuh"
#include "cuda/softmax_plain.cuh"

#include <algorithm>
#include <bit>
#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Sets of rows that a warp has in flight, and warps of a block.
inline constexpr int kOddRuns = 2, kOddWarps = 4;
template <class E, int kVectors>
inline constexpr int kOddBlocks = sizeof(E) == 4 ? 6
                                  : kVectors > 8 ? 4
                                                 : 5;
/// Measured: up to so many lanes a row, results leave as whole runs of a warp's rows, beyond it straight from
/// registers.
inline constexpr int kOddRunLanes = 4;

/// A group of lanes and the vectors of each, which hold a row and what lies around it in its first and last vector. Of
/// each lane's vectors the first kFull hold nothing but elements of the row, but for what lies before it.
template <class E, int kLanes_, int kVectors, int kFull>
struct OddTile : ShortTile<E, kLanes_, kVectors * 16 / static_cast<int>(sizeof(E)), kFull> {
  using Short = ShortTile<E, kLanes_, kVectors * 16 / static_cast<int>(sizeof(E)), kFull>;
  static constexpr int kLanes = kLanes_, kCount = Short::kSlots / kLanes, kRows = 32 / kLanes, kWidth = Short::kWidth;
  using Short::end;
  using Short::lane;
  using Short::shift;
  using Short::Short;

  /// Results to y, which lies to 16-byte boundaries as x does, or to where x lies itself: vector(j) the lane's j-th.
  template <class Vector>
  __device__ __forceinline__ void write_vectors(char* y, const Vector& vector) const {
    constexpr int kSize = Short::kSize;
    uint4* to = reinterpret_cast<uint4*>(y - shift * kSize) + lane;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const uint4 own = vector(j);
      char* at = reinterpret_cast<char*>(to + kLanes * j);
      if (kFull == 0 && j == 0 && end < kWidth) {  // the row lies inside its only vector
        if (lane == 0) put_middle<kSize>(at, own, shift, end);
        return;
      }
      const int here = j < kFull ? kWidth : end - kWidth * (lane + kLanes * j);
      if (j == 0 && shift != 0 && lane == 0) {
        put_high<kSize>(at, own, shift);
        if (this->wrapped() > 0) put_low<kSize>(at + Short::kSlots * kSize, own, this->wrapped());
      } else if (here >= kWidth) {
        *reinterpret_cast<uint4*>(at) = own;
      } else if (here > 0) {
        put_low<kSize>(at, own, here);
      }
    }
  }
  __device__ __forceinline__ void write(char* y, const float (&v)[kCount]) const {
    write_vectors(y, [&](int j) { return Packed<E>::pack(v + j * kWidth); });
  }
};

/// The n elements that stand at a place in shared memory, where they lie to 16-byte boundaries as in y, to y; by all
/// lanes. bulk_drain() before the place is used again, or the block ends.
template <class E>
__device__ __forceinline__ void send_run(const char* place, char* y, int n) {
  constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(y) % 16) / kSize;
  const E* from = reinterpret_cast<const E*>(place) + shift;
  E* to = reinterpret_cast<E*>(y);
  fence_for_copy();
  __syncwarp();
  const int head = min(n, (kWidth - shift) % kWidth), tail = max(head, (n + shift) / kWidth * kWidth - shift);
  if (lane == 0 && tail > head) bulk_store(to + head, from + head, (tail - head) * kSize);
  if (lane < head) to[lane] = from[lane];
  if (tail + lane < n) to[tail + lane] = from[tail + lane];
}

/// Where a warp's rows land in shared memory, to 16-byte boundaries as they lie in x: as one run where they lie end to
/// end there, and results in y (p.joined), else p.pitch bytes apart.
template <class E>
struct OddPlace {
  char* place;
  const char* first;  ///< of the warp's rows

  static SOFTFOLD_HD int pitch(const PlainRows& p) {
    const int bytes = static_cast<int>(p.n) * static_cast<int>(sizeof(E));
    return p.joined ? bytes : (bytes + 15) / 16 * 16 + 16;
  }
  /// The same formula for both, or lanes with little to do would ask which (5 percent of the shortest rows).
  static SOFTFOLD_HD int bytes(const PlainRows& p, int rows) {
    return room_in_sectors((rows * p.pitch + 15) / 16 * 16 + 16);
  }

  __device__ __forceinline__ char* row(const PlainRows& p, int i) const {
    const auto low = [](const char* at) { return static_cast<int>(reinterpret_cast<std::uintptr_t>(at) % 16); };
    return place + i * p.pitch + (p.joined ? low(first) : low(first + i * p.x_stride));
  }
  /// Sends the first `count` rows, which are joined, on their way; by one lane.
  __device__ __forceinline__ void fetch_run(const PlainRows& p, CopyBarrier& landed, int count) const {
    cuda::fetch_run<E>(place, landed, first, count * static_cast<int>(p.n), Extent{p.x_begin, p.x_end});
  }
  /// The same, of `rows` that are not; by all lanes.
  __device__ __forceinline__ void fetch_rows(const PlainRows& p, CopyBarrier& landed, int rows, int count) const {
    const int n = static_cast<int>(p.n);
    for (int i = static_cast<int>(threadIdx.x) % 32; i < rows; i += 32)
      cuda::fetch_run<E>(place + i * p.pitch, landed, first + i * p.x_stride, i < count ? n : 0,
                         Extent{p.x_begin, p.x_end});
  }
  /// Either; by all lanes.
  __device__ __forceinline__ void fetch(const PlainRows& p, CopyBarrier& landed, int rows, int count) const {
    if (!p.joined) return fetch_rows(p, landed, rows, count);
    if (threadIdx.x % 32 == 0) fetch_run(p, landed, count);
  }
  /// Of joined rows: what stands in the place of the first `count`, to y; by all lanes. bulk_drain() before the block
  /// ends.
  __device__ __forceinline__ void send(const PlainRows& p, char* y, int count) const {
    send_run<E>(place, y, count * static_cast<int>(p.n));
  }
};

/// A number of rows that is known.
template <int kRows>
using Fixed = std::integral_constant<int, kRows>;

/// A warp's sets of `rows` rows each, Fixed ones or an int, as LaneSets. memory: the block's; from one warp's set to
/// the next `step` bytes.
template <class E, class Rows>
struct OddSets {
  using Place = OddPlace<E>;

  const PlainRows& p;
  Rows rows;
  char* memory;
  int step;
  int sets = kOddRuns;

  /// By all lanes, before they fetch().
  __device__ __forceinline__ void begin(CopyBarrier* landed) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < sets) landed[lane].init(p.joined ? 1 : rows);
    CopyBarrier::publish();
    __syncwarp();
  }
  /// All sets; before wait() __syncwarp(), for elements that no copy brings.
  __device__ __forceinline__ void fetch(CopyBarrier* landed) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (p.joined) {
      if (lane < sets && has(lane)) place(lane).fetch_run(p, landed[lane], count(lane));
    } else {
      for (int set = 0; set < sets && has(set); ++set) place(set).fetch_rows(p, landed[set], rows, count(set));
    }
  }
  /// A set's first row, whether there is one, and how many.
  __device__ __forceinline__ std::int64_t base(int set) const {
    return ((static_cast<std::int64_t>(blockIdx.x) * sets + set) * kOddWarps + threadIdx.x / 32) * rows;
  }
  __device__ __forceinline__ bool has(int set) const { return base(set) < p.rows; }
  __device__ __forceinline__ int count(int set) const {
    return static_cast<int>(min(static_cast<std::int64_t>(rows), p.rows - base(set)));
  }
  __device__ __forceinline__ char* room(int set) const {
    return memory + (set * kOddWarps + static_cast<int>(threadIdx.x) / 32) * step;
  }
  __device__ __forceinline__ Place place(int set) const {
    const char* first = p.x + base(set) * p.x_stride;
    return {p.joined ? place_in_sectors(room(set), first) : room(set), first};
  }
};

/// Whether rows begin and end with vectors, as plain_rows() gives them.
inline bool on_vectors(const PlainRows& p, int size) { return p.joined && p.n * size % 16 == 0; }

/// Whether rows lie side by side without a gap, and results too: then a warp's rows are one copy.
inline bool end_to_end(const PlainRows& p, int size) { return p.x_stride == p.n * size && p.y_stride == p.x_stride; }

/// Vectors that a row lies in at most, but for what wraps around.
inline int vectors_of(const PlainRows& p, int size) {
  const int width = 16 / size, n = static_cast<int>(p.n);
  return on_vectors(p, size) ? n / width : std::min<int>(n + 2 * (width - 1), lift::kChunk) / width;
}

/// Whether a row on vectors is as long as 4, 8, 16 or 32 lanes hold, which other kernels are made for.
inline bool fills_lanes(const PlainRows& p, int size) {
  return p.n >= 128 && on_vectors(p, size) && std::has_single_bit(static_cast<unsigned>(vectors_of(p, size)));
}

/// go.operator()<lanes, vectors of each, how many of which are full>(), with the fewest lanes that hold p's rows by up
/// to eight vectors each, or the fewest vectors: the fewer lanes, the faster. kNinth: up to eight lanes by a ninth,
/// too, for what is in a row's first and last vector beside it. kMany: of every number of vectors, instead of some.
template <class E, bool kMany, bool kNinth, int kLanes = 1, class Go>
void with_odd_shape(const PlainRows& p, const Go& go) {
  const int vectors = vectors_of(p, static_cast<int>(sizeof(E)));
  constexpr int most = kNinth && kLanes <= 8 ? 9 : 8;
  if constexpr (kLanes * 8 * 16 / static_cast<int>(sizeof(E)) < lift::kChunk)
    if (vectors > kLanes * most) return with_odd_shape<E, kMany, kNinth, 2 * kLanes>(p, go);
  const int each = (vectors + kLanes - 1) / kLanes;
  if constexpr (kLanes == 1) {
    if (each <= 2) return go.template operator()<kLanes, 2, 0>();
    if (each <= 4) return go.template operator()<kLanes, 4, 1>();
  }
  if constexpr (most > 8)
    if (each == 9) return go.template operator()<kLanes, 9, 7>();
  if constexpr (kMany) {
    if (each == 5) return go.template operator()<kLanes, 5, 3>();
    if (each == 6) return go.template operator()<kLanes, 6, 4>();
    if (each == 7) return go.template operator()<kLanes, 7, 5>();
    go.template operator()<kLanes, 8, 6>();
  } else {
    if (each <= 6) return go.template operator()<kLanes, 6, 3>();
    go.template operator()<kLanes, 8, 5>();
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
