// softmax and log_softmax with one read: the row waits in registers between its sum and its write.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/masked.cuh"
#include "softfold/lift/cluster.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The value of every element of a row that has no finite sum, and whether masked elements get it too.
struct Constant {
  float value;
  bool everywhere;
};

template <bool kLog>
__device__ __forceinline__ Constant constant_of(const fold::LogSumExp<float>::State& s, Empty empty) {
  if (s.m == fold::infinity<double>()) return {fold::canonical_nan<float>(), false};
  if (empty == Empty::nan) return {fold::canonical_nan<float>(), true};
  return {kLog ? -fold::infinity<float>() : 0.F, true};
}

/// What stands where no element is.
template <bool kLog>
__device__ __forceinline__ float nothing() {
  return kLog ? -fold::infinity<float>() : 0.F;
}

/// Nothing in the `count` elements from y on, at most kVectors whole vectors for each lane of a warp. kOnVectors: they
/// begin and end with vectors.
template <class E, bool kLog, int kVectors, bool kOnVectors>
__device__ __forceinline__ void hide_run(char* y, int count) {
  constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = kOnVectors ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(y) % 16) / kSize;
  const int end = head + count, first = (head + kWidth - 1) / kWidth, last = end / kWidth;  // whole vectors
  y -= head * kSize;
  float nones[kWidth];
#pragma unroll
  for (float& none : nones) none = nothing<kLog>();
  const uint4 hidden = Packed<E>::pack(nones);
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    if (const int at = lane + 32 * j; at >= first && at < last) reinterpret_cast<uint4*>(y)[at] = hidden;
  if (kOnVectors) return;
  const int i = lane < 16 ? head + lane : max(last * kWidth, head) + lane - 16;
  if (i < (lane < 16 ? min(first * kWidth, end) : end)) reinterpret_cast<E*>(y)[i] = fold::narrow<E>(nothing<kLog>());
}

/// Elements [0, n) of a tile of an irregular row.
template <class E, bool kLog>
__device__ __noinline__ void fill(char* y, const char* mask, std::int64_t mask_stride, int lane, int lanes, int length,
                                  int n, Constant constant) {
  for (int i = lane; i < n; i += lanes) {
    const bool present = i < length && (mask == nullptr || mask[i * mask_stride] != 0);
    reinterpret_cast<E*>(y)[i] = fold::narrow<E>(constant.everywhere || present ? constant.value : nothing<kLog>());
  }
}

/// Elements to terms; returns what brings them to the frame m. Outside the fast range by a loop that turns the register
/// array by one place a step, which keeps it in registers without unrolling the body.
template <int kCount>
__device__ __forceinline__ float terms_in_frame(float (&v)[kCount], float c, double m) {
  using Lse = fold::LogSumExp<float>;
  if (Lse::is_fast(m)) {
    const lift::FrameTerms terms(c, Lse::narrow(m));
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = terms.term<true>(v[i]);
    return terms.unit;
  }
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) {
    const float t = fabsf(v[0]) == fold::infinity<float>() ? 0.F : fold::term_wide(v[0], c, m);
#pragma unroll
    for (int j = 0; j + 1 < kCount; ++j) v[j] = v[j + 1];
    v[kCount - 1] = t;
  }
  return 1.F;
}

