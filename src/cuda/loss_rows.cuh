// The gradients of losses of plain rows: what stands before and after the one read of softmax's kernels, or a second
// read, a chunk a warp, at the speed of a copy.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/loss_alone.cuh"

#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A row's gradient where nothing is special: a fast frame, weights of 1, factors that overflow nothing. In an even
/// frame the low bits of z are the exponent, as in lift::WarpFold.
struct PlainGradient {
  float c, magic, lowest, dense, multiplier, pull, spread, factor;

  __device__ __forceinline__ explicit PlainGradient(const fold::CrossEntropyGradient<float>& g)
      : c(g.c), pull(g.pull), spread(g.spread), factor(g.factor) {
    using S = fold::Scalar<float>;
    const float m = fold::LogSumExp<float>::narrow(g.row.m);
    const int even = static_cast<int>(m) & ~1;
    magic = S::sub(fold::Real<float>::kMagic, static_cast<float>(even));
    multiplier = S::mul(g.row.reciprocal, static_cast<float>(even) == m ? 1.F : 0.5F);
    lowest = S::add(S::add(magic, m), fold::Real<float>::kFlush);
    dense = S::add(S::add(magic, m), -60.F);
  }
  static __device__ __forceinline__ bool fits(const fold::CrossEntropyGradient<float>& g) {
    return fold::LogSumExp<float>::is_fast(g.row.m) && fabsf(g.pull) <= 0x1p40F && fabsf(g.factor) <= 0x1p40F &&
           g.c > 0.F;
  }
  template <bool kDense>
  __device__ __forceinline__ float operator()(float x) const {
    using S = fold::Scalar<float>;
    const float z = S::fma(x, c, magic);
    const float power = fold::exp2_fraction<S>(S::fma(x, c, -S::sub(z, magic)));
    float y = S::mul(__int_as_float(__float_as_int(power) + (__float_as_int(z) << 23)), multiplier);
    if (!kDense && (!(z >= lowest) || y < fold::Real<float>::kSmallest)) y = 0.F;
    return S::mul(S::sub(S::mul(pull, y), spread), factor);
  }
};

/// v to f(v). The registers turn by one place a step, which keeps their names constant.
template <class F>
__device__ __forceinline__ void for_each_turned(float (&v)[lift::kPerLane], const F& f) {
#pragma unroll 1
  for (int i = 0; i < lift::kPerLane; ++i) {
    const float result = f(v[0]);
#pragma unroll
    for (int j = 0; j + 1 < lift::kPerLane; ++j) v[j] = v[j + 1];
    v[lift::kPerLane - 1] = result;
  }
}

/// sum_row_leaves of plain rows.
template <class E, class Leaves>
__global__ void __launch_bounds__(256, 3)
    sum_plain_leaves(const __grid_constant__ LossProblem p, std::int64_t chunks, lift::Factor factor, float* sums) {
  begin_in_order();
  using Elements = Tile<E, 32>;
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= p.rows * chunks) return;
  const PlainChunk<E> chunk(p, item, chunks);
  const char* x = chunk.in(p, p[Slot::x]);
  const Elements tile(x);
  float v[lift::kPerLane];
  tile.load(v, x, chunk.n, factor);
  const Leaves leaf(p, LossRow<float>(p, chunk.row), chunk.row, nullptr);
  const float sum = lift::add_tree<Elements::kWidth, 32, float>([&](int j, int k) {
    const int at = tile.element(j, k);
    return at < chunk.n ? leaf(p, chunk.begin + at, v[j * Elements::kWidth + k]) : fold::Sum<float>::identity();
  });
  if (tile.lane == 0) sums[item] = sum;
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
  __device__ __forceinline__ float leaf(float x) const {
    const float y = p(x, log_row.c);
    return y > 0.F ? fold::Scalar<float>::mul(y, log_row.log_probability(x)) : 0.F;
  }
  __device__ __forceinline__ float gradient(float x, float entropy, float factor) const {
    using S = fold::Scalar<float>;
    const float y = p(x, log_row.c);
    return y > 0.F ? S::mul(S::mul(y, S::add(log_row.log_probability(x), entropy)), factor) : 0.F;
  }
};

/// What the rows' elements are added up with, a thread a row.
static __global__ void __launch_bounds__(128)
    prepare_entropy(const __grid_constant__ LossProblem p, fold::Entropy<float>* rows) {
  begin_in_order();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.rows) return;
  const LossRow<float> r(p, index);
  rows[index] = {fold::Normaliser<float>(r.state), r.log_normaliser(), r.factor.c};
}

