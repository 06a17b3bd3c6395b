// Few rows of up to four chunks: 256 threads a chunk (128, of more than two), 4 (8) elements each, as small_rows.cuh
// has fewer. A chunk's tree goes on from lanes to warps, which exchange a number a lane.
#pragma once

#include "cuda/small_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A block that has a row of so many chunks.
template <int kChunks>
struct SmallBlock {
  static constexpr int kOfChunk = kChunks > 2 ? 128 : 256, kThreads = kChunks * kOfChunk;
  static constexpr int kChunkWarps = kOfChunk / 32, kWarps = kChunks * kChunkWarps, kEach = lift::kChunk / kOfChunk;
};

/// The part of a block's row that a thread has.
template <class Access, int kChunks>
struct SmallBlockRow : SmallRow<Access, SmallBlock<kChunks>::kOfChunk, SmallBlock<kChunks>::kEach> {
  using Block = SmallBlock<kChunks>;
  using Base = SmallRow<Access, Block::kOfChunk, Block::kEach>;
  __device__ __forceinline__ explicit SmallBlockRow(const SmallRows& p)
      : Base(p, blockIdx.x,
             static_cast<int>(threadIdx.x) / Block::kOfChunk * lift::kChunk +
                 static_cast<int>(threadIdx.x) % Block::kOfChunk) {}
};

/// The root of one, two or four states or sums.
template <class Fold, int kChunks>
__device__ __forceinline__ typename Fold::State root_of(const typename Fold::State (&of)[kChunks]) {
  if constexpr (kChunks == 1) return of[0];
  if constexpr (kChunks == 2) return Fold::merge(of[0], of[1]);
  if constexpr (kChunks == 4) return Fold::merge(Fold::merge(of[0], of[1]), Fold::merge(of[2], of[3]));
}

/// A number from every thread of a block, and from there the tree over each chunk's.
template <int kChunks>
struct SmallSums {
  static constexpr int kChunkWarps = SmallBlock<kChunks>::kChunkWarps;

  float of[SmallBlock<kChunks>::kWarps][32];

  __device__ __forceinline__ float& own() { return of[threadIdx.x / 32][threadIdx.x % 32]; }
  /// By all lanes of a warp, once all numbers are there.
  __device__ __forceinline__ float chunk(int i) const {
    using S = fold::Scalar<float>;
    float v[kChunkWarps];
#pragma unroll
    for (int w = 0; w < kChunkWarps; ++w) v[w] = of[i * kChunkWarps + w][threadIdx.x % 32];
#pragma unroll
    for (int stride = kChunkWarps / 2; stride > 0; stride /= 2) {
#pragma unroll
      for (int w = 0; w < stride; ++w) v[w] = S::add(v[w], v[w + stride]);
    }
    float sum = v[0];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      sum = S::add(sum, __shfl_xor_sync(lift::kWholeWarp, sum, distance));
    return sum;
  }
};

/// The block's row, of any values: a chunk a warp. The warps beyond fold the last one once more, for all to meet.
template <class Access, int kChunks, bool kLog>
__device__ __noinline__ void put_any_small_block(const SmallRows& p) {
  using Lse = fold::LogSumExp<float>;
  using Own = AnySmallRow<Access, 32, lift::kPerLane, kLog>;
  __shared__ Lse::State states[kChunks];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int chunk = min(warp, kChunks - 1);
  Own own(p, typename Own::Row(p, blockIdx.x, chunk * lift::kChunk + lane));
  if (lane == 0 && warp < kChunks) states[warp] = own.folded.state;
  __syncthreads();
  if (warp < kChunks) own.put(p, root_of<Lse, kChunks>(states));
}

