// softmax and log_softmax of rows that a length or a causal limit cuts short, or that have scales or strides of their
// own: only what exists is brought and folded.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/short_place.cuh"
#include "softfold/lift/cluster.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Sets of rows that a warp of softmax_warp_rows_short takes, and blocks of a processor. Measured: 16 bit wants warps,
/// float32 bytes on their way.
inline constexpr int kShortRuns = 2;
template <class E>
inline constexpr int kShortBlocks = sizeof(E) == 2 ? 4 : 3;

/// Where rows of up to 32 * kLanes elements land in shared memory: element i at position i + shift, so that vectors
/// keep their alignment.
template <class E, int kLanes>
struct ShortPlace {
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kRuns = kShortRuns;
  static constexpr int kPlaces = 32 / kLanes * kRuns;  ///< of a warp
  /// One vector more than the slots; four lanes' places are so far apart that two rows do not meet in a bank.
  static constexpr int kBytes = 32 * kLanes * kSize + (kLanes == 4 ? 64 : 16);
};

__device__ __forceinline__ char* pointer_of(char* of, int lane) {
  return reinterpret_cast<char*>(__shfl_sync(lift::kWholeWarp, reinterpret_cast<std::uintptr_t>(of), lane));
}

/// The log-probabilities of a group's row of regular elements, which lie in shared memory at x and are read from there
/// again: registers are for the terms.
template <class E, int kLanes>
__device__ __noinline__ void put_log_row(const ShortRows& rows, const char* x, char* y, int length, double own_scale,
                                         fold::LogSumExp<float>::State state) {
  using Tile = ShortTile<E, kLanes>;
  const Tile tile(x, length);
  float v[lift::kPerLane];
  uint4 raw[Tile::kVectors];
  tile.gather(raw, x);
#pragma unroll
  for (int j = 0; j < Tile::kVectors; ++j) Packed<E>::unpack(raw[j], v + j * Tile::kWidth);
  finish<true>(v, true, rows.factor_of(own_scale), 1.F, state, rows.scale_of(own_scale));
  tile.template put<true>(y, static_cast<int>(rows.p.n), v);
}

/// The results of a group's row that begins or ends inside a vector, from shared memory at x: element by element where
/// vectors are not the row's alone, nothing beyond the first `length`.
template <class E, int kLanes>
__device__ __noinline__ void send_row(const char* x, char* y, int length, int n) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(E));
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const E* from = reinterpret_cast<const E*>(x);
  E* to = reinterpret_cast<E*>(y);
  const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(y) % 16 / sizeof(E));
  const int head = min((kWidth - shift) % kWidth, length), vectors = (length - head) / kWidth;
  for (int i = lane; i < vectors; i += kLanes)
    reinterpret_cast<uint4*>(to + head)[i] = reinterpret_cast<const uint4*>(from + head)[i];
  for (int i = lane; i < head; i += kLanes) to[i] = from[i];
  for (int i = head + vectors * kWidth + lane; i < length; i += kLanes) to[i] = from[i];
  const int zero = min(length + (kWidth - (shift + length) % kWidth) % kWidth, n), whole = (n - zero) / kWidth;
  for (int i = length + lane; i < zero; i += kLanes) to[i] = E{};
  for (int i = lane; i < whole; i += kLanes) reinterpret_cast<uint4*>(to + zero)[i] = uint4{};
  for (int i = zero + whole * kWidth + lane; i < n; i += kLanes) to[i] = E{};
}

