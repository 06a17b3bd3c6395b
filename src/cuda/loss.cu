// cross_entropy and its backward pass: which steps a call has, and how they follow each other on a stream.
#include "cuda/loss_finish.cuh"
#include "cuda/loss_probabilities.cuh"
#include "cuda/loss_rows.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/generic_items.cuh"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

#include <algorithm>
#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// A block a chunk of rows.
Grid chunks_of_rows(const LossProblem& p) { return {lift::chunk_count(p.rows), kRowThreads}; }

template <class T>
struct CrossEntropySteps {
  using RowResult = CrossEntropyRow<T>;
  using Leaves = CrossEntropyLeaves<T>;
  static constexpr bool has_shares = false;
  static bool sums(const LossProblem& p) { return p.op == Op::cross_entropy && p.label_smoothing > 0; }
  /// Whether rows have other classes, or others' weights, than their length says.
  static bool counts(const LossProblem& p) {
    return p.label_smoothing > 0 && (p[Slot::mask].given || p[LossSlot::weight].given);
  }
  static void finish(const LossProblem& p, const LossWork<T, RowResult>& work, Stream stream) {
    launch("finish_cross_entropy", finish_cross_entropy<T>, chunks_of_rows(p), stream, p, work);
  }
};

/// Of targets that are class probabilities.
template <class T>
struct ProbabilitySteps {
  using RowResult = ProbabilityRow<T>;
  using Leaves = ProbabilityLeaves<T>;
  static constexpr bool has_shares = true;
  static bool sums(const LossProblem& p) { return p.op == Op::cross_entropy; }
  static bool counts(const LossProblem& p) { return p.label_smoothing > 0 && p[Slot::mask].given; }
  static void finish(const LossProblem& p, const LossWork<T, RowResult>& work, Stream stream) {
    launch("finish_probabilities", finish_probabilities<T>, chunks_of_rows(p), stream, p, work);
  }
};

bool is_backward(const LossProblem& p) { return p.op == Op::cross_entropy_backward; }
bool divides(const LossProblem& p) { return p.reduction == Reduction::mean; }

/// Whether the read that folds the rows also writes their gradients: nothing but the state is to be known of a row
/// before.
bool reads_once(const LossProblem& p) {
  return p.op == Op::cross_entropy && p[Slot::y].given && p.label_smoothing == 0 && p.z_loss == 0 &&
         !has_probabilities(p) && p.rows > 0 && refuses_gradient(p) == nullptr;
}

/// Whether a thread finishes a row, which has so many nodes, and the same launch adds the losses up.
bool finishes_by_threads(const LossProblem& p, std::int64_t count) {
  return count == 1 || merges_by_threads(p.rows, count);
}

/// A cluster that has a chunk of rows for each block, or for two if `shared` and there are enough, and then is never
/// one block (ClusterMail::send); of no blocks if the rows are too many for one.
Grid cluster_of_rows(const LossProblem& p, bool shared) {
  const int most = std::min(traits_of(DeviceOf(p[Slot::x].data).device()).largest_cluster, kMostRowChunks);
  const std::int64_t chunks = lift::chunk_count(p.rows);
  if (chunks > most || most < 2) return {0, 0};
  const int of_chunk = shared && 2 * chunks <= most ? 2 : 1;
  return {of_chunk * chunks, lift::kChunk / of_chunk, static_cast<int>(of_chunk * chunks)};
}

/// Where each step's results lie in the workspace; `sums` and the like hold every level of their tree.
template <class T, template <class> class Steps>
struct LossMemory {
  using RowResult = typename Steps<T>::RowResult;
  T* sums = nullptr;
  RowsSum *classes = nullptr, *shares = nullptr, *weights = nullptr, *losses = nullptr;
  RowResult* rows = nullptr;
  PreparedRows prepared{};
  CounterWord* taken = nullptr;  ///< of rows by clusters that stay, and of blocks (LastBlock)
  fold::LogSumExp<float>::State* states = nullptr;
  RowLosses alone{};