/// Terms (softmax) or elements (log_softmax) to results, in registers. log_norm() is the row's LogNormaliser; put(j) is
/// called as soon as the j-th kWidth results are there.
template <bool kLog, int kWidth, int kCount, class LogNorm, class Put>
__device__ __forceinline__ void finish(float (&v)[kCount], bool dense, float multiplier, const LogNorm& log_norm,
                                       const Put& put) {
  using S = fold::Scalar<float>;
  const auto each = [&](const auto& result) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      v[i] = result(v[i]);
      if (i % kWidth == kWidth - 1) put(i / kWidth);
    }
  };
  if constexpr (kLog) {
    const fold::LogNormaliser<float> norm = log_norm();
    // Asked once, not by every element. The largest has t - m <= 1/2: where log2 d is above 1 all results are below 0.
    if (norm.fast && norm.half_log2_d > 0.5F)
      return each([&](float x) { return S::mul(norm.two_kappa, S::sub(norm.half_distance(x), norm.half_log2_d)); });
    if (norm.fast) return each([&](float x) { return norm.log_probability(x); });
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      const float last = norm.log_probability(v[0]);
#pragma unroll
      for (int j = 0; j + 1 < kCount; ++j) v[j] = v[j + 1];
      v[kCount - 1] = last;
    }
    each([](float x) { return x; });
  } else {
    // Dense: no result can be below kSmallest.
    if (dense && multiplier >= 0x1p-60F) return each([&](float x) { return S::mul(x, multiplier); });
    each([&](float x) { return fold::Normaliser<float>::probability(x, multiplier); });
  }
}
template <bool kLog, int kCount>
__device__ __forceinline__ void finish(float (&v)[kCount], bool dense, const lift::Factor& factor, float multiplier,
                                       const fold::LogSumExp<float>::State& row, const fold::Scale<float>& scale) {
  const auto log_norm = [&] {
    fold::LogNormaliser<float> norm(row, scale);
    norm.set_c(factor.c);
    return norm;
  };
  finish<kLog, kCount>(v, dense, multiplier, log_norm, [](int) {});
}

/// What a chunk's terms are multiplied by, once its row's root is known.
struct ChunkMultiplier {
  float value = 0.F;
  bool regular;
  __device__ __forceinline__ ChunkMultiplier(const lift::Root& root, const lift::Node& chunk, double m)
      : regular(root.node.d > 0.F) {
    if (root.node.z == lift::kFar) {
      const fold::Normaliser<float> norm(root.far);
      regular = norm.regular;
      if (regular) value = norm.multiplier(m);
    } else if (chunk.d > 0.F) {
      value = lift::near_multiplier(root.node, chunk);
    }
  }
};

/// The elements of a row as vectors, where they lie in y as in x: how the kernels below move those of one tile. Of
/// another kind of elements: AnyElements.
template <class E, int kLanes_, int kCount_>
struct VectorElements : MaskedTile<E, kLanes_, kCount_> {
  static constexpr int kLanes = kLanes_, kCount = kCount_, kSize = static_cast<int>(sizeof(E));
  using Base = MaskedTile<E, kLanes, kCount>;

  __device__ __forceinline__ VectorElements(const RowProblem&, const char* row, std::int64_t begin)
      : Base(row + begin * kSize) {}
  /// Of elements [begin, begin + n) those in front of begin + `length` that the mask shows.
  __device__ __forceinline__ void load(const RowProblem& p, const Row& r, std::int64_t begin, int length, int n) {
    const std::int64_t stride = p[Slot::mask].axis_stride;
    Base::load(r.x + begin * kSize, r.mask + begin * stride, stride, length, n);
  }
  __device__ __forceinline__ void store(const RowProblem&, const Row& r, std::int64_t begin, int n,
                                        const float (&v)[kCount]) const {
    Base::store(r.y + begin * kSize, n, v);
  }
  template <bool kLog>
  __device__ __forceinline__ void fill(const RowProblem& p, const Row& r, std::int64_t begin, int length, int n,
                                       Constant constant) const {
    const std::int64_t stride = p[Slot::mask].axis_stride;
    cuda::fill<E, kLog>(r.y + begin * kSize, r.mask + begin * stride, stride, this->lane, kLanes, length, n, constant);
  }
};