/// The sums of p lp over the chunks of plain rows.
template <class E>
__global__ void __launch_bounds__(256, 3)
    sum_plain_entropy(const __grid_constant__ LossProblem p, std::int64_t chunks, lift::Factor factor,
                      const fold::Entropy<float>* rows, float* sums) {
  begin_in_order();
  using Elements = Tile<E, 32>;
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= p.rows * chunks) return;
  const PlainChunk<E> chunk(p, item, chunks);
  const char* x = chunk.in(p, p[Slot::x]);
  const Elements tile(x);
  float v[lift::kPerLane];
  tile.load(v, x, chunk.n, factor);
  const fold::Entropy<float> row = rows[chunk.row];
  float sum = fold::Sum<float>::identity();
  const auto add = [&](const auto& leaf) {
    sum = lift::add_tree<Elements::kWidth, 32, float>([&](int j, int k) {
      return tile.element(j, k) < chunk.n ? leaf(v[j * Elements::kWidth + k]) : fold::Sum<float>::identity();
    });
  };
  if (PlainEntropy::fits(row)) {
    const PlainEntropy of(row);
    add([&](float x_) { return of.leaf(x_); });
  } else if (row.row.regular) {
    for_each_turned(v, [&](float x_) { return row.leaf(x_); });
    add([](float leaf) { return leaf; });
  }
  if (tile.lane == 0) sums[item] = sum;
}

/// Elements to gradients. No element of the chunk is the target, or it is written afterwards.
__device__ __forceinline__ void to_gradients(float (&v)[lift::kPerLane], float low, const CrossEntropyRow<float>& row) {
  if (!PlainGradient::fits(row.gradient)) {
    return for_each_turned(v, [&](float x) { return row.gradient(x, 1.F); });
  }
  const PlainGradient of(row.gradient);
  if (__all_sync(lift::kWholeWarp, fold::Scalar<float>::fma(low, of.c, of.magic) >= of.dense)) {
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) v[i] = of.operator()<true>(v[i]);
  } else {
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) v[i] = of.operator()<false>(v[i]);
  }
}
__device__ __forceinline__ void to_gradients(float (&v)[lift::kPerLane], float, const EntropyRow<float>& row) {
  if (!PlainEntropy::fits(row.row))
    return for_each_turned(v, [&](float x) { return fold::canonical(row.row.gradient(x, row.entropy, row.factor)); });
  const PlainEntropy of(row.row);
#pragma unroll
  for (int i = 0; i < lift::kPerLane; ++i) v[i] = fold::canonical(of.gradient(v[i], row.entropy, row.factor));
}

/// From the end: what the first read has left in the L2 cache is the end.
template <class E, class RowResult>
__global__ void __launch_bounds__(256, 4)
    write_plain_gradient(const __grid_constant__ LossProblem p, std::int64_t chunks, lift::Factor factor,
                         const RowResult* rows) {
  begin_in_order();
  using Elements = Tile<E, 32>;
  const std::int64_t item =
      p.rows * chunks - 1 - (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item < 0) return;
  const PlainChunk<E> chunk(p, item, chunks);
  const int n = chunk.n;
  const char* x = chunk.in(p, p[Slot::x]);
  char* dx = chunk.in(p, p[Slot::y]);
  const Elements tile(x);
  uint4 raw[Elements::kVectors];
  tile.gather(raw, x, n, lift::absent(factor.c));
  const RowResult row = rows[chunk.row];
  if (row.kind != RowKind::regular) {
    const float value = row.kind == RowKind::nan ? fold::canonical_nan<float>() : 0.F;
    for (int i = tile.lane; i < n; i += 32) reinterpret_cast<E*>(dx)[i] = fold::narrow<E>(value);
    return;
  }
  std::int64_t target = -1;
  float at_target = 0.F;
  if constexpr (std::is_same_v<RowResult, CrossEntropyRow<float>>) {
    target = row.target - chunk.begin;
    if (target >= 0 && target < n) {  // before dx, which may be x, is written
      const float element = fold::widen(reinterpret_cast<const E*>(x)[target]);
      at_target = row.gradient.at_target(factor.plain ? element : fold::Scalar<float>::mul(element, factor.times),
                                         weight_at<float>(p, p.shard.offset + row.target));
    }
  }
  float v[lift::kPerLane];
  const float low = tile.unpack(v, raw, n, factor).low;
  to_gradients(v, low, row);
  __syncwarp();
  tile.store_checked(dx, n, v);
  if (target < 0 || target >= n) return;
  __syncwarp();
  if (tile.lane == 0) reinterpret_cast<E*>(dx)[target] = fold::narrow<E>(at_target);
}