template <class Access, int kChunks, bool kLog>
__global__ void __launch_bounds__(SmallBlock<kChunks>::kThreads)
    softmax_small_blocks(const __grid_constant__ SmallRows p) {
  begin_in_order();
  using S = fold::Scalar<float>;
  using Lse = fold::LogSumExp<float>;
  constexpr float kMagic = fold::Real<float>::kMagic;
  using Block = SmallBlock<kChunks>;
  constexpr int kWarps = Block::kWarps, kChunkWarps = Block::kChunkWarps;
  __shared__ lift::Extremes extremes[kWarps];  // of elements times c, rounded: what is near enough is exact
  __shared__ SmallSums<kChunks> sums;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const SmallBlockRow<Access, kChunks> row(p);
  ShownElements<Access, Block::kOfChunk, Block::kEach> own(p, row);
  const int high = __reduce_max_sync(lift::kWholeWarp, __float_as_int(S::fma(own.extremes.high, own.c, kMagic)));
  const int low = __reduce_min_sync(lift::kWholeWarp, __float_as_int(S::fma(own.extremes.low, own.c, kMagic)));
  if (lane == 0) extremes[warp] = {S::sub(__int_as_float(low), kMagic), S::sub(__int_as_float(high), kMagic)};
  __syncthreads();
  // Each warp looks at all of them, a lane a warp's; a group of lanes has a chunk's.
  const auto range =
      MaskedFold<lift::WarpFold<1, kChunkWarps, 1>, kLog, kChunkWarps, 1>::range(1.F, extremes[lane % kWarps]);
  const bool hidden = __all_sync(lift::kWholeWarp, range.none);
  if (!__all_sync(lift::kWholeWarp, p.factor.plain && (range.near || range.none)) || (hidden && p.empty == Empty::nan))
    return put_any_small_block<Access, kChunks, kLog>(p);
  const auto top_of = [&](int chunk) { return __shfl_sync(lift::kWholeWarp, range.top, chunk * kChunkWarps); };
  const int chunk = warp / kChunkWarps;
  const lift::FrameTerms terms(own.c, S::sub(top_of(chunk), kMagic));
  sums.own() = lift::add_tree<1, 1, float, Block::kEach>([&](int j, int) {
    const float t = terms.half_term(own.v[j]);
    if (!kLog) own.v[j] = t;
    return t;
  });
  __syncthreads();
  Lse::State states[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const float m = S::sub(top_of(i), kMagic);
    const bool none = __shfl_sync(lift::kWholeWarp, static_cast<int>(range.none), i * kChunkWarps) != 0;
    states[i] = {static_cast<double>(m), S::mul(sums.chunk(i), 2.F * lift::FrameTerms(own.c, m).unit)};
    if (none) states[i] = Lse::identity();
  }
  // A row that is hidden is nothing times any state, and so is what is hidden of another.
  const Lse::State whole = hidden ? Lse::State{0., 1.F} : root_of<Lse, kChunks>(states);
  const fold::Normaliser<float> norm(whole);
  const bool none = __shfl_sync(lift::kWholeWarp, static_cast<int>(range.none), chunk * kChunkWarps) != 0;
  const float multiplier = none ? 0.F : norm.multiplier(static_cast<double>(S::sub(top_of(chunk), kMagic)));
  finish<kLog, Block::kEach>(
      own.v, true, S::mul(multiplier, 2.F * terms.unit), [&] { return own.log_normaliser(p, whole); }, [](int) {});
  row.template store<false>(p.y, own.v);
}

/// The gradients of softmax or log_softmax.
template <class Access, int kChunks, template <class> class Gradient>
__global__ void __launch_bounds__(SmallBlock<kChunks>::kThreads)
    backward_small_blocks(const __grid_constant__ SmallRows p) {
  begin_in_order();
  __shared__ SmallSums<kChunks> sums;
  const SmallBlockRow<Access, kChunks> row(p);
  GradientSlots<Gradient, 1, 1, SmallBlock<kChunks>::kEach> slots;
  load_gradients(p, row, slots);
  const lift::SumNode own = slots.sum();
  sums.own() = own.sum;
  const unsigned any = __syncthreads_or(static_cast<int>(own.any)) != 0 ? 1U : 0U;
  float of_chunks[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) of_chunks[i] = sums.chunk(i);
  slots.finish({root_of<fold::Sum<float>, kChunks>(of_chunks), any}, p.gradient_scale);
  row.template store<true>(p.y, slots.dy);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
