// Which thread does which rows, and which part of a row. Bits never depend on it.
#pragma once

#include "cpu/parallel.hpp"
#include "cpu/row_pipeline.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

/// Runs of rows for tasks that are taken in order: in every round each thread gets one, and half of what is left goes,
/// so that tasks are few and all threads end together.
struct RowTasks {
  std::int64_t rows, threads;
  std::int64_t least;  ///< rows of a task

  std::int64_t count() const {
    std::int64_t rounds = 0;
    for (std::int64_t begin = 0; begin < rows; ++rounds) begin += threads * size(begin);
    return rounds * threads;
  }
  /// Calls body(first, last) for the rows of a task, if there are any: the last round may have too few.
  template <class Body>
  void run(std::int64_t task, const Body& body) const {
    std::int64_t begin = 0;
    for (; task >= threads; task -= threads) begin += threads * size(begin);
    const std::int64_t first = begin + task * size(begin), last = std::min(rows, first + size(begin));
    if (first < last) body(first, last);
  }

 private:
  /// Of each task in the round that begins at a row.
  std::int64_t size(std::int64_t begin) const {
    return std::max(least, (rows - begin + 2 * threads - 1) / (2 * threads));
  }
};

/// Calls body(first, last) for runs of rows that together are all.
template <class Body>
void split_rows(const RowProblem& p, const Context& context, const Body& body) {
  const std::int64_t n = std::max<std::int64_t>(p.elements / p.rows, 1);  // of ragged rows, the mean
  if (p.rows == 1 || std::max(p.elements, p.rows) <= tuning().inline_elements) return body(std::int64_t{0}, p.rows);
  Executor& executor = executor_of(context);
  const int threads = executor.concurrency();
  if (threads == 1) return body(std::int64_t{0}, p.rows);
  const RowTasks tasks{p.rows, threads, std::max<std::int64_t>(tuning().task_elements / n, 1)};
  parallel_for(executor, tasks.count(), [&](std::int64_t task) { tasks.run(task, body); });
}

/// Whether the threads share the rows themselves: there are too few of them to go round.
inline bool splits_inside_rows(const RowProblem& p, const Context& context) {
  const std::int64_t least = tuning().shared_row_elements;
  if (p.n < least || p.elements <= 2 * least || p.rows >= 1024) return false;
  const int threads = executor_of(context).concurrency();
  return threads > 1 && p.rows < 4 * threads;
}

/// The blocks that rows are cut into when threads share them: 2^k chunks each, so that a block is a node of the tree.
struct Blocks {
  std::int64_t size;   ///< elements
  std::int64_t count;  ///< in a row

  explicit Blocks(std::int64_t n) : size(tuning().block_elements), count((n + size - 1) / size) {}
};

/// Calls body(row, index of the row, block, begin, end) for every block of every row.
template <class Body>
void for_blocks(const RowProblem& p, const Context& context, const Blocks& blocks, const Body& body) {
  parallel_for(executor_of(context), p.rows * blocks.count, [&](std::int64_t task) {
    const std::int64_t r = task / blocks.count, b = task % blocks.count;
    body(RowCursor(p, r).row(), r, b, b * blocks.size, (b + 1) * blocks.size);
  });
}

/// Two reads (one, if all that leaves is a number or a state): every row's state first, then every result.
template <class T>
void run_tiled(const RowProblem& p, const Context& context, Result result) {
  using Lse = fold::LogSumExp<T>;
  using State = typename Lse::State;
  if (!splits_inside_rows(p, context)) {
    const bool pipeline = streams(p) && is_plain<T>(p);
    split_rows(p, context, [&](std::int64_t first, std::int64_t last) {
      RowWorker<T> worker(p, result);
      if (pipeline) return RowPipeline<T>(p, result, RowPipeline<T>::From::elements, worker).run(first, last);
      RowCursor cursor(p, first);
      for (; first < last; ++first, cursor.next()) {
        const Row r = cursor.row();
        worker.finish(r, worker.reduce(r, 0, r.n));
      }
    });
    return;
  }
  const Blocks blocks(p.n);
  const Scratch::Held<State> held(thread_scratch(), Scratch::blocks, static_cast<std::size_t>(p.rows * blocks.count));
  State* const nodes = held.data();
  for_blocks(p, context, blocks,
             [&](const Row& r, std::int64_t i, std::int64_t b, std::int64_t begin, std::int64_t end) {
               nodes[i * blocks.count + b] = RowWorker<T>(p, result).reduce(r, begin, end);
             });
  RowCursor cursor(p, 0);
  const bool writes = p[Slot::y].given;
  for (std::int64_t i = 0; i < p.rows; ++i, cursor.next()) {
    nodes[i] = lift::reduce_nodes<Lse>(nodes + i * blocks.count, blocks.count);
    if (!writes) RowWorker<T>(p, result).finish(cursor.row(), nodes[i]);
  }
  if (!writes) return;
  for_blocks(p, context, blocks, [&](const Row& r, std::int64_t i, std::int64_t, std::int64_t begin, std::int64_t end) {
    if (begin < r.n) RowWorker<T>(p, result).write(r, nodes[i], begin, end);
  });
}

/// run_tiled as a kernel's function.
template <Result kResult>
void tiled(const RowProblem& p, const Context& context) {
  with_fold_type(p, [&]<class T>(T) { run_tiled<T>(p, context, kResult); });
}

/// Calls f with a value of the type that the problem is folded in.
template <class F>
void with_fold_type(const RowProblem& p, F&& f) {
  if (p.is_double()) {
    f(double{});
  } else {
    f(float{});
  }
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
