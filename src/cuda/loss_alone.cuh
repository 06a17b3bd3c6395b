// The loss of plain rows without smoothing and z-loss: a row is finished by few instructions, where the states of its
// chunks are merged if nothing but the loss is asked for, and the sum over rows is a warp a chunk of them; of short
// rows in one launch.
#pragma once

#include "cuda/choose.hpp"
#include "cuda/in_order.cuh"
#include "cuda/loss.cuh"
#include "cuda/plain_chunk.cuh"
#include "cuda/row_results.cuh"
#include "cuda/softmax_plain.cuh"
#include "cuda/stay_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Null if losses of plain rows without smoothing and z-loss are all that is asked for, so that rows are finished where
/// their chunks' states are merged, else why not.
inline const char* refuses_losses(const LossProblem& p) {
  constexpr std::int64_t most = 256;
  if (p.op != Op::cross_entropy || p[Slot::y].given) return "a gradient is asked for";
  if (p.label_smoothing != 0 || p.z_loss != 0) return "labels are smoothed, or there is a z-loss";
  if (has_probabilities(p)) return "targets are probabilities";
  if (p.is_double()) return "float64 has no vector tiles";
  if (p.n == 0 || p.rows == 0) return "there is no element";
  if (lift::chunk_count(p.n) > most) return "a row is longer than 262144";
  return refuses_plain(p);
}
inline bool wants_losses(const LossProblem& p) { return refuses_losses(p) == nullptr; }
inline bool adds_rows(const LossProblem& p) { return p.op == Op::cross_entropy && p.reduction != Reduction::none; }
inline void clear_status(const LossProblem& p, const Stream& stream) {
  const Operand& o = p[LossSlot::status];
  if (o.given) check(cudaMemsetAsync(o.data, 0, sizeof(std::int32_t), stream), "status");
}

/// Rows in the place of elements: what merge_levels wants to know of a sum over rows.
inline RowProblem rows_as_row(const LossProblem& p) {
  RowProblem line = p;
  line.n = p.rows;
  line.rows = 1;
  line[Slot::offsets] = {};
  return line;
}

/// From the sums of chunks of rows. targets: their weights, or those of chunks, `known` if there are none.
inline void put_sum(const LossProblem& p, RowsSum* losses, RowsSum* targets, const RowsTotal& known, Stream stream) {
  const RowProblem line = rows_as_row(p);
  const RowsTotal all = total_of(line, losses, stream);
  launch("put_total", put_total, {1, 32}, stream, p, all, targets != nullptr ? total_of(line, targets, stream) : known);
}

/// Whether one cluster finishes p's rows behind their fold and adds up their losses (loss_small.cu).
bool finishes_few(const LossProblem& p);
/// It does. early: as finish_short_losses.
void finish_few(const LossProblem& p, const RowNodes& nodes, const Stream& stream, bool early);

/// What rows leave for the sums over them; null where nobody asks.
struct RowLosses {
  double* losses;
  RowsSum* targets;  ///< their weights
};

/// A plain row: LossRow, but for what all rows have in common.
template <class Rows>
struct PlainLossRow {
  const Rows& rows;
  Row row;
  fold::LogSumExp<float>::State state;
  __device__ __forceinline__ fold::LogNormaliser<float> log_normaliser() const { return rows.log_normaliser(state); }
};

/// A plain row's target. Problem here and below: a LossProblem, or what answers as one. The target is none of the
/// classes if it is ignored, or out of range.
struct TargetOf {
  std::int64_t index;
  bool ignored, is_class;
  float weight;

  template <class Problem>
  __device__ __forceinline__ TargetOf(const Problem& p, const PlainPlace& place) : TargetOf(p, number_at(p, place)) {}
  /// What is given as the row's target, and what that means.
  template <class Problem>
  static __device__ __forceinline__ std::int64_t number_at(const Problem& p, const PlainPlace& place) {
    const auto& o = p[LossSlot::targets];
    return integer_at(o.dtype, o.data + place.offset(o));
  }
  template <class Problem>
  __device__ __forceinline__ TargetOf(const Problem& p, std::int64_t number) : index(number) {
    ignored = index == p.ignore_index;
    is_class = !ignored && index >= 0 && index < p.n;
    weight = is_class ? weight_at<float>(p, index) : 1.F;
  }
  /// Of x; 0 if there is none.
  template <class Problem>
  __device__ __forceinline__ float element(const Problem& p, const PlainPlace& place) const {
    const auto& x = p[Slot::x];
    return is_class ? element_at<float>(x.dtype, x.data + place.offset(x) + index * x.axis_stride) : 0.F;
  }
  /// As it was folded.
  template <class Problem, class Rows>
  __device__ __forceinline__ float scaled_element(const Problem& p, const Rows& rows, const PlainPlace& place) const {
    const float own = element(p, place);
    return rows.factor.plain ? own : fold::Scalar<float>::mul(own, rows.factor.times);
  }
};