/// A row for each group of lanes, whose elements lie in shared memory at x, of at most kCount * kLanes slots. False if
/// some group's are not close enough together: then nothing is written. A length below 0: no row.
template <class E, int kLanes, int kCount>
__device__ __forceinline__ bool short_row(const ShortRows& rows, char* x, char* y, int length, double own_scale) {
  // A warp's row is longer than half of the slots, or it would have fewer.
  constexpr int kFull = kLanes == 32 && kCount == 32 ? kCount * static_cast<int>(sizeof(E)) / 32 : 0;
  using Tile = ShortTile<E, kLanes, kCount, kFull>;
  using S = fold::Scalar<float>;
  const RowProblem& p = rows.p;
  const lift::Factor factor = rows.factor_of(own_scale);
  const Tile tile(x, max(length, 0));
  float v[kCount];
  typename Tile::Fold::Folded own;
  uint4 raw[Tile::kVectors];
  tile.gather(raw, x);
  const bool near = tile.template fold<false>(v, own, raw, factor.c);
  if (!__all_sync(lift::kWholeWarp, (near && factor.plain) || length <= 0)) return false;
  const int n = static_cast<int>(p.n);
  if (length < 0) return true;
  if (length == 0 && (p.empty == Empty::nan || p.op == Op::log_softmax)) {
    const float value = p.empty == Empty::nan ? fold::canonical_nan<float>() : nothing<true>();
    fill<E, false>(y, nullptr, 0, tile.lane, kLanes, 0, n, {value, true});
    return true;
  }
  if (p.op == Op::log_softmax) {
    put_log_row<E, kLanes>(rows, x, y, length, own_scale, own.state);
    return true;
  }
  const float multiplier = length == 0 ? 0.F : S::mul(S::div(1.F, own.state.d), own.unit);
  finish<false>(v, true, factor, multiplier, own.state, rows.scale);
  if (tile.shift == 0 && n % Tile::kWidth == 0) {
    tile.template put_vectors<false>(y, n, v);
    return true;
  }
  tile.park(x, v);
  send_row<E, kLanes>(x, y, length, n);
  return true;
}

/// Several rows a warp, or one: rows of at most 32 * kLanes elements; that begin inside vectors, and are not a warp's,
/// of fewer by a vector. What exists of a warp's rows flies to shared memory at once; groups of lanes take rows of
/// nearly the same length together.
template <class E, int kLanes>
__global__ void __launch_bounds__(256, kShortBlocks<E>)
    softmax_warp_rows_short(const __grid_constant__ ShortRows rows) {
  begin_in_order();
  using Place = ShortPlace<E, kLanes>;
  constexpr int kRows = 32 / kLanes, kWarps = 8, kRuns = Place::kRuns, kPlaces = Place::kPlaces;
  extern __shared__ __align__(16) char memory[];
  __shared__ CopyBarrier barriers[kWarps][kRuns];
  const RowProblem& p = rows.p;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t base = (static_cast<std::int64_t>(blockIdx.x) * kWarps + warp) * kPlaces;
  if (base >= p.rows) return;
  if (lane < kRuns) barriers[warp][lane].init(kRows);
  CopyBarrier::publish();
  const bool has_row = lane < kPlaces && base + lane < p.rows;
  const Row r = row_at(p, RowPlace(p, has_row ? base + lane : base));
  // Lanes without a place come last, places without a row first.
  const int key = lane < kPlaces ? (has_row ? static_cast<int>(r.length) : ShortOrder::kNone) * 32 + lane : 0x7FFFFFFF;
  const ShortOrder order = kLanes < 32 ? ShortOrder::sorted(key) : ShortOrder{key};
  char* places = memory + warp * (kPlaces * Place::kBytes);
  const char* first = pointer_of(const_cast<char*>(r.x), order.owner());
  __syncwarp();
  if (lane < kPlaces)
    fetch_run<E>(places + lane * Place::kBytes, barriers[warp][lane / kRows], first, order.length(), rows.x);
  __syncwarp();
  // Of the group in one of the runs: the row, where it lies, and its scale.
  const auto row_of = [&](int run) { return order.at(run * kRows + lane / kLanes); };
  const auto y_of = [&](const ShortOrder& row) { return pointer_of(r.y, row.owner()); };
  const auto x_of = [&](int run, const char* y) {
    return places + (run * kRows + lane / kLanes) * Place::kBytes + reinterpret_cast<std::uintptr_t>(y) % 16;
  };
  const auto scale_of = [&](const ShortOrder& row) {
    return p[Slot::scales].given ? __shfl_sync(lift::kWholeWarp, r.scale, row.owner()) : p.scale;
  };
  unsigned left = 0;  // runs that have rows of any values
#pragma unroll 1
  for (int run = 0; run < kRuns; ++run) {
    const ShortOrder row = row_of(run);
    char* y = y_of(row);
    char* x = x_of(run, y);
    const double own_scale = scale_of(row);
    // The longest row decides for all: they are of nearly the same length. More sizes than two would be more code than
    // the instruction caches hold.
    const int length = row.length(),
              slots = length + static_cast<int>(reinterpret_cast<std::uintptr_t>(y) % 16) / Place::kSize;
    const int longest = kLanes == 32 ? slots : __reduce_max_sync(lift::kWholeWarp, slots);
    barriers[warp][run].wait(0);
    const bool done = longest <= 16 * kLanes ? short_row<E, kLanes, 16>(rows, x, y, length, own_scale)
                                             : short_row<E, kLanes, 32>(rows, x, y, length, own_scale);
    if (!done) left |= 1U << run;
  }
#pragma unroll 1
  for (int run = 0; left >> run != 0; ++run) {
    if ((left >> run & 1U) == 0) continue;
    const ShortOrder row = row_of(run);
    char* y = y_of(row);
    short_rows_of_any<E, kLanes>(p, x_of(run, y), y, max(row.length(), 0), scale_of(row), row.length() >= 0);
  }
}

