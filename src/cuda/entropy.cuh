// entropy and its backward pass: the fold of chunks, what a row gives, and its gradient.
#pragma once

#include "cuda/loss_gradient.cuh"
#include "softfold/fold/entropy.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A chunk of a plain row, a vector at a time from its raw bits, which leaves room for more warps than its elements as
/// floats would.
template <class E>
struct EntropyChunk {
  using Elements = Tile<E, 32>;
  using Fold = fold::EntropySum<float>;
  using S = fold::Scalar<float>;
  static constexpr int kWidth = Elements::kWidth, kVectors = Elements::kVectors;

  /// In the fast frame m, top = m + kMagic. kFlush: elements may lie far below it, or be absent.
  template <bool kFlush>
  static __device__ __forceinline__ fold::EntropyState<float> in_frame(const uint4 (&raw)[kVectors], float c,
                                                                       float top) {
    const float m = S::sub(top, fold::Real<float>::kMagic), above = S::add(m, 1.F);
    const lift::FrameTerms terms(c, m);
    float d[kWidth], w[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      float ds[kVectors], ws[kVectors];
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        float x[kWidth];
        Packed<E>::unpack(raw[j], x);
        const float depth = S::fma(x[k], -c, above);
        ds[j] = terms.term<kFlush>(x[k]);
        ws[j] = S::mul(ds[j], kFlush ? fminf(depth, Fold::kDeepest) : depth);
      }
#pragma unroll
      for (int stride = kVectors / 2; stride > 0; stride /= 2) {
#pragma unroll
        for (int j = 0; j < stride; ++j) ds[j] = S::add(ds[j], ds[j + stride]), ws[j] = S::add(ws[j], ws[j + stride]);
      }
      d[k] = ds[0], w[k] = ws[0];
    }
    const float sum = lift::add_across<kWidth, 32>(d), depths = lift::add_across<kWidth, 32>(w);
    return {static_cast<double>(m), S::mul(sum, terms.unit), S::mul(depths, terms.unit)};
  }

  /// Whatever the chunk holds, an element at a time.
  static __device__ __noinline__ fold::EntropyState<float> anyhow(const char* x, int n, lift::Factor factor) {
    const Elements tile(x);
    float v[lift::kPerLane];
    tile.load(v, x, n, factor);
    const auto state = lift::WarpFold<kWidth>::reduce(v, factor.c).state;
    if (!Fold::is_regular(state)) return Fold::with_sum(state, 0.F);
    for_each_turned(v, [&](float a) { return Fold::leaf_of(a, factor.c, state.m); });
    const float sum = lift::add_tree<kWidth, 32, float>([&](int j, int k) { return v[j * kWidth + k]; });
    return Fold::with_sum(state, sum);
  }

  /// The frame and its range come from the extremes, as in lift::WarpFold.
  static __device__ __forceinline__ fold::EntropyState<float> fold(const char* x, int n, const lift::Factor& factor) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    uint4 raw[kVectors];
    const float c = factor.c;
    Elements(x).gather(raw, x, n, lift::absent(c));
    const lift::Extremes own = Packed<E>::extremes(raw);
    const int high = __float_as_int(S::fma(c > 0.F ? own.high : own.low, c, kMagic));
    const int low = __float_as_int(S::fma(c > 0.F ? own.low : own.high, c, kMagic));
    const float top = __int_as_float(__reduce_max_sync(lift::kWholeWarp, high));
    const float bottom = __int_as_float(__reduce_min_sync(lift::kWholeWarp, low));
    const bool fast = top >= kMagic + fold::Real<float>::kFastLowest && top <= kMagic + fold::Real<float>::kFastHighest;
    if (!fast || !factor.plain) return anyhow(x, n, factor);
    return bottom >= top - 60.F ? in_frame<false>(raw, c, top) : in_frame<true>(raw, c, top);
  }
};

/// The states of chunks of plain rows, a warp each.
template <class E>
__global__ void __launch_bounds__(256, 4) fold_plain_entropy(const __grid_constant__ LossProblem p, std::int64_t chunks,
                                                             lift::Factor factor, fold::EntropyState<float>* states) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= p.rows * chunks) return;
  const PlainChunk<E> chunk(p, item, chunks);
  const auto state = EntropyChunk<E>::fold(chunk.in(p, p[Slot::x]), chunk.n, factor);
  if (threadIdx.x % 32 == 0) states[item] = state;
}

