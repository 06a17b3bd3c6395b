// softmax and log_softmax along an outer axis: rows lie side by side in memory, so a tile of neighbouring rows is read
// with neighbouring lanes, each row by as many threads of a block as it has residue classes.
#pragma once

#include "cuda/softmax_rows.cuh"

#include <new>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kAcrossThreads = 512;

/// How a block's threads share rows: thread t of a tile has row t % columns and elements i = t / columns, i + classes,
/// i + 2 classes, ... of each chunk: all strides of the tree from `classes` on stay in the thread.
struct AcrossShare {
  int classes;  ///< 1 << shift, up to 32; 32 * classes elements at a time
  int shift;
  int tiles;  ///< of a block
};

/// The rows of a tile in shared memory: what their threads exchange, and the tree over chunks.
template <int kColumns>
struct AcrossStorage {
  using Lse = fold::LogSumExp<float>;
  using Tree = lift::TreeBuilder<Lse>;
  // A row's values lie side by side, with a gap between rows: neither writing nor reading meets in a bank.
  static constexpr int kWords = 2 * kAcrossThreads;
  lift::Extremes extremes[kWords];
  float sums[kWords];
  typename Lse::State rows[kColumns];
  alignas(Tree) char trees[kColumns][sizeof(Tree)];  ///< shared memory has no constructors

  __device__ __forceinline__ Tree& tree(int column) { return *reinterpret_cast<Tree*>(trees[column]); }
};

template <class E, bool kLog, int kColumns>
struct AcrossRows {
  using Lse = fold::LogSumExp<float>;
  using S = fold::Scalar<float>;
  using State = typename Lse::State;

  const RowProblem& p;
  const AcrossShare& share;
  AcrossStorage<kColumns>& storage;
  int thread, tile, column, first;  ///< in the tile, except `tile`; first: the thread's residue class
  fold::Scale<float> scale;
  lift::Factor factor;

  __device__ __forceinline__ AcrossRows(const RowProblem& p_, const AcrossShare& share_,
                                        AcrossStorage<kColumns>& storage_, double row_scale)
      : p(p_), share(share_), storage(storage_), scale(fold::make_scale<float>(row_scale)), factor(scale.c) {
    const int size = kColumns * share.classes;
    tile = static_cast<int>(threadIdx.x) / size;
    thread = static_cast<int>(threadIdx.x) % size;
    column = thread % kColumns;
    first = thread / kColumns;
  }

  /// How many of the thread's elements of a chunk are among the first `length`.
  __device__ __forceinline__ int count_of(std::int64_t length) const {
    const int rest = static_cast<int>(clamp(length, lift::kChunk)) - first;
    return rest <= 0 ? 0 : (rest + share.classes - 1) >> share.shift;
  }

  /// A chunk's elements of this thread; lift::absent where none is.
  __device__ __forceinline__ void load(float (&v)[lift::kPerLane], const Row& r, std::int64_t begin) const {
    const float missing = lift::absent(factor.c);
    const int there = count_of(r.length - begin);
    const std::int64_t step = p[Slot::x].axis_stride * share.classes;
    const char* at = r.x + (begin + first) * p[Slot::x].axis_stride;
    // All loads before any use: they are on their way together.
#pragma unroll
    for (int j = 0; j < lift::kPerLane; ++j, at += step)
      v[j] = j < there ? fold::widen(*reinterpret_cast<const E*>(at)) : missing;
    if (!factor.plain) {
#pragma unroll
      for (int j = 0; j < lift::kPerLane; ++j)
        if (j < there) v[j] *= factor.times;
    }
    if (r.mask != nullptr) {
#pragma unroll
      for (int j = 0; j < lift::kPerLane; ++j) {
        const std::int64_t i = begin + first + share.classes * j;
        if (j < there && r.mask[i * p[Slot::mask].axis_stride] == 0) v[j] = missing;
      }
    }
  }

  /// Over the threads of a row: every thread brings a value and gets the merge of all, the tree's last strides. `at` is
  /// scratch that nobody reads any more.
  template <class T, class Shuffle, class Merge>
  __device__ __forceinline__ T over_classes(T* at, T own, const Shuffle& shuffle, const Merge& merge) const {
    if (share.classes == 1) return own;
    const int pitch = share.classes + 1;
    T* const tile_at = at + tile * kColumns * pitch;
    tile_at[column * pitch + first] = own;
    __syncthreads();
    T& mine = tile_at[thread / share.classes * pitch + thread % share.classes];
    T all = mine;
    for (int distance = share.classes / 2; distance > 0; distance /= 2) all = merge(all, shuffle(all, distance));
    mine = all;
    __syncthreads();
    return tile_at[column * pitch + first];
  }

  /// The tree over the thread's own values.
  template <class At>
  static __device__ __forceinline__ float add_own(const At& at) {
    float half[lift::kPerLane / 2];
#pragma unroll
    for (int j = 0; j < lift::kPerLane / 2; ++j) half[j] = S::add(at(j), at(j + lift::kPerLane / 2));
#pragma unroll
    for (int stride = lift::kPerLane / 4; stride > 0; stride /= 2) {
#pragma unroll
      for (int j = 0; j < stride; ++j) half[j] = S::add(half[j], half[j + stride]);
    }
    return half[0];
  }

