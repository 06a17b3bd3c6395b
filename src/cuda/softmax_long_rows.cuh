// softmax and log_softmax of rows that no kernel holds on chip, in three steps: parts of rows to nodes of the tree,
// these to a root a row, then every element once more.
#pragma once

#include "cuda/fold_runs.cuh"
#include "cuda/long_nodes.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kLongWarps = 8, kLongThreads = 32 * kLongWarps;

/// Sends bytes, all of whole vectors, on their way to a warp's place in shared memory. By one lane. once: the L2 cache
/// is to drop them first.
__device__ __forceinline__ void send_to(CopyBarrier& barrier, char* place, const void* from, int bytes, bool once) {
  barrier.init(1);
  CopyBarrier::publish();
  barrier.expect(bytes);
  if (bytes <= 0) return;
  if (once) {
    barrier.copy_once(place, from, bytes);
  } else {
    barrier.copy(place, from, bytes);
  }
}

/// What a warp folds at a time: a chunk, or four neighbours in 16 bit.
template <class E>
struct LongPart {
  static constexpr int kSize = static_cast<int>(sizeof(E));
  static constexpr int kChunks = kSize == 2 ? 4 : 1, kElements = kChunks * lift::kChunk;
  static constexpr int kBytes = room_in_sectors(kElements * kSize + 16);  ///< of the room where it lands

  const char* first;
  int n;
  char* place;

  __device__ __forceinline__ typename Landing<E, 32>::Span span(const PlainRows& p) const {
    return {first, n, p.x_begin, p.x_end};
  }
  /// By one lane: sends it on its way.
  __device__ __forceinline__ void fetch(CopyBarrier& barrier, const PlainRows& p, bool once) const {
    if (n == kElements && reinterpret_cast<std::uintptr_t>(first) % 16 == 0)
      return send_to(barrier, place, first, kElements * kSize, once);
    const auto s = span(p);
    send_to(barrier, place + (s.begin - s.from), reinterpret_cast<const void*>(s.begin), s.bytes(), once);
  }
  /// Its node, once it has landed.
  __device__ __forceinline__ LongNode fold(const PlainRows& p) const {
    if constexpr (kChunks == 1) {
      float v[lift::kPerLane];
      const auto extremes = Landing<E, 32>(place, first, n).read(v, first, p.factor, p);
      const auto folded = lift::WarpFold<Landing<E, 32>::kWidth>::terms(v, p.factor.c, extremes);
      return {{folded.node.z, folded.state.d}, folded.state.m};
    } else {
      return node_of(merge_tile<kLanes>(chunk_state(p)));
    }
  }

 private:
  static constexpr int kLanes = 32 / kChunks;

  /// The state of a group of lanes' chunk, in a guessed frame if that holds it.
  __device__ __forceinline__ fold::LogSumExp<float>::State chunk_state(const PlainRows& p) const {
    using At = Slots<E, kLanes>;
    static_assert(At::kSlots == lift::kChunk);
    const int chunk = static_cast<int>(threadIdx.x) % 32 / kLanes;
    const auto elements = [&](int i) { return static_cast<int>(clamp(n - i * lift::kChunk, lift::kChunk)); };
    const int own = elements(chunk), shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16 / kSize);
    const char* from = place + chunk * At::kDense;
    const GuessedState guessed = n == kElements ? fold_guessed<E, kLanes>(At(from, shift, true), p.factor.c)
                                                : fold_cut<E, kLanes>(from, shift, own, p.factor.c);
    const auto s = span(p);
    const bool landed = s.begin == s.from && s.end == s.up_to;  // nothing of it lies in a vector beyond x's memory
    const bool right = own == 0 || (landed && p.factor.plain && guessed.right);
    const unsigned rights = __ballot_sync(lift::kWholeWarp, right);
    fold::LogSumExp<float>::State state{static_cast<double>(guessed.m), guessed.d};
    if (rights != lift::kWholeWarp) {
      constexpr unsigned all = (1U << kLanes) - 1U;
#pragma unroll 1
      for (int i = 0; i < kChunks; ++i) {
        if ((rights >> (kLanes * i) & all) == all) continue;
        const auto exact = fold_exactly<E>(first + i * At::kDense, elements(i), p);
        if (chunk == i) state = exact;
      }
    }
    return own == 0 ? fold::LogSumExp<float>::identity() : state;
  }
};

/// All rows' parts, and where their nodes go.
struct LongParts {
  LongNode* nodes;  ///< [rows][parts]
  int parts, all;   ///< of a row, of all
  int early;        ///< the first so many are followed by more than the L2 cache holds until they are read again
};

