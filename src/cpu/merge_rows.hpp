// The rows of a merge: where each row's operands lie, and which thread does which rows.
#pragma once

#include "cpu/parallel.hpp"
#include "cpu/tuning.hpp"
#include "front/problem.hpp"

#include <hwy/cache_control.h>
#include <algorithm>
#include <array>
#include <cstddef>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// Walks the rows of a problem from `first` on.
class MergeCursor {
 public:
  MergeCursor(const MergeProblem& p, std::int64_t first)
      : p_(p), operands_{&p.value, &p.statistic, &p.out_value, &p.out_statistic} {
    for (int d = p.outer_rank - 1; d >= 0; --d) {
      at_[axis(d)] = first % p.outer[axis(d)];
      first /= p.outer[axis(d)];
    }
    for (std::size_t o = 0; o < operands_.size(); ++o) {
      offset_[o] = 0;
      if (!operands_[o]->view.given) continue;
      for (int d = 0; d < p.outer_rank; ++d) offset_[o] += at_[axis(d)] * operands_[o]->view.strides[axis(d)];
    }
  }

  const char* value(int part) const { return at(0, part); }
  const char* statistic(int part) const { return at(1, part); }
  char* out_value(int part) const { return at(2, part); }
  char* out_statistic() const { return at(3, 0); }

  void next() {
    for (int d = p_.outer_rank - 1; d >= 0; --d) {
      const bool wraps = ++at_[axis(d)] == p_.outer[axis(d)];
      const std::int64_t steps = wraps ? 1 - p_.outer[axis(d)] : 1;
      for (std::size_t o = 0; o < operands_.size(); ++o)
        if (operands_[o]->view.given) offset_[o] += steps * operands_[o]->view.strides[axis(d)];
      if (!wraps) break;
      at_[axis(d)] = 0;
    }
  }

 private:
  static std::size_t axis(int d) { return static_cast<std::size_t>(d); }
  char* at(std::size_t operand, int part) const {
    return operands_[operand]->data[static_cast<std::size_t>(part)] + offset_[operand];
  }

  const MergeProblem& p_;
  std::array<const MergeProblem::Operands*, 4> operands_;
  std::array<std::int64_t, 4> offset_;
  std::array<std::int64_t, kMaxRank> at_;
};

/// Calls body(cursor) for every row, in parallel where there is enough to do.
template <class Body>
void for_merge_rows(const MergeProblem& p, const Context& context, std::int64_t bytes_per_row, const Body& body) {
  const auto run = [&](std::int64_t from, std::int64_t to) {
    MergeCursor cursor(p, from);
    for (std::int64_t r = from; r < to; ++r, cursor.next()) body(cursor);
    hwy::FlushStream();  // what went past the cache is seen by whoever sees that the task is done
  };
  const std::int64_t rows_per_task =
      std::max<std::int64_t>(1, tuning().merge_task_bytes / std::max<std::int64_t>(1, bytes_per_row));
  if (p.rows <= 2 * rows_per_task) return run(0, p.rows);
  Executor& executor = executor_of(context);
  const std::int64_t tasks =
      std::min<std::int64_t>((p.rows + rows_per_task - 1) / rows_per_task, 8 * executor.concurrency());
  const std::int64_t share = p.rows / tasks, more = p.rows % tasks;
  parallel_for(executor, tasks, [&](std::int64_t i) {
    const std::int64_t from = i * share + std::min(i, more);
    run(from, from + share + (i < more ? 1 : 0));
  });
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