/// From a row's state: its loss and log-probability are written as finish_row() does without smoothing and z-loss.
/// Returns the loss as it counts in a sum.
template <class Problem, class Rows>
__device__ __forceinline__ double finish_alone(const Problem& p, const PlainPlace& place, const PlainLossRow<Rows>& r,
                                               const TargetOf& target, float element, const RowLosses& to) {
  double lp = 0., loss = 0.;
  if (target.is_class) {
    lp = static_cast<double>(target_log_probability<float>(p, r, target.index, [&] { return element; }));
    loss = fold::CrossEntropy(0., 0., static_cast<double>(target.weight), 1., 1.).loss(lp, 0., 0.);
  } else if (!target.ignored) {
    lp = loss = fold::canonical_nan<double>();
    const auto& status = p[LossSlot::status];
    if (status.given) atomicAdd(reinterpret_cast<int*>(status.data), 1);
  }
  const auto put_number = [&](LossSlot slot, double value) {
    const auto& o = p[slot];
    if (o.given) put(o.dtype, o.data + place.offset(o), value);
  };
  put_number(LossSlot::log_probability, lp);
  if (p.reduction == Reduction::none) put_number(LossSlot::loss, loss);
  const auto& o = p[Slot::states];
  if (o.given) *reinterpret_cast<StoredState*>(o.data + place.offset(o)) = stored_state<float>(r.state, p.scale);
  if (target.ignored) loss = fold::Sum<double>::identity();
  if (to.losses != nullptr) to.losses[place.row] = loss;
  if (to.targets != nullptr)
    to.targets[place.row] = target.is_class ? RowsSum{static_cast<double>(target.weight), 1} : RowsFold::identity();
  return loss;
}

/// The gradient of a row's target; factor: GradientRow's.
__device__ __forceinline__ void put_target_gradient(const LossProblem& p, const PlainPlace& place,
                                                    const PlainLossRow<PlainRows>& r, const TargetOf& target,
                                                    float element, float factor) {
  const fold::Normaliser<float> norm(r.state);
  if (!target.is_class || !norm.regular) return;
  const fold::CrossEntropyGradient<float> gradient(norm, r.rows.factor.c,
                                                   {0., 0., static_cast<double>(target.weight), 1., 1.}, 0., factor);
  const Operand& dx = p[Slot::y];
  put(dx.dtype, dx.data + place.offset(dx) + target.index * dx.axis_stride, gradient.at_target(element, target.weight));
}

/// A warp a row. early: as finish_short_losses.
static __global__ void __launch_bounds__(128)
    finish_losses(const __grid_constant__ LossProblem p, const __grid_constant__ PlainRows rows, const RowNodes nodes,
                  RowLosses to, bool early) {
  begin_before_wait();
  if (!early) wait_for_before();
  const std::int64_t index = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (index >= p.rows) return;
  const PlainPlace place(p, index);
  // The target and its element are on their way while the states are merged.
  const TargetOf target(p, place);
  const float element = target.scaled_element(p, rows, place);
  wait_for_before();
  const auto state = nodes.root_by_warp(index);
  if (threadIdx.x % 32 == 0) finish_alone(p, place, PlainLossRow{rows, row_at(p, place), state}, target, element, to);
}

/// By a warp: the sum of a chunk of rows' numbers, of_row(row) of each of the first `rows`.
template <class OfRow>
__device__ __forceinline__ double sum_of_chunk(std::int64_t chunk, std::int64_t rows, const OfRow& of_row) {
  const std::int64_t first = chunk * lift::kChunk + threadIdx.x % 32;
  double v[lift::kPerLane];
#pragma unroll
  for (int j = 0; j < lift::kPerLane; ++j)
    v[j] = first + 32 * j < rows ? of_row(first + 32 * j) : fold::Sum<double>::identity();
  return add_chunk(v);
}

__device__ __forceinline__ double sum_of_chunk(const double (&of_rows)[lift::kChunk]) {
  return sum_of_chunk(0, lift::kChunk, [&](std::int64_t row) { return of_rows[row]; });
}

/// Of rare rows.
static __device__ __noinline__ void put_left_gradient(const LossProblem& p, const PlainRows& rows, std::int64_t index,
                                                      const fold::LogSumExp<float>::State& state, float element) {
  const PlainPlace place(p, index);
  put_target_gradient(p, place, PlainLossRow{rows, row_at(p, place), state}, TargetOf(p, place), element,
                      rows.gradients[index].factor);
}

/// Which block of a launch is the last one to say so. word: RowCounter's, of nobody else meanwhile; null: nobody asks.
class LastBlock {
 public:
  /// By all threads, early.
  __device__ __forceinline__ explicit LastBlock(RowCounter::Word* word) : counter_{word, gridDim.x} {
    if (word != nullptr && gridDim.x > 1 && threadIdx.x == 0) counter_.begin(counter_.seen());
  }
  /// By all threads, once, if there is a word; what others wrote before is then seen.
  __device__ __forceinline__ bool here() const {
    if (gridDim.x == 1) {
      __syncthreads();
      return true;
    }
    __threadfence();
    __syncthreads();  // all of the block have come before it is counted
    const bool last = __syncthreads_or(threadIdx.x == 0 && counter_.take() + 1 == gridDim.x) != 0;
    __threadfence();
    if (last && threadIdx.x == 0) counter_.end();
    return last;
  }

