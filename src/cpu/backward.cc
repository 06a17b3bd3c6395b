// softmax_backward, log_softmax_backward and logsumexp_backward on the CPU: which rows, or which runs of one long row,
// run where. A row is read twice, once for its sum and once for its gradients, the second time from the cache.
#include "cpu/backward_rows.hpp"
#include "cpu/parallel.hpp"
#include "cpu/row_kernels.hpp"
#include "cpu/scratch.hpp"
#include "cpu/tuning.hpp"

#include <hwy/cache_control.h>
#include <bit>

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

std::int64_t row_bytes(const RowProblem& p) {
  std::size_t bytes = 0;
  for (const Slot s : {Slot::x, Slot::y, Slot::dy})
    if (p[s].given) bytes += size_of(p[s].dtype);
  return p.n * static_cast<std::int64_t>(bytes);
}

bool streams_gradients(const RowProblem& p) {
  const Operand& dx = p[Slot::y];
  const bool in_place = dx.data == p[Slot::x].data || (p[Slot::dy].given && dx.data == p[Slot::dy].data);
  return !in_place && p.elements > tuning().result_stream_bytes / static_cast<std::int64_t>(size_of(dx.dtype));
}

/// A row that all threads share: runs of a power of two of chunks, each a node of the canonical tree.
template <class Worker>
void shared_row(const RowProblem& p, const Row& r, Executor& executor, bool stream) {
  using T = typename Worker::T;
  if (!Worker(p, stream).begin(r)) return;
  const std::int64_t share = lift::chunk_count(r.length) / (8 * executor.concurrency());
  const std::int64_t run =
      lift::kChunk * static_cast<std::int64_t>(
                         std::bit_ceil(static_cast<std::uint64_t>(std::max(tuning().gradient_run_chunks, share))));
  const std::int64_t runs = (r.length + run - 1) / run;
  T total = T(0);
  if constexpr (Worker::kSums) {
    const Scratch::Held<T> held(thread_scratch(), Scratch::blocks, static_cast<std::size_t>(runs));
    T* const sums = held.data();
    parallel_for(executor, runs, [&](std::int64_t i) {
      sums[i] = Worker(p, stream).sum(r, i * run, std::min(r.length, (i + 1) * run));
    });
    total = lift::reduce_nodes<fold::Sum<T>>(sums, runs);
  }
  parallel_for(executor, runs, [&](std::int64_t i) {
    Worker(p, stream).write(r, i * run, std::min(r.length, (i + 1) * run), total, [] {});
    if (stream) hwy::FlushStream();
  });
}

template <class Worker>
void some_rows(const RowProblem& p, std::int64_t from, std::int64_t to, bool stream) {
  Worker worker(p, stream);
  RowCursor cursor(p, from);
  worker.rows(cursor, to - from);
  if (stream) hwy::FlushStream();
}

template <class Worker>
void all_rows(const RowProblem& p, const Context& context) {
  const bool stream = streams_gradients(p);
  const std::int64_t bytes = std::max<std::int64_t>(1, row_bytes(p));
  const std::int64_t task = tuning().gradient_task_bytes, rows_per_task = std::max<std::int64_t>(1, task / bytes);
  if (p.rows <= rows_per_task && bytes <= 2 * task) return some_rows<Worker>(p, 0, p.rows, stream);
  Executor& executor = executor_of(context);
  if (bytes > tuning().gradient_row_bytes || (p.rows < executor.concurrency() && bytes > 4 * task)) {
    RowCursor cursor(p, 0);
    for (std::int64_t i = 0; i < p.rows; ++i, cursor.next()) shared_row<Worker>(p, cursor.row(), executor, stream);
    return;
  }
  const std::int64_t tasks =
      std::min<std::int64_t>((p.rows + rows_per_task - 1) / rows_per_task, 8 * executor.concurrency());
  const std::int64_t share = p.rows / tasks, more = p.rows % tasks;
  parallel_for(executor, tasks, [&](std::int64_t i) {
    const std::int64_t from = i * share + std::min(i, more);
    some_rows<Worker>(p, from, from + share + (i < more ? 1 : 0), stream);
  });
}

template <template <class> class Gradient>
void run_pair(const RowProblem& p, const Context& context) {
  if (p.is_double()) {
    all_rows<PairWorker<Gradient<double>, double>>(p, context);
  } else {
    all_rows<PairWorker<Gradient<float>, float>>(p, context);
  }
}

void run_lse(const RowProblem& p, const Context& context) {
  check_states(p);
  if (p.is_double()) {
    all_rows<LseWorker<double>>(p, context);
  } else {
    all_rows<LseWorker<float>>(p, context);
  }
}

const char* backward_refuses(const RowProblem& p, const Context&) {
  return p.rung == Rung::automatic ? nullptr : "a gradient has no rungs";
}

constexpr Kernel<RowProblem> kSoftmaxBackward[] = {
    {"softmax_backward_rows", backward_refuses, run_pair<fold::SoftmaxGradient>, nullptr}};
constexpr Kernel<RowProblem> kLogSoftmaxBackward[] = {
    {"log_softmax_backward_rows", backward_refuses, run_pair<fold::LogSoftmaxGradient>, nullptr}};
constexpr Kernel<RowProblem> kLogSumExpBackward[] = {{"logsumexp_backward_rows", backward_refuses, run_lse, nullptr}};

}  // namespace

RowKernels backward_kernels(Op op) {
  switch (op) {
    case Op::softmax_backward: return kSoftmaxBackward;
    case Op::log_softmax_backward: return kLogSoftmaxBackward;
    default: return kLogSumExpBackward;
  }
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