/// What the one read wants to know of a row, and the element at the target, which it may write over. Neither smoothing
/// nor z-loss is asked for.
struct RowToPrepare {
  TargetOf target;
  float element;

  __device__ __forceinline__ RowToPrepare(const LossProblem& p, const PlainPlace& place)
      : target(p, place), element(target.element(p, place)) {}
  /// all_weights: of all rows' targets.
  __device__ __forceinline__ GradientRow gradient(const LossProblem& p, double dloss, double all_weights) const {
    using Kind = GradientRow::Kind;
    if (!target.is_class) return {0.F, 0.F, target.ignored ? Kind::zero : Kind::nan, 0U};
    const fold::CrossEntropy terms(0., 0., static_cast<double>(target.weight), 1., 1.);
    const auto pull = static_cast<float>(terms.pull(0.));
    const auto factor = static_cast<float>(gradient_factor(p, dloss, p.scale, all_weights));
    return {pull, factor, fabsf(pull) <= 0x1p40F && fabsf(factor) <= 0x1p40F ? Kind::regular : Kind::wild, 0U};
  }
};

/// Before it, a thread a row.
static __global__ void __launch_bounds__(128)
    prepare_gradients(const __grid_constant__ LossProblem p, RowsTotal weights, GradientRow* gradients,
                      float* elements) {
  begin_in_order();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const PlainPlace place(p, min(index, p.rows - 1));
  const RowToPrepare row(p, place);
  const double dloss = dloss_at(p, place), all_weights = whole_of(weights).sum;
  if (index >= p.rows) return;
  gradients[index] = row.gradient(p, dloss, all_weights);
  elements[index] = row.element;
}

/// The same for a mean, by one cluster that adds up the targets' weights itself, a chunk of rows a block; the chunks'
/// sums go to `weights`.
static __global__ void __launch_bounds__(lift::kChunk)
    add_and_prepare_gradients(const __grid_constant__ LossProblem p, RowsSum* weights, GradientRow* gradients,
                              float* elements) {
  begin_in_order();
  __shared__ double of_rows[lift::kChunk];
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * lift::kChunk + threadIdx.x;
  const PlainPlace place(p, min(index, p.rows - 1));
  const RowToPrepare row(p, place);
  const double dloss = dloss_at(p, place);
  const bool counts = index < p.rows && row.target.is_class;
  of_rows[threadIdx.x] = counts ? static_cast<double>(row.target.weight) : fold::Sum<double>::identity();
  const int counted = __syncthreads_count(counts);
  if (threadIdx.x < 32) {
    double v[lift::kPerLane];
#pragma unroll
    for (int j = 0; j < lift::kPerLane; ++j) v[j] = of_rows[threadIdx.x + 32 * j];
    const double sum = add_chunk(v);
    if (threadIdx.x == 0) weights[blockIdx.x] = {sum, counted};
  }
  lift::Cluster::arrive();
  lift::Cluster::wait();
  const double all_weights = whole_of({weights, gridDim.x}).sum;
  if (index >= p.rows) return;
  gradients[index] = row.gradient(p, dloss, all_weights);
  elements[index] = row.element;
}

/// After it: by every other block the rows' losses, by the others the gradients of their targets. In either one
/// instruction waits for the other. early: the read before has begun when all before it had ended, so that what was
/// known then can be asked for while it ends.
static __global__ void __launch_bounds__(128)
    finish_gradients(const __grid_constant__ LossProblem p, const __grid_constant__ PlainRows rows,
                     const float* elements, RowLosses to, bool early) {
  begin_before_wait();  // if early, behind a launch without overlap
  if (!early) wait_for_before();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x / 2) * blockDim.x + threadIdx.x;
  if (index >= p.rows) return;
  const PlainPlace place(p, index);
  const TargetOf target(p, place);
  const float element = elements[index], factor = rows.gradients[index].factor;
  wait_for_before();
  const PlainLossRow r{rows, row_at(p, place), rows.states[index]};
  if (blockIdx.x % 2 == 0) return finish_alone(p, place, r, target, element, to);
  const fold::Normaliser<float> norm(r.state);
  if (!target.is_class || !norm.regular) return;
  const fold::CrossEntropyGradient<float> gradient(norm, rows.factor.c,
                                                   {0., 0., static_cast<double>(target.weight), 1., 1.}, 0., factor);
  const Operand& dx = p[Slot::y];
  put(dx.dtype, dx.data + place.offset(dx) + target.index * dx.axis_stride, gradient.at_target(element, target.weight));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