/// A warp a part. The call's first kernel.
template <class E>
__global__ void __launch_bounds__(kLongThreads, sizeof(E) == 2 ? 3 : 4)
    fold_parts(const __grid_constant__ PlainRows p, const __grid_constant__ LongParts of) {
  begin_first();
  using Part = LongPart<E>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier barriers[kLongWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int item = static_cast<int>(blockIdx.x) * kLongWarps + warp;
  if (item >= of.all) return;
  const int row = item / of.parts;
  const std::int64_t begin = static_cast<std::int64_t>(item - row * of.parts) * Part::kElements;
  const char* first = p.x + row * p.x_stride + begin * Part::kSize;
  const Part part{first, static_cast<int>(clamp(p.n - begin, Part::kElements)),
                  place_in_sectors(landing_memory + warp * Part::kBytes, first)};
  if (lane == 0) part.fetch(barriers[warp], p, item < of.early);
  __syncwarp();
  barriers[warp].wait(0);
  const LongNode node = part.fold(p);
  if (lane == 0) of.nodes[item] = node;
}

/// Rows as the aligned vectors that they reach into.
template <class E>
struct LongVectors {
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize;
  std::int64_t n;
  int shift;  ///< elements from the first vector to the row

  __device__ __forceinline__ LongVectors(const char* x, std::int64_t elements)
      : n(elements), shift(static_cast<int>(reinterpret_cast<std::uintptr_t>(x) % 16 / kSize)) {}
  /// Of those that are the row's alone.
  __device__ __forceinline__ std::int64_t begin() const { return shift > 0 ? 1 : 0; }
  __device__ __forceinline__ std::int64_t end() const { return (shift + n) / kWidth; }

  /// The row's elements of a vector whose first one is `first` (before the row: below 0); the others are as the row's
  /// first one.
  __device__ __noinline__ static uint4 gather(const char* x, std::int64_t first, std::int64_t n) {
    const E* e = reinterpret_cast<const E*>(x);
    E some[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) some[k] = e[first + k >= 0 && first + k < n ? first + k : 0];
    return Packed<E>::join(some);
  }
  __device__ __noinline__ static void scatter(char* y, std::int64_t first, std::int64_t n, uint4 raw) {
    const E* some = reinterpret_cast<const E*>(&raw);
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      if (first + k >= 0 && first + k < n) reinterpret_cast<E*>(y)[first + k] = some[k];
  }
};

/// Elements of a row to results, vectors at a time.
template <class E, bool kLog>
class LongResults {
 public:
  __device__ __forceinline__ LongResults(const PlainRows& p, const fold::LogSumExp<float>::State& row, float reciprocal)
      : p_(p), row_(row), reciprocal_(reciprocal) {
    if (kLog || !p.factor.plain || !(p.factor.c > 0.F) || !fold::LogSumExp<float>::is_fast(row.m)) return;
    const lift::FrameTerms terms(p.factor.c, fold::LogSumExp<float>::narrow(row.m));
    const float multiplier = S::mul(reciprocal, terms.unit);
    if (multiplier < kLeastMultiplier) return;
    // lowest = magic + m + kFlush
    magic_ = terms.magic, multiplier_ = multiplier, least_ = S::add(terms.lowest, kDeepest - fold::Real<float>::kFlush);
  }

  template <int kVectors>
  __device__ __forceinline__ void of(uint4 (&raw)[kVectors]) const {
    constexpr int kWidth = 16 / static_cast<int>(sizeof(E)), kCount = kVectors * kWidth;
    float v[kCount];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
    bool none_vanishes = false;
    if constexpr (!kLog) none_vanishes = S::fma(Packed<E>::extremes(raw).low, p_.factor.c, magic_) >= least_;
    if (!kLog && __all_sync(lift::kWholeWarp, none_vanishes)) {
      const auto terms = lift::FrameTerms::in_even_frame(p_.factor.c, magic_);
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] = S::mul(terms.template term<false>(v[i]), multiplier_);
    } else {
      find(v);
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) raw[j] = Packed<E>::pack(v + j * kWidth);
  }

 private:
  using S = fold::Scalar<float>;
  /// Products of these are above Real::kSmallest, 2^-124: terms so many binades below their row's frame, a half more
  /// for their fraction, by a multiplier of rows of up to 2^31 elements.
  static constexpr float kDeepest = -90.F, kLeastMultiplier = 0x1p-32F;

  template <int kCount>
  __device__ __forceinline__ void find(float (&v)[kCount]) const {
    if (!p_.factor.plain) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] *= p_.factor.times;
    }
    float unit = 1.F;
    if constexpr (!kLog) unit = terms_in_frame(v, p_.factor.c, row_.m);
    finish<kLog, kCount>(
        v, false, S::mul(reciprocal_, unit), [&] { return p_.log_normaliser(row_); }, [](int) {});
  }

  const PlainRows& p_;
  const fold::LogSumExp<float>::State& row_;
  float reciprocal_;
  float magic_ = 0.F, multiplier_ = 0.F,
        least_ = fold::canonical_nan<float>();  ///< NaN: no z, an infinite one neither, reaches it
};