 private:
  RowCounter counter_;
};

/// Where the sums over rows go.
struct RowSums {
  RowsSum *losses, *targets;  ///< of chunks of rows; null: not asked for, or known
  RowsTotal known;            ///< weights of targets
  RowCounter::Word* done;     ///< of blocks

  /// By a block of as many threads as rows: the sums of its chunk. Of up to kMostChunks the last block puts the total.
  __device__ __forceinline__ void add(const LossProblem& p, double loss, double weight, bool counts,
                                      const LastBlock& block) const {
    __shared__ double all_losses[lift::kChunk], all_weights[lift::kChunk];
    all_losses[threadIdx.x] = loss, all_weights[threadIdx.x] = weight;
    const int counted = __syncthreads_count(counts);
    if (threadIdx.x < 32) {
      const double sum = sum_of_chunk(all_losses);
      if (threadIdx.x == 0) losses[blockIdx.x] = {sum, 0};
    } else if (threadIdx.x < 64 && targets != nullptr) {
      const double sum = sum_of_chunk(all_weights);
      if (threadIdx.x == 32) targets[blockIdx.x] = {sum, counted};
    }
    const std::int64_t chunks = gridDim.x;
    if (chunks <= kMostChunks && block.here())
      put_whole(p, {losses, chunks}, divisor_of(p, targets != nullptr ? RowsTotal{targets, chunks} : known));
  }
};

/// Rows of few nodes, a thread each, a block a chunk of them, and their sums. rows.targets: what a kernel that has
/// written the gradients has left of targets; null: elements are where they were. early: all before the call has ended
/// when it begins; then what is given may be read (and the word by which blocks are counted written, which no kernel
/// before it has) while the kernel before ends.
static __global__ void __launch_bounds__(lift::kChunk)
    finish_short_losses(const __grid_constant__ LossProblem p, const __grid_constant__ PlainRows rows,
                        const RowNodes nodes, const RowSums to, bool early) {
  begin_before_wait();
  if (!early) wait_for_before();
  const LastBlock block(to.losses != nullptr && gridDim.x <= kMostChunks ? to.done : nullptr);
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * lift::kChunk + threadIdx.x;
  const PlainPlace place(p, min(index, p.rows - 1));
  const TargetOf target(p, place);
  float element = 0.F;
  if (rows.targets == nullptr) element = target.scaled_element(p, rows, place);
  wait_for_before();
  double loss = fold::Sum<double>::identity(), weight = loss;
  const bool counts = index < p.rows && target.is_class;
  if (counts) weight = static_cast<double>(target.weight);
  if (index < p.rows) {
    // Of one node each: no merging.
    const auto state = rows.targets != nullptr ? rows.states[index] : nodes.root_by_thread(index);
    if (rows.targets != nullptr) {
      const RowTarget left = rows.targets[index];
      element = left.element;
      if (left.index == RowTarget::kLeft) put_left_gradient(p, rows, index, state, element);
    }
    loss = finish_alone(p, place, PlainLossRow{rows, row_at(p, place), state}, target, element, {});
  }
  if (to.losses != nullptr) to.add(p, loss, weight, counts, block);
}

/// Chunks of rows a block.
inline constexpr int kRowChunksAtOnce = 8;

inline Grid add_losses_grid(const LossProblem& p) {
  return {ceil_div(lift::chunk_count(p.rows), kRowChunksAtOnce), 32 * kRowChunksAtOnce};
}

/// The sums of chunks of rows, a warp each, to `losses` and, if they are not `known` before, `targets`. Of up to
/// kMostChunks the last block puts the total.
static __global__ void __launch_bounds__(32 * kRowChunksAtOnce)
    add_losses(const __grid_constant__ LossProblem p, RowLosses rows, RowsSum* losses, RowsSum* targets,
               RowsTotal known, RowCounter::Word* done) {
  begin_in_order();
  const LastBlock block(lift::chunk_count(p.rows) <= kMostChunks ? done : nullptr);
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * kRowChunksAtOnce + threadIdx.x / 32;
  const std::int64_t chunks = lift::chunk_count(p.rows);
  if (chunk < chunks) {
    const double loss = sum_of_chunk(chunk, p.rows, [&](std::int64_t row) { return rows.losses[row]; });
    if (threadIdx.x % 32 == 0) losses[chunk] = {loss, 0};
    if (rows.targets != nullptr) {
      std::int64_t count = 0;
      const double weight = sum_of_chunk(chunk, p.rows, [&](std::int64_t row) {
        count += rows.targets[row].rows;
        return rows.targets[row].sum;
      });
      count = __reduce_add_sync(lift::kWholeWarp, static_cast<int>(count));
      if (threadIdx.x % 32 == 0) targets[chunk] = {weight, count};
    }
  }
  if (chunks <= kMostChunks && block.here())
    put_whole(p, {losses, chunks}, divisor_of(p, rows.targets != nullptr ? RowsTotal{targets, chunks} : known));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