  LossMemory(const LossProblem& p, Parts& parts) {
    const RowProblem line = rows_as_row(p);
    if (Steps<T>::sums(p)) sums = parts.bytes_for<T>(Nodes<fold::Sum<T>>::bytes(p));
    if (Steps<T>::counts(p)) classes = parts.bytes_for<RowsSum>(Nodes<RowsFold>::bytes(p));
    if (Steps<T>::has_shares) shares = parts.bytes_for<RowsSum>(state_bytes<RowsSum>(p));
    if (divides(p)) weights = parts.bytes_for<RowsSum>(state_bytes<RowsSum>(line));
    if (adds_rows(p)) losses = parts.bytes_for<RowsSum>(state_bytes<RowsSum>(line));
    // By finish_short_losses in any case; perhaps also where a row's chunks, merged, have fewer nodes.
    const bool in_one_launch = wants_losses(p) ? finishes_by_threads(p, lift::chunk_count(p.n)) : puts_targets(p);
    if (wants_losses(p) || reads_once(p)) {
      taken = parts.take<CounterWord>(1);
      if (adds_rows(p) && !in_one_launch) alone.losses = parts.take<double>(p.rows);
    }
    if (wants_losses(p)) {
      states = parts.take<fold::LogSumExp<float>::State>(p.rows * lift::chunk_count(p.n));
      if (divides(p) && !in_one_launch) alone.targets = parts.take<RowsSum>(p.rows);
    } else if (reads_once(p)) {
      prepared.gradients = parts.take<GradientRow>(p.rows);
      if (puts_targets(p)) {
        prepared.targets = parts.take<RowTarget>(p.rows);
      } else {
        prepared.elements = parts.take<float>(p.rows);
      }
      states = parts.take<fold::LogSumExp<float>::State>(p.rows);
    } else if (p[Slot::y].given) {
      rows = parts.take<RowResult>(p.rows);
    }
  }
};

/// The states, the sums, the rows, the total, the gradient.
template <class T, template <class> class Steps>
class LossRun {
 public:
  using S = Steps<T>;
  using RowResult = typename S::RowResult;

  LossRun(const LossProblem& p, const Context& context, char* workspace)
      : p_(p),
        context_(context),
        parts_(workspace),
        memory_(p, parts_),
        items_(p, parts_),
        stream_(stream_of(context)) {}

  std::size_t bytes() {
    if (!is_backward(p_) && !reads_once(p_) && !wants_losses(p_)) states_.lay_out(p_, parts_, context_);
    return parts_.used();
  }

  void run() {
    clear_status(p_, stream_);
    if constexpr (std::is_same_v<RowResult, CrossEntropyRow<float>>) {
      if (reads_once(p_)) return read_once();
      if (wants_losses(p_)) return finish_merged();
    }
    items_.find(stream_);
    LossWork<T, RowResult> work = work_of(p_);
    LossProblem p = p_;
    if (!is_backward(p)) {
      states_.lay_out(p, parts_, context_);
      states_.run(context_);
      stream_ = stream_.following();
      p[Slot::states] = states_.operand();
    }
    if (memory_.classes != nullptr) work.classes = class_sums(p);
    if constexpr (S::has_shares) work.shares = share_sums(p, items_.chunks().count, work.classes);  // never ragged
    if (memory_.sums != nullptr) work.sums = leaf_sums(p, work.classes);
    S::finish(p, work, stream_);
    if (adds_rows(p)) put_sum(p, work.losses, work.targets, work.weights, stream_.following());
    if (p[Slot::y].given) write_gradients<T>(p, memory_.rows, is_plain(p), items_.results(), stream_);
  }