  /// The state of a chunk. v becomes its terms (log_softmax: stays), which `unit` brings to the frame state.m.
  __device__ __forceinline__ State fold_chunk(float (&v)[lift::kPerLane], float& unit) const {
    const auto extremes = over_classes(
        storage.extremes, lift::extremes_of(v),
        [](lift::Extremes e, int distance) {
          return lift::Extremes{__shfl_xor_sync(lift::kWholeWarp, e.low, distance),
                                __shfl_xor_sync(lift::kWholeWarp, e.high, distance)};
        },
        [](lift::Extremes a, lift::Extremes b) {
          return lift::Extremes{lift::least(a.low, b.low), lift::most(a.high, b.high)};
        });
    const float c = factor.c, top = c > 0.F ? extremes.high : extremes.low;
    const bool finite = fabsf(top) < fold::infinity<float>();
    const auto frame = finite ? Lse::frame(top, c) : Lse::Frame{0., true};
    float own;
    unit = 1.F;
    if (frame.fast) {
      const lift::FrameTerms terms(c, Lse::narrow(frame.m));
      unit = terms.unit;
      own = add_own([&](int j) {
        const float t = terms.term<true>(v[j]);
        if constexpr (!kLog) v[j] = t;
        return t;
      });
    } else {
      float terms[lift::kPerLane];
#pragma unroll
      for (int j = 0; j < lift::kPerLane; ++j) terms[j] = v[j];
      terms_in_frame(terms, c, frame.m);
      own = add_own([&](int j) { return terms[j]; });
#pragma unroll
      for (int j = 0; j < lift::kPerLane && !kLog; ++j) v[j] = terms[j];
    }
    const float d = over_classes(
        storage.sums, own, [](float a, int distance) { return __shfl_xor_sync(lift::kWholeWarp, a, distance); },
        [](float a, float b) { return S::add(a, b); });
    if (finite) return {frame.m, S::mul(d, unit)};
    if (fold::is_nan(top)) return Lse::not_a_number();
    return (top > 0.F) == (c > 0.F) ? Lse::plus_infinity() : Lse::identity();
  }

  /// Results of a chunk from its terms (log_softmax: elements).
  __device__ __forceinline__ void write(const float (&v)[lift::kPerLane], const Row& r, std::int64_t begin, float unit,
                                        const State& row) const {
    const fold::Normaliser<float> norm(row);
    fold::LogNormaliser<float> log_norm(row, scale);
    log_norm.set_c(factor.c);
    const float multiplier = S::mul(norm.reciprocal, unit);
    const int mine = count_of(r.n - begin);
    const std::int64_t step = p[Slot::y].axis_stride * share.classes;
    char* y = r.y + (begin + first) * p[Slot::y].axis_stride;
    if (norm.regular) {
#pragma unroll
      for (int j = 0; j < lift::kPerLane; ++j, y += step) {
        const float result = kLog ? log_norm.log_probability(v[j]) : norm.probability(v[j], multiplier);
        if (j < mine) *reinterpret_cast<E*>(y) = Packed<E>::narrow(result);
      }
      return;
    }
    const Constant constant = constant_of<kLog>(row, p.empty);
    const int there = count_of(r.length - begin);
    for (int j = 0; j < mine; ++j, y += step) {
      const std::int64_t i = begin + first + share.classes * j;
      const bool present = j < there && (r.mask == nullptr || r.mask[i * p[Slot::mask].axis_stride] != 0);
      *reinterpret_cast<E*>(y) = fold::narrow<E>(constant.everywhere || present ? constant.value : nothing<kLog>());
    }
  }

  /// A row of more than a chunk: the tree over its chunks, then every element again.
  __device__ __forceinline__ void run_long(float (&v)[lift::kPerLane], const Row& r, std::int64_t chunks) const {
    if (first == 0) new (storage.trees[column]) typename AcrossStorage<kColumns>::Tree;
    float unit = 1.F;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      load(v, r, chunk * lift::kChunk);
      const State state = fold_chunk(v, unit);
      if (first == 0) storage.tree(column).push(state);
    }
    if (first == 0) storage.rows[column] = storage.tree(column).root();
    __syncthreads();
    const State row = storage.rows[column];
    for (std::int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
      load(v, r, chunk * lift::kChunk);
      if (!kLog && row.m < fold::infinity<double>() && row.d > 0.F) unit = terms_in_frame(v, factor.c, row.m);
      write(v, r, chunk * lift::kChunk, unit, row);
    }
  }
};

/// A block some tiles of kColumns neighbouring rows; rows of more than 1024 elements are read twice.
template <class E, bool kLog, int kColumns>
__global__ void __launch_bounds__(kAcrossThreads, 2)
    softmax_across_rows(const __grid_constant__ RowProblem p, const __grid_constant__ AcrossShare share) {
  __shared__ AcrossStorage<kColumns> storage;
  const int size = kColumns * share.classes;
  const std::int64_t tile = static_cast<std::int64_t>(blockIdx.x) * share.tiles + static_cast<int>(threadIdx.x) / size;
  const std::int64_t row = tile * kColumns + static_cast<int>(threadIdx.x) % kColumns;
  // Threads without a row of their own take part with the last row and write nothing.
  Row r = row_at(p, RowPlace(p, min(row, p.rows - 1)));
  if (row >= p.rows) r.n = r.length = 0;
  const AcrossRows<E, kLog, kColumns> rows(p, share, storage, r.scale);
  float v[lift::kPerLane];
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (chunks > 1) return rows.run_long(v, r, chunks);
  rows.load(v, r, 0);
  float unit;
  const auto state = rows.fold_chunk(v, unit);
  rows.write(v, r, 0, unit, state);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
