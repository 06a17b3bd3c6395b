// softmax and log_softmax along an outer axis: rows lie side by side in memory, so a tile of neighbouring rows is read
// with neighbouring lanes, each row by as many threads of a block as it has residue classes.
#pragma once

#include "cuda/across_share.cuh"
#include "cuda/softmax_rows.cuh"
#include "cuda/tree_nodes.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A thread's part of a tile: kCount elements of a row at a time.
template <class E, bool kLog>
struct AcrossRows {
  static constexpr int kCount = kAcrossCount;
  using Lse = fold::LogSumExp<float>;
  using S = fold::Scalar<float>;
  using State = typename Lse::State;
  static constexpr int kWarps = kAcrossThreads / 32;
  static constexpr bool kLogarithms = kLog;

  struct Chunk {
    float v[kCount];  ///< elements, then terms (log_softmax: elements)
    State state;      ///< of the whole chunk
    float unit;       ///< terms times unit are in the frame state.m
    bool dense;       ///< every term is at least 2^-62
  };

  const RowProblem& p;
  const AcrossShare& share;
  AcrossStorage& storage;
  const Row& r;       ///< the thread's
  int column, first;  ///< in the tile; first: the thread's residue class
  fold::Scale<float> scale;
  lift::Factor factor;

  __device__ __forceinline__ AcrossRows(const RowProblem& p_, const AcrossShare& share_, AcrossStorage& storage_,
                                        const Row& r_)
      : p(p_), share(share_), storage(storage_), r(r_), scale(fold::make_scale<float>(r_.scale)), factor(scale.c) {
    const int thread = static_cast<int>(threadIdx.x) % (share.columns * share.classes);
    column = thread % share.columns;
    first = thread / share.columns;
  }

  /// How many of the thread's elements of a chunk are among the first `length`.
  __device__ __forceinline__ int count_of(std::int64_t length) const {
    const int rest = static_cast<int>(clamp(length, lift::kChunk)) - first;
    return rest <= 0 ? 0 : min((rest + share.classes - 1) >> share.shift, kCount);
  }
  template <class Visit>
  __device__ __forceinline__ void for_each_place(const char* first_place, std::int64_t axis_stride,
                                                 const Visit& visit) const {
    const std::int64_t step = axis_stride * share.classes;
    auto at = static_cast<std::int64_t>(__cvta_generic_to_global(first_place));
#pragma unroll
    for (int j = 0; j < kCount; ++j, at += step) {
      asm volatile("" : "+l"(at));  // one address at a time: all of them together would fill the registers
      visit(j, static_cast<char*>(__cvta_global_to_generic(static_cast<std::size_t>(at))));
    }
  }

  /// A chunk's elements of this thread from memory, lift::absent where none is; returns how many there are.
  __device__ __forceinline__ int load(float (&v)[kCount], std::int64_t begin) const {
    const int there = count_of(r.length - begin);
    E raw[kCount];
    // All loads before any use: they are on their way together.
    for_each_place(r.x + (begin + first) * p[Slot::x].axis_stride, p[Slot::x].axis_stride,
                   [&](int j, const char* place) {
                     raw[j] = E{};
                     if (j < there) raw[j] = *reinterpret_cast<const E*>(place);
                   });
#pragma unroll
    for (int j = 0; j < kCount; ++j) v[j] = fold::widen(raw[j]);
    hide(v, begin, there);
    return there;
  }