 private:
  /// What the rows are finished with; gradients want all targets' weights before.
  LossWork<T, RowResult> work_of(const LossProblem& p) {
    LossWork<T, RowResult> work;
    work.losses = memory_.losses, work.rows = memory_.rows;
    if (memory_.weights == nullptr) return work;
    if (!p[Slot::y].given) {
      work.targets = memory_.weights;
      return work;
    }
    launch("sum_targets", sum_targets<T>, chunks_of_rows(p), stream_, p, memory_.weights);
    stream_ = stream_.following();
    work.weights = total_of(rows_as_row(p), memory_.weights, stream_);
    return work;
  }

  void read_once() {
    const Grid grid{ceil_div(p_.rows, kThreads), kThreads}, cluster = cluster_of_rows(p_, false);
    const bool at_once = cluster.blocks > 0;
    LossWork<T, RowResult> work;
    if (at_once) {
      launch("prepare_gradients_at_once", prepare_gradients_at_once, cluster, stream_, p_, memory_.weights,
             memory_.prepared);
      work.weights = {memory_.weights, 1};
    } else {
      work = work_of(p_);
      launch("prepare_gradients", prepare_gradients, grid, stream_, p_, work.weights, memory_.prepared);
    }
    stream_ = stream_.following();
    PlainRows rows = plain_rows(p_);
    rows.gradients = memory_.prepared.gradients, rows.targets = memory_.prepared.targets;
    rows.states = memory_.states, rows.taken = memory_.taken;
    const bool early = launch_gradient(p_, rows, stream_, at_once);
    if (rows.targets != nullptr) return finish_short(rows, RowNodes(rows.states, 1, 0), work, true);
    // Behind a short read many blocks are faster.
    if (adds_rows(p_) && at_once && early) {
      launch("finish_and_add_gradients", finish_and_add_gradients, cluster_of_rows(p_, true), stream_, p_, rows,
             memory_.prepared.elements, memory_.weights);
      return;
    }
    launch("finish_gradients", finish_gradients, {2 * grid.blocks, kThreads}, stream_, p_, rows,
           memory_.prepared.elements, memory_.alone, early);
    if (adds_rows(p_)) add_alone(work);
  }

  void finish_merged() {
    const bool alone = !stream_.overlaps;  // all before the call has ended when the fold begins
    const RowNodes nodes = fold_plain_nodes(p_, memory_.states, stream_);
    stream_ = stream_.following();
    if (finishes_by_threads(p_, nodes.all()))
      return finish_short(plain_rows(p_), nodes, {.targets = memory_.weights}, alone);
    if (finishes_few(p_)) return finish_few(p_, nodes, stream_, alone);
    launch("finish_losses", finish_losses, warps_for(p_.rows), stream_, p_, plain_rows(p_), nodes, memory_.alone,
           alone);
    if (adds_rows(p_)) add_alone({.targets = memory_.weights});
  }

  /// work: what is known of the targets' weights, or where their sums go.
  void finish_short(const PlainRows& rows, const RowNodes& nodes, LossWork<T, RowResult> work, bool early) {
    const std::int64_t chunks = lift::chunk_count(p_.rows);
    const RowSums sums{memory_.losses, work.targets, work.weights, memory_.taken};
    launch("finish_short_losses", finish_short_losses, {chunks, lift::kChunk}, stream_, p_, rows, nodes, sums, early);
    work.losses = memory_.losses;
    if (adds_rows(p_) && chunks > kMostChunks)
      put_sum(p_, work.losses, work.targets, work.weights, stream_.following());
  }

  /// work: what is known of the targets' weights.
  void add_alone(LossWork<T, RowResult> work) {
    const std::int64_t chunks = lift::chunk_count(p_.rows);
    launch("add_losses", add_losses, add_losses_grid(p_), stream_, p_, memory_.alone, memory_.losses, memory_.weights,
           work.weights, memory_.taken);
    work.losses = memory_.losses;
    if (chunks > kMostChunks) put_sum(p_, work.losses, work.targets, work.weights, stream_.following());
  }