/// What is written: rows whose roots are known when the kernel before has ended.
struct LongRows {
  const LongNode* roots;
  int tiles, all;  ///< of a row, of all
};

/// A warp's tile of vectors, which have been on their way since before the roots were known, to results.
template <class E, bool kLog>
struct LongTile {
  using Vectors = LongVectors<E>;
  static constexpr int kSize = Vectors::kSize, kWidth = Vectors::kWidth, kTurns = 8, kVectors = 32 * kTurns;
  static constexpr int kBytes = room_in_sectors(16 * kVectors);  ///< of the room where it lands

  const PlainRows& p;
  const char* x;  ///< the row
  char* y;
  std::int64_t first;  ///< element of the tile's first vector
  const char* place;

  __device__ __forceinline__ void write(const fold::LogSumExp<float>::State& state, bool whole) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const fold::Normaliser<float> norm(state);
    if (!norm.regular) {
      const std::int64_t begin = max(first, std::int64_t{0});
      const int n = static_cast<int>(clamp(p.n - begin, kVectors * kWidth - (begin - first)));
      return fill<E, kLog>(y + begin * kSize, nullptr, 0, lane, 32, n, n, constant_of<kLog>(state, p.empty));
    }
    const LongResults<E, kLog> results(p, state, norm.reciprocal);
    const uint4* from = reinterpret_cast<const uint4*>(place) + lane;
    if (!whole) return write_ends(results, from, lane);
    constexpr int kAtOnce = lift::kPerLane / kWidth;
    uint4* to = reinterpret_cast<uint4*>(y + first * kSize) + lane;
#pragma unroll 1
    for (int turn = 0; turn < kTurns; turn += kAtOnce) {
      uint4 raw[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) raw[i] = from[32 * (turn + i)];
      results.of(raw);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) to[32 * (turn + i)] = raw[i];
    }
  }

 private:
  /// The same where vectors are in part or not at all the row's.
  __device__ __forceinline__ void write_ends(const LongResults<E, kLog>& results, const uint4* from, int lane) const {
#pragma unroll 1
    for (int turn = 0; turn < kTurns; ++turn) {
      const std::int64_t element = first + (32 * turn + lane) * kWidth;
      const bool whole = element >= 0 && element + kWidth <= p.n;
      uint4 raw[1] = {from[32 * turn]};
      if (!whole) raw[0] = Vectors::gather(x, element, p.n);
      results.of(raw);
      if (whole) {
        *reinterpret_cast<uint4*>(y + element * kSize) = raw[0];
      } else {
        Vectors::scatter(y, element, p.n, raw[0]);
      }
    }
  }
};

/// A warp a tile.
template <class E, bool kLog>
__global__ void __launch_bounds__(kLongThreads, 4)
    write_long_rows(const __grid_constant__ PlainRows p, const __grid_constant__ LongRows of) {
  begin_before_wait();
  using Tile = LongTile<E, kLog>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier barriers[kLongWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  // From the end: what the first read has left in the L2 cache is the rows' end.
  const int item = of.all - 1 - (static_cast<int>(blockIdx.x) * kLongWarps + warp);
  const int row = max(item, 0) / of.tiles;
  const std::int64_t at = static_cast<std::int64_t>(max(item, 0) - row * of.tiles) * Tile::kVectors;
  const char* x = p.x + row * p.x_stride;
  const LongVectors<E> vectors(x, p.n);
  const std::int64_t first = at * Tile::kWidth - vectors.shift, from = max(at, vectors.begin());
  const int count = static_cast<int>(clamp(vectors.end() - from, Tile::kVectors - (from - at)));
  char* place = place_in_sectors(landing_memory + warp * Tile::kBytes, x + first * Tile::kSize);
  if (item >= 0 && threadIdx.x % 32 == 0) {
    const int skipped = static_cast<int>(from - at) * 16;
    send_to(barriers[warp], place + skipped, x + first * Tile::kSize + skipped, count * 16, false);
  }
  __syncwarp();
  wait_for_before();
  if (item < 0) return;
  const auto state = of.roots[row].state();
  barriers[warp].wait(0);
  Tile{p, x, p.y + row * p.y_stride, first, place}.write(state, count == Tile::kVectors);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
