// The gradients of losses of plain rows: what stands before and after the one read of softmax's kernels, or a second
// read, a chunk a warp, at the speed of a copy.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/loss_alone.cuh"
#include "cuda/loss_gradient.cuh"
#include "cuda/stay_frame.cuh"

#include <array>

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
/// Where what the one read wants to know of rows goes, and the elements at their targets, which it may write over, or
/// where it is to leave them.
struct PreparedRows {
  GradientRow* gradients;
  float* elements;
  RowTarget* targets;  ///< null: the read does not look after targets, and `elements` are wanted
};
/// What the one read wants to know of a row. Neither smoothing nor z-loss is asked for.
struct RowToPrepare {
  TargetOf target;
  float element;

  /// number: what is given as the target.
  __device__ __forceinline__ RowToPrepare(const LossProblem& p, const PlainPlace& place, std::int64_t number,
                                          const PreparedRows& to)
      : target(p, number), element(to.targets == nullptr ? target.element(p, place) : 0.F) {}
  /// all_weights: of all rows' targets.
  __device__ __forceinline__ GradientRow gradient(const LossProblem& p, double dloss, double all_weights) const {
    using Kind = GradientRow::Kind;
    if (!target.is_class) return {0.F, 0.F, target.ignored ? Kind::zero : Kind::nan};
    const fold::CrossEntropy terms(0., 0., static_cast<double>(target.weight), 1., 1.);
    const auto pull = static_cast<float>(terms.pull(0.));
    const auto factor = static_cast<float>(gradient_factor(p, dloss, p.scale, all_weights));
    return {pull, factor, fabsf(pull) <= 0x1p40F && fabsf(factor) <= 0x1p40F ? Kind::regular : Kind::wild};
  }
  __device__ __forceinline__ void put(const PreparedRows& to, std::int64_t row, const GradientRow& own) const {
    to.gradients[row] = own;
    if (to.targets == nullptr) {
      to.elements[row] = element;
    } else {
      to.targets[row] = {target.is_class ? static_cast<int>(target.index) : -1, 0.F};
    }
  }
};

/// What blocks of a cluster send to one of them or to all, once: who waits has it all. No barrier of the cluster is as
/// fast, which waits for what has been asked of memory, too.
template <class Word, int kMost>
struct ClusterMail {
  static_assert(sizeof(Word) % 8 == 0 && sizeof(Word) <= 16);
  alignas(16) Word of[kMost];
  CopyBarrier arrived;

  /// By one thread, before the cluster's barrier; of `count` words.
  __device__ __forceinline__ void init(int count) {
    arrived.init(1);
    CopyBarrier::publish();
    arrived.expect(count * static_cast<int>(sizeof(Word)));
  }
  __device__ __forceinline__ void send(unsigned i, const Word& own, unsigned to) {
    const unsigned place = lift::Cluster::map(of + i, to), barrier = lift::Cluster::map(&arrived, to);
    if constexpr (sizeof(Word) == 8) {
      send_word(place, barrier, fold::bits_as<std::uint64_t>(own));
    } else {
      const auto words = fold::bits_as<std::array<std::uint64_t, 2>>(own);
      send_words(place, barrier, words[0], words[1]);
    }
  }
  __device__ __forceinline__ void wait() { wait_for_words(arrived, 0); }
  /// The same by all threads of a block, which may be alone (no block may send to itself that is no cluster's): by
  /// `sender`, what it has for each of them.
  __device__ __forceinline__ void share(unsigned i, const Word& own, bool sender) {
    if (lift::Cluster::size() == 1) {
      if (sender && threadIdx.x == 0) of[i] = own;
      return __syncthreads();
    }
    if (sender && threadIdx.x < lift::Cluster::size()) send(i, own, threadIdx.x);
    wait();
  }
};
/// Chunks of rows that a cluster takes, at most.
inline constexpr int kMostRowChunks = 16;

/// Before it, a thread a row. Then the read may begin with x, and wait for the rest: what came before is over.
static __global__ void __launch_bounds__(128)
    prepare_gradients(const __grid_constant__ LossProblem p, RowsTotal weights, PreparedRows to) {
  begin_first();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const PlainPlace place(p, min(index, p.rows - 1));
  const RowToPrepare row(p, place, TargetOf::number_at(p, place), to);
  const double dloss = dloss_at(p, place), all_weights = whole_of(weights).sum;
  if (index < p.rows) row.put(to, index, row.gradient(p, dloss, all_weights));
}

