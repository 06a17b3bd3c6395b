// entropy and its backward pass: the fold of chunks, what a row gives, and its gradient.
#pragma once

#include "cuda/loss_gradient.cuh"
#include "softfold/fold/entropy.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The states of chunks of plain rows, a warp each.
template <class E>
__global__ void __launch_bounds__(128, 8) fold_plain_entropy(const __grid_constant__ LossProblem p, std::int64_t chunks,
                                                             lift::Factor factor, fold::EntropyState<float>* states) {
  begin_in_order();
  using Elements = Tile<E, 32>;
  using Fold = fold::EntropySum<float>;
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= p.rows * chunks) return;
  const PlainChunk<E> chunk(p, item, chunks);
  const char* x = chunk.in(p, p[Slot::x]);
  const Elements tile(x);
  uint4 raw[Elements::kVectors];
  tile.gather(raw, x, chunk.n, lift::absent(factor.c));
  float v[lift::kPerLane];
  const lift::Extremes own = tile.unpack(v, raw, chunk.n, factor);
  const auto folded = lift::WarpFold<Elements::kWidth>::depths(v, factor.c, own);
  const float sum =
      lift::add_tree<Elements::kWidth, 32, float>([&](int j, int k) { return v[j * Elements::kWidth + k]; });
  const bool regular = Fold::Lse::is_regular(folded.state);
  if (tile.lane == 0)
    states[item] = Fold::with_sum(folded.state, regular ? fold::Scalar<float>::mul(sum, folded.unit) : 0.F);
}

/// The same for any dtype, stride, axis, mask and length. The elements are read twice, the second time from the cache.
template <class T>
__global__ void __launch_bounds__(128)
    fold_entropy_chunks(const __grid_constant__ LossProblem p, GenericItems items, fold::EntropyState<T>* states) {
  begin_in_order();
  using Fold = fold::EntropySum<T>;
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items.count) return;
  const Share share = share_of(p, item, false, items.first_chunks);
  if (share.row >= p.rows) return;
  const Row r = row_at(p, RowPlace(p, share.row));
  const RowFactor<T> factor(r.scale);
  const auto s = chunk_state<T>(p, p[Slot::x], r, share);
  const bool regular = Fold::Lse::is_regular(s);
  const T sum = add_present(p, r, share, T(0), [&](std::int64_t i) {
    if (!regular) return T(0);
    return Fold::leaf_of(factor(element_at<T>(p[Slot::x].dtype, r.x + i * p[Slot::x].axis_stride)), factor.c, s.m);
  });
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

/// From a row and its state: what is asked of it, where `writes`, and what its gradient is made with.
template <class T, class Rows>
__device__ __forceinline__ EntropyRow<T> finish_entropy_row(const LossProblem& p, const Rows& r,
                                                            const fold::EntropyState<T>& state, bool writes) {
  const fold::Normaliser<T> norm(r.state);
  T entropy = fold::EntropySum<T>::finish(state);
  if (norm.empty && p.empty == Empty::nan) entropy = fold::canonical_nan<T>();
  if (writes) {
    r.put_number(p, LossSlot::loss, static_cast<double>(entropy));
    const Operand& o = p[Slot::states];
    if (o.given && p.op != Op::entropy_backward)
      *reinterpret_cast<StoredState*>(o.data + r.place.offset(o)) = stored_state<T>(r.state, r.scale());
  }
  const double factor = fold::Scalar<double>::mul(dloss_at(p, r.place), r.scale());
  return {norm.empty     ? RowKind::zero
          : norm.regular ? RowKind::regular
                         : RowKind::nan,
          entropy,
          static_cast<T>(-factor),
          {norm, r.log_normaliser(), r.c()}};
}
/// Of any row. A backward pass has the (m, d) that it is given.
template <class T>
__device__ __forceinline__ EntropyRow<T> finish_entropy_row(const LossProblem& p, std::int64_t index,
                                                            fold::EntropyState<T> state, bool writes) {
  LossRow<T> r(p, index, state.row());
  if (p.op == Op::entropy_backward)
    state = fold::EntropySum<T>::with_given(row_state<T>(p, r.place, r.row, index, nullptr), state);
  r.state = state.row();
  return finish_entropy_row<T>(p, r, state, writes);
}

/// A thread a row. rows: null where no gradient is asked for.
template <class T>
__global__ void __launch_bounds__(128)
    finish_entropy(const __grid_constant__ LossProblem p, const fold::EntropyState<T>* states, EntropyRow<T>* rows) {
  begin_in_order();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.rows) return;
  const auto row = finish_entropy_row(p, index, states[index], true);
  if (rows != nullptr) rows[index] = row;
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

template <int kCount>
__device__ __forceinline__ void to_gradients(float (&v)[kCount], float, const EntropyRow<float>& row) {
  if (!PlainEntropy::fits(row.row))
    return for_each_turned(v, [&](float x) { return fold::canonical(row.row.gradient(x, row.entropy, row.factor)); });
  const PlainEntropy of(row.row);
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = fold::canonical(of.gradient(v[i], row.entropy, row.factor));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