/// A row of at most one tile by a group of lanes. Groups whose row is not theirs to write take part.
template <class Elements, bool kLog>
__device__ __forceinline__ void softmax_group(const RowProblem& p, const Row& r, bool writes) {
  using Fold = lift::WarpFold<Elements::kWidth, Elements::kLanes, Elements::kCount>;
  const auto scale = fold::make_scale<float>(r.scale);
  const lift::Factor factor(scale.c);
  Elements tile(p, r.x, 0);
  const int n = static_cast<int>(r.n), length = static_cast<int>(r.length);
  tile.load(p, r, 0, length, n);
  float v[Elements::kCount];
  const typename Fold::Folded folded = tile.template fold<Fold, kLog>(v, factor);
  if (!writes) return;
  const fold::Normaliser<float> norm(folded.state);
  if (!norm.regular) return tile.template fill<kLog>(p, r, 0, length, n, constant_of<kLog>(folded.state, p.empty));
  finish<kLog>(v, folded.dense, factor, fold::Scalar<float>::mul(norm.reciprocal, folded.unit), folded.state, scale);
  tile.store(p, r, 0, n, v);
}

/// Several rows a warp (kLanes < 32) or one.
template <class Elements, bool kLog, int kMinBlocks>
__global__ void __launch_bounds__(256, kMinBlocks) softmax_warp_rows_any(const __grid_constant__ RowProblem p) {
  begin_in_order();
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / Elements::kLanes;
  // Lanes without a row of their own take part with the last row and write nothing.
  const bool writes = group < p.rows;
  softmax_group<Elements, kLog>(p, row_at(p, RowPlace(p, writes ? group : p.rows - 1)), writes);
}

/// A block or a cluster of blocks a row, a chunk a group of lanes; states cross by shared memory.
template <class Elements, bool kLog, int kThreads, int kMinBlocks>
__global__ void __launch_bounds__(kThreads, kMinBlocks) softmax_cluster_row_any(const __grid_constant__ RowProblem p) {
  begin_in_order();
  constexpr int kLanes = Elements::kLanes, kCount = Elements::kCount;
  static_assert(kLanes * kCount == lift::kChunk);
  using Fold = lift::WarpFold<Elements::kWidth, kLanes, kCount>;
  using Exchange = lift::ClusterFold<256>;
  __shared__ typename Exchange::Storage storage;
  __shared__ Row row;  // found once: the warps' registers are for elements
  const unsigned blocks = lift::Cluster::size();
  Exchange::begin();
  if (threadIdx.x == 0) row = row_at(p, RowPlace(p, blockIdx.x / blocks));
  __syncthreads();
  const int chunk = static_cast<int>((lift::Cluster::rank() * blockDim.x + threadIdx.x) / kLanes);
  const std::int64_t begin = static_cast<std::int64_t>(chunk) * lift::kChunk;
  const int n = static_cast<int>(clamp(row.n - begin, lift::kChunk));
  const int length = static_cast<int>(clamp(row.length - begin, lift::kChunk));
  const auto factor = [&] { return lift::Factor(fold::make_scale<float>(row.scale).c); };
  float v[kCount];
  typename Fold::Folded own{fold::LogSumExp<float>::identity(), 1.F, true, {lift::kNone, 0.F}};
  // What no element of can exist is written at once, unless the whole row may become NaN.
  const bool hidden = __all_sync(lift::kWholeWarp, length == 0), known = hidden && p.empty == Empty::zero;
  if (!hidden) {
    Elements tile(p, row.x, begin);
    tile.load(p, row, begin, length, n);
    own = tile.template fold<Fold, kLog>(v, factor());
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = known ? nothing<kLog>() : kLog ? lift::absent(factor().c) : 0.F;
    if (known && n > 0) Elements(p, row.y, begin).store(p, row, begin, n, v);
  }
  Exchange::ready();
  const auto chunks = static_cast<int>(lift::chunk_count(row.length));
  const auto root = Exchange::template fold<kLanes>(storage, own.node, own.state, chunk, chunks);
  if (n == 0 || known) return;
  const Elements results(p, row.y, begin);
  const ChunkMultiplier multiplier(root, own.node, own.state.m);
  if (!multiplier.regular)
    return results.template fill<kLog>(p, row, begin, length, n, constant_of<kLog>(root.state(), p.empty));
  finish<kLog>(v, own.dense, factor(), fold::Scalar<float>::mul(multiplier.value, own.unit), root.state(),
               fold::make_scale<float>(row.scale));
  results.store(p, row, begin, n, v);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