/// The same by one cluster, a chunk of rows a block; for a mean it adds up the targets' weights itself, and leaves
/// their sum in `weights`, which is null else.
static __global__ void __launch_bounds__(lift::kChunk)
    prepare_gradients_at_once(const __grid_constant__ LossProblem p, RowsSum* weights, PreparedRows to) {
  begin_first();
  __shared__ double of_rows[lift::kChunk];
  __shared__ ClusterMail<RowsSum, kMostRowChunks> chunks;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * lift::kChunk + threadIdx.x;
  const PlainPlace place(p, min(index, p.rows - 1));
  const std::int64_t number = TargetOf::number_at(p, place);
  if (weights != nullptr && threadIdx.x == 0) chunks.init(static_cast<int>(gridDim.x));
  lift::Cluster::arrive_shared();
  const RowToPrepare row(p, place, number, to);
  const double dloss = dloss_at(p, place);
  double all_weights = 0.;
  lift::Cluster::wait();
  if (weights != nullptr) {
    const bool counts = index < p.rows && row.target.is_class;
    of_rows[threadIdx.x] = counts ? static_cast<double>(row.target.weight) : fold::Sum<double>::identity();
    const int counted = __syncthreads_count(counts);
    RowsSum own{0., counted};
    if (threadIdx.x < 32) own.sum = sum_of_chunk(of_rows);
    chunks.share(blockIdx.x, own, threadIdx.x < 32);
    const unsigned lane = threadIdx.x % 32;
    const RowsSum all = merge_lanes(lane < gridDim.x ? chunks.of[lane] : RowsFold::identity());
    all_weights = all.sum;
    if (index == 0) *weights = all;
  }
  if (index < p.rows) row.put(to, index, row.gradient(p, dloss, all_weights));
}

/// What is known of a row before the read has ended.
struct RowToFinish {
  PlainPlace place;
  TargetOf target;
  float element, factor;

  __device__ __forceinline__ RowToFinish(const LossProblem& p, const PlainRows& rows, const float* elements,
                                         std::int64_t index)
      : place(p, index), target(p, place), element(elements[index]), factor(rows.gradients[index].factor) {}
  __device__ __forceinline__ PlainLossRow<PlainRows> with_state(const LossProblem& p, const PlainRows& rows,
                                                                std::int64_t index) const {
    return {rows, row_at(p, place), FramedState::state(rows.states + index)};
  }
  /// The gradient of its target.
  __device__ __forceinline__ void put_gradient(const LossProblem& p, const PlainLossRow<PlainRows>& r) const {
    put_target_gradient(p, place, r, target, element, factor);
  }
};

/// After it, of rows whose targets it has not looked after: by every other block the rows' losses, by the others the
/// gradients of their targets. In either one instruction waits for the other. early: the read before has let it begin
/// when all before that had ended, so that what was known then can be asked for while it ends.
static __global__ void __launch_bounds__(128)
    finish_gradients(const __grid_constant__ LossProblem p, const __grid_constant__ PlainRows rows,
                     const float* elements, RowLosses to, bool early) {
  begin_before_wait();
  if (!early) wait_for_before();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x / 2) * blockDim.x + threadIdx.x;
  if (index >= p.rows) return;
  const RowToFinish row(p, rows, elements, index);
  wait_for_before();
  const PlainLossRow<PlainRows> r = row.with_state(p, rows, index);
  if (blockIdx.x % 2 == 0) {
    finish_alone(p, row.place, r, row.target, row.element, to);
  } else {
    row.put_gradient(p, r);
  }
}

/// The same, early, with the losses' sum, by one cluster, a chunk of rows a block or two. weights:
/// prepare_gradients_at_once's.
static __global__ void __launch_bounds__(lift::kChunk)
    finish_and_add_gradients(const __grid_constant__ LossProblem p, const __grid_constant__ PlainRows rows,
                             const float* elements, const RowsSum* weights) {
  begin_before_wait();
  __shared__ ClusterMail<double, lift::kChunk> losses;    ///< of a chunk, to the first of its blocks
  __shared__ ClusterMail<double, kMostRowChunks> chunks;  ///< their sums, to the cluster's first block
  const unsigned blocks = lift::kChunk / blockDim.x;      // of a chunk
  const auto count = static_cast<int>(gridDim.x / blocks);
  if (threadIdx.x == 0) losses.init(lift::kChunk), chunks.init(count);
  lift::Cluster::arrive_shared();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t safe = min(index, p.rows - 1);
  const RowToFinish row(p, rows, elements, safe);
  const RowsSum divisor = p.reduction == Reduction::mean ? *weights : RowsFold::identity();
  lift::Cluster::wait();
  wait_for_before();
  const PlainLossRow<PlainRows> r = row.with_state(p, rows, safe);
  const double loss =
      index < p.rows ? finish_alone(p, row.place, r, row.target, row.element, {}) : fold::Sum<double>::identity();
  losses.send(static_cast<unsigned>(index) % lift::kChunk, loss, blockIdx.x / blocks * blocks);
  const unsigned warp = threadIdx.x / 32;
  if (warp == 0 && blockIdx.x % blocks == 0) {
    losses.wait();
    const double sum = sum_of_chunk(losses.of);
    if (threadIdx.x == 0) chunks.send(blockIdx.x / blocks, sum, 0);
  }
  if (index < p.rows) row.put_gradient(p, r);
  if (warp == 1 && blockIdx.x == 0) {
    chunks.wait();
    const int lane = static_cast<int>(threadIdx.x % 32);
    const RowsSum all = merge_lanes(lane < count ? RowsSum{chunks.of[lane], 0} : RowsFold::identity());
    if (lane == 0) put_loss(p, all.sum, divisor);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