/// The same for any dtype, stride, axis, mask and length. The elements are read twice, the second time from the cache.
template <class T>
__global__ void __launch_bounds__(128)
    fold_entropy_chunks(const __grid_constant__ LossProblem p, std::int64_t items, fold::EntropyState<T>* states) {
  begin_in_order();
  using Fold = fold::EntropySum<T>;
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items) return;
  const Share share = share_of(p, item, false);
  const Row r = row_at(p, RowPlace(p, share.row));
  const RowFactor<T> factor(r.scale);
  const auto s = chunk_state<T>(p, r, share);
  const bool regular = Fold::is_regular(s);
  T v[lift::kPerLane];
#pragma unroll
  for (int j = 0; j < lift::kPerLane; ++j) v[j] = T(0);
#pragma unroll 1
  for (int j = 0; j < lift::kPerLane; ++j) {
    const std::int64_t i = share.first + 32 * j;
    T a = T(0);
    if (regular && is_present(r, p[Slot::mask].axis_stride, i))
      a = Fold::leaf_of(factor(element_at<T>(p[Slot::x].dtype, r.x + i * p[Slot::x].axis_stride)), factor.c, s.m);
      // Turned by one place a step: the registers keep constant names without unrolling the body.
#pragma unroll
    for (int k = 0; k + 1 < lift::kPerLane; ++k) v[k] = v[k + 1];
    v[lift::kPerLane - 1] = a;
  }
  const T sum = add_chunk(v);
  if (threadIdx.x % 32 == 0) states[item] = Fold::with_sum(s, sum);
}

/// What a row's gradient is made with.
template <class T>
struct EntropyRow {
  RowKind kind;
  T entropy, factor;
  fold::Entropy<T> row;

  __device__ T operator()(const LossProblem&, std::int64_t, T x) const {
    return fold::canonical(row.gradient(x, entropy, factor));
  }
};

/// From the rows' states: what is asked of each, and, if not null, what its gradient is made with. A backward pass has
/// the (m, d) that it is given.
template <class T>
__global__ void __launch_bounds__(128)
    finish_entropy(const __grid_constant__ LossProblem p, const fold::EntropyState<T>* states, EntropyRow<T>* rows) {
  begin_in_order();
  using Fold = fold::EntropySum<T>;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.rows) return;
  const bool is_given = p.op == Op::entropy_backward;
  const LossRow<T> r = is_given ? LossRow<T>(p, index) : LossRow<T>(p, index, states[index].row());
  const fold::Normaliser<T> norm(r.state);
  T entropy = Fold{r.factor.scale}.finish(Fold::with_sum(r.state, states[index].w));
  if (norm.empty && p.empty == Empty::nan) entropy = fold::canonical_nan<T>();
  r.put_number(p, LossSlot::loss, static_cast<double>(entropy));
  const Operand& o = p[Slot::states];
  if (o.given && !is_given)
    *reinterpret_cast<StoredState*>(o.data + r.place.offset(o)) = stored_state<T>(r.state, r.row.scale);
  if (rows == nullptr) return;
  const double factor = fold::Scalar<double>::mul(dloss_at(p, r.place), r.row.scale);
  rows[index] = {norm.empty     ? RowKind::zero
                 : norm.regular ? RowKind::regular
                                : RowKind::nan,
                 entropy,
                 static_cast<T>(-factor),
                 {norm, r.log_normaliser(), r.factor.c}};
}

/// fold::Entropy of a regular row in the fast range.
struct PlainEntropy {
  PlainProbability p;
  fold::LogNormaliser<float> log_row;

  __device__ __forceinline__ explicit PlainEntropy(const fold::Entropy<float>& row) : p(row.row), log_row(row.log_row) {
    log_row.fast = true;  // for the compiler
  }
  static __device__ __forceinline__ bool fits(const fold::Entropy<float>& row) {
    return row.row.regular && row.log_row.fast;
  }
  __device__ __forceinline__ float gradient(float x, float entropy, float factor) const {
    using S = fold::Scalar<float>;
    const float y = p(x, log_row.c);
    return y > 0.F ? S::mul(S::mul(y, S::add(log_row.log_probability(x), entropy)), factor) : 0.F;
  }
};

__device__ __forceinline__ void to_gradients(float (&v)[lift::kPerLane], float, const EntropyRow<float>& row) {
  if (!PlainEntropy::fits(row.row))
    return for_each_turned(v, [&](float x) { return fold::canonical(row.row.gradient(x, row.entropy, row.factor)); });
  const PlainEntropy of(row.row);
#pragma unroll
  for (int i = 0; i < lift::kPerLane; ++i) v[i] = fold::canonical(of.gradient(v[i], row.entropy, row.factor));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