  /// Elements that are not there, or masked, become lift::absent; the others are multiplied by what the factor asks
  /// for.
  __device__ __forceinline__ void hide(float (&v)[kCount], std::int64_t begin, int there) const {
    const float missing = lift::absent(factor.c);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (!factor.plain) v[j] *= factor.times;
      if (j >= there) v[j] = missing;
    }
    if (r.mask == nullptr) return;
    const char* mask = r.mask + (begin + first) * p[Slot::mask].axis_stride;
    for_each_place(mask, p[Slot::mask].axis_stride, [&](int j, const char* place) {
      if (j < there && *place == 0) v[j] = missing;
    });
  }

  /// Over the threads of a row: every thread brings a value and gets the merge of all, the tree's last strides: those
  /// between warps, then those between lanes. `at` is scratch that nobody reads any more.
  template <class T, class Shuffle, class Merge>
  __device__ __forceinline__ T over_classes(T* at, const T& own, const Shuffle& shuffle, const Merge& merge) const {
    const int warps = share.columns * share.classes / 32, lane = static_cast<int>(threadIdx.x) % 32;
    T all[kWarps];
    all[0] = own;
    if (warps > 1) {
      at[threadIdx.x] = own;
      __syncthreads();
      const int tile = static_cast<int>(threadIdx.x) / 32 / warps * warps;
#pragma unroll
      for (int w = 0; w < kWarps; ++w)
        if (w < warps) all[w] = at[(tile + w) * 32 + lane];
#pragma unroll
      for (int stride = kWarps / 2; stride > 0; stride /= 2) {
        if (stride >= warps) continue;
#pragma unroll
        for (int w = 0; w < stride; ++w) all[w] = merge(all[w], all[w + stride]);
      }
    }
    for (int distance = 16; distance >= share.columns; distance /= 2) all[0] = merge(all[0], shuffle(all[0], distance));
    return all[0];
  }
  __device__ __forceinline__ lift::Extremes extremes_over_classes(const lift::Extremes& own) const {
    using T = lift::Extremes;
    const auto shuffle = [](const T& a, int distance) {
      return T{__shfl_xor_sync(lift::kWholeWarp, a.low, distance), __shfl_xor_sync(lift::kWholeWarp, a.high, distance)};
    };
    const auto merge = [](const T& a, const T& b) { return T{lift::least(a.low, b.low), lift::most(a.high, b.high)}; };
    return over_classes(storage.extremes, own, shuffle, merge);
  }
  __device__ __forceinline__ float sum_over_classes(float own) const {
    const auto shuffle = [](float a, int distance) { return __shfl_xor_sync(lift::kWholeWarp, a, distance); };
    return over_classes(storage.sums, own, shuffle, [](float a, float b) { return S::add(a, b); });
  }

  /// The tree over the thread's own values.
  template <class At>
  static __device__ __forceinline__ float add_own(const At& at) {
    float half[kCount / 2];
#pragma unroll
    for (int j = 0; j < kCount / 2; ++j) half[j] = S::add(at(j), at(j + kCount / 2));
#pragma unroll
    for (int stride = kCount / 4; stride > 0; stride /= 2) {
#pragma unroll
      for (int j = 0; j < stride; ++j) half[j] = S::add(half[j], half[j + stride]);
    }
    return half[0];
  }

  /// Terms that all lie within the range of a frame; `there` of them exist.
  template <bool kWhole>
  __device__ __forceinline__ float fold_dense(float (&v)[kCount], int there, const lift::FrameTerms& terms) const {
    return add_own([&](int j) {
      float t = terms.term<false>(v[j]);
      if (!kWhole && j >= there) t = 0.F;
      if constexpr (!kLog) v[j] = t;
      return t;
    });
  }
  /// Any terms.
  __device__ __forceinline__ float fold_any(float (&v)[kCount], const typename Lse::Frame& frame, float& unit) const {
    float terms[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) terms[j] = v[j];
    unit = terms_in_frame(terms, factor.c, frame.m);
#pragma unroll
    for (int j = 0; j < kCount && !kLog; ++j) v[j] = terms[j];
    return add_own([&](int j) { return terms[j]; });
  }

  /// The state of a chunk of the thread's row.
  __device__ __forceinline__ void fold_chunk(Chunk& chunk, std::int64_t begin) const {
    const int there = load(chunk.v, begin);
    const lift::Extremes e = extremes_over_classes(lift::extremes_of(chunk.v));
    constexpr float kMagic = fold::Real<float>::kMagic;
    const float c = factor.c, top = c > 0.F ? e.high : e.low;
    const bool finite = fabsf(top) < fold::infinity<float>();
    const auto frame = finite ? Lse::frame(top, c) : typename Lse::Frame{0., true};
    const float bottom = S::fma(c > 0.F ? e.low : e.high, c, kMagic);
    const bool dense = finite && frame.fast && bottom >= S::fma(top, c, kMagic) - 60.F;
    chunk.dense = __all_sync(lift::kWholeWarp, dense);
    float sum;
    if (chunk.dense) {
      const lift::FrameTerms terms(c, Lse::narrow(frame.m));
      chunk.unit = terms.unit;
      sum = __all_sync(lift::kWholeWarp, there == kCount) ? fold_dense<true>(chunk.v, there, terms)
                                                          : fold_dense<false>(chunk.v, there, terms);
    } else {
      sum = fold_any(chunk.v, frame, chunk.unit);
    }
    chunk.state = {frame.m, S::mul(sum_over_classes(sum), chunk.unit)};
    if (finite) return;
    chunk.state = fold::is_nan(top)          ? Lse::not_a_number()
                  : (top > 0.F) == (c > 0.F) ? Lse::plus_infinity()
                                             : Lse::identity();
  }

  /// Results of a chunk. row: the state of the thread's row.
  __device__ __forceinline__ void write(Chunk& chunk, std::int64_t begin, const State& row) const {
    const fold::Normaliser<float> norm(row);
    char* y = r.y + (begin + first) * p[Slot::y].axis_stride;
    const int mine = count_of(r.n - begin);
    if (!norm.regular) return write_constant(y, begin, mine, constant_of<kLog>(row, p.empty));
    const float multiplier = S::mul(norm.multiplier(chunk.state.m), chunk.unit);
    finish<kLog>(chunk.v, chunk.dense, factor, multiplier, row, scale);
    const auto put = [&](int j, char* place) { *reinterpret_cast<E*>(place) = Packed<E>::narrow(chunk.v[j]); };
    if (mine == kCount) return for_each_place(y, p[Slot::y].axis_stride, put);
    for_each_place(y, p[Slot::y].axis_stride, [&](int j, char* place) {
      if (j < mine) put(j, place);
    });
  }
  __device__ __forceinline__ void write_constant(char* y, std::int64_t begin, int mine, Constant constant) const {
    const int there = count_of(r.length - begin);
#pragma unroll 1
    for (int j = 0; j < mine; ++j, y += p[Slot::y].axis_stride * share.classes) {
      const std::int64_t i = begin + first + share.classes * j;
      const bool present = j < there && (r.mask == nullptr || r.mask[i * p[Slot::mask].axis_stride] != 0);
      *reinterpret_cast<E*>(y) = fold::narrow<E>(constant.everywhere || present ? constant.value : nothing<kLog>());
    }
  }

  /// From the state of each block's share of the row to the row's, in all blocks.
  __device__ __forceinline__ State over_blocks(const State& own) const {
    using Cluster = lift::Cluster;
    constexpr int rows = AcrossStorage::kLongColumns;
    const unsigned rank = Cluster::rank(), blocks = Cluster::size();
    // The residue classes of a row send to one block each.
    if (static_cast<unsigned>(first) < blocks) {
      const unsigned to = Cluster::map(&storage.shares[rank][column], static_cast<unsigned>(first));
      Cluster::store(to, fold::bits_as<std::uint64_t>(own.m));
      Cluster::store(to + 8, std::uint64_t{fold::bits_as<std::uint32_t>(own.d)});
    }
    Cluster::arrive();
    Cluster::wait();
    // kAcrossBlocks lanes a row: one merge a level of the tree.
    for (int at = static_cast<int>(threadIdx.x); at < rows * kAcrossBlocks; at += kAcrossThreads) {
      const int row = at / kAcrossBlocks, block = at % kAcrossBlocks;
      State state = static_cast<unsigned>(block) < blocks ? storage.shares[block][row] : Lse::identity();
#pragma unroll 1
      for (int distance = 1; distance < kAcrossBlocks; distance *= 2)
        state = Lse::merge(state, shuffle(state, distance));
      if (block == 0) storage.rows[row] = state;
    }
    __syncthreads();
    return storage.rows[column];
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