  /// Whether tiles of vectors move it. Smoothing of weighted classes wants every class's weight.
  static bool is_plain(const LossProblem& p) {
    return (p.label_smoothing == 0 || !p[LossSlot::weight].given) && refuses_plain(p) == nullptr;
  }

  /// One sum a row; rows of no elements have the identity.
  const T* leaf_sums(const LossProblem& p, const RowsSum* classes) {
    sum_leaves(p, classes);
    return Nodes<fold::Sum<T>>(p, memory_.sums).merge(items_.chunks(), stream_);
  }
  void sum_leaves(const LossProblem& p, const RowsSum* classes) {
    using Leaves = typename S::Leaves;
    const GenericItems items = items_.chunks();
    if constexpr (std::is_same_v<T, float> && !S::has_shares) {
      if (is_plain(p))
        return with_element(p[Slot::x].dtype, [&]<class E>() {
          launch("sum_plain_leaves", sum_plain_leaves<E, Leaves>, {ceil_div(items.count, 8), 256}, stream_, p,
                 lift::chunk_count(p.n), factor_of(p), memory_.sums);
        });
    }
    launch("sum_row_leaves", sum_row_leaves<T, Leaves>, warps_for(items.count), stream_, p, items, classes,
           memory_.sums);
  }

  const RowsSum* class_sums(const LossProblem& p) {
    const GenericItems items = items_.chunks();
    if (items.count == 0) return nullptr;
    launch("sum_classes", sum_classes<T>, warps_for(items.count), stream_, p, items, memory_.classes);
    return Nodes<RowsFold>(p, memory_.classes).merge(items, stream_);
  }

  const RowsSum* share_sums(const LossProblem& p, std::int64_t chunks, const RowsSum* classes) {
    if (chunks == 0) return nullptr;
    launch("sum_shares", sum_shares<T>, warps_for(chunks), stream_, p, chunks, classes, memory_.shares);
    return merge_levels<RowsFold>(p, memory_.shares, stream_);
  }

  const LossProblem& p_;
  const Context& context_;
  Parts parts_;
  LossMemory<T, Steps> memory_;
  Items items_;
  Stream stream_;
  RowStates states_;
};

const char* refuses(const LossProblem& p, const Context& context) {
  if (const char* why = refuses_items(p)) return why;
  return is_backward(p) ? nullptr : refuses_states(p, context);
}

template <template <class> class Steps>
std::size_t workspace_by(const LossProblem& p, const Context& context) {
  std::size_t bytes = 0;
  with_fold_type(p, [&]<class T>(T) { bytes = LossRun<T, Steps>(p, context, nullptr).bytes(); });
  return bytes;
}
std::size_t workspace(const LossProblem& p, const Context& context) {
  return has_probabilities(p) ? workspace_by<ProbabilitySteps>(p, context)
                              : workspace_by<CrossEntropySteps>(p, context);
}

template <template <class> class Steps>
void run_by(const LossProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace_by<Steps>(p, context), context);
  with_fold_type(p, [&]<class T>(T) { LossRun<T, Steps>(p, context, scratch.data()).run(); });
}
void run(const LossProblem& p, const Context& context) {
  if (has_probabilities(p)) return run_by<ProbabilitySteps>(p, context);
  run_by<CrossEntropySteps>(p, context);
}

const LossKernel kCrossEntropy[] = {cross_entropy_small_kernel, {"cross_entropy_states", refuses, run, workspace}};
constexpr LossKernel kCrossEntropyBackward[] = {{"cross_entropy_backward_generic", refuses, run, workspace}};
}  // namespace
}  // namespace cuda

std::span<const Kernel<LossProblem>> cuda_loss_kernels(Op op) {
  switch (op) {
    case Op::cross_entropy: return cuda::kCrossEntropy;
    case Op::cross_entropy_backward: return cuda::kCrossEntropyBackward;
    default: return cuda::entropy_kernels(op);
  }
}

}  // namespace v0
}  // namespace softfold