/// A block or a cluster of blocks a row, a chunk a warp; states cross by shared memory.
template <class E, bool kLog>
__global__ void __launch_bounds__(512, 2) softmax_cluster_row_short(const __grid_constant__ ShortRows rows) {
  begin_in_order();
  constexpr int kSize = static_cast<int>(sizeof(E));
  using S = fold::Scalar<float>;
  using Cut = ShortTile<E, 32>;
  using Exchange = lift::ClusterFold<256>;
  __shared__ typename Exchange::Storage storage;
  __shared__ Row row;  // found once: the warps' registers are for elements
  const RowProblem& p = rows.p;
  const unsigned blocks = lift::Cluster::size();
  Exchange::begin();
  if (threadIdx.x == 0) row = row_at(p, RowPlace(p, blockIdx.x / blocks));
  __syncthreads();
  const int chunk = static_cast<int>((lift::Cluster::rank() * blockDim.x + threadIdx.x) / 32);
  const std::int64_t begin = static_cast<std::int64_t>(chunk) * lift::kChunk;
  const int n = static_cast<int>(clamp(row.n - begin, lift::kChunk));
  const int length = static_cast<int>(clamp(row.length - begin, lift::kChunk));
  char* y = row.y + begin * kSize;
  float v[lift::kPerLane];
  typename Cut::Fold::Folded own{fold::LogSumExp<float>::identity(), 1.F, true, {lift::kNone, 0.F}};
  if (length > 0) {
    const char* x = row.x + begin * kSize;
    const lift::Factor factor = rows.factor_of(row.scale);
    const Cut cut(x, length);
    bool near = false;
    if (cut.inside(x, rows.x)) {
      uint4 raw[Cut::kVectors];
      cut.gather(raw, x);
      near = cut.template fold<kLog>(v, own, raw, factor.c) && factor.plain;
    }
    if (!near) {
      float any[lift::kPerLane];
      own = terms_of_any<E, 32>(any, x, length, factor);
      if (kLog) Tile<E, 32>(x).load(any, x, length, factor);
#pragma unroll
      for (int i = 0; i < lift::kPerLane; ++i) v[i] = any[i];
    }
  }
  // What no element of can exist is written at once, unless the whole row may become NaN.
  const bool known = length == 0 && p.empty == Empty::zero;
  if (known && n > 0) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Cut hidden(y, 0);
    if (hidden.shift == 0 && n % Cut::kWidth == 0) {
      hidden.template hide<kLog>(y, Cut::kWidth * lane, n);
    } else {
      fill<E, kLog>(y, nullptr, 0, lane, 32, 0, n, {nothing<kLog>(), true});
    }
  }
  Exchange::ready();
  const auto root =
      Exchange::template fold<32>(storage, own.node, own.state, chunk, static_cast<int>(lift::chunk_count(row.length)));
  if (n == 0 || known) return;
  const ChunkMultiplier multiplier(root, own.node, own.state.m);
  if (!multiplier.regular) {
    fill<E, kLog>(y, nullptr, 0, static_cast<int>(threadIdx.x) % 32, 32, length, n,
                  constant_of<kLog>(root.state(), p.empty));
    return;
  }
  if (length == 0) {
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) v[i] = 0.F;
  }
  finish<kLog>(v, own.dense, rows.factor_of(row.scale), S::mul(multiplier.value, own.unit), root.state(),
               rows.scale_of(row.scale));
  Cut(y, length).template put<kLog>(y, n, v);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
