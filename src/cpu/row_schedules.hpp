// Which thread does which rows, and which part of a row.
#pragma once

#include "cpu/row_worker.hpp"
#include "softfold/options.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

/// Calls body(worker, row) for every row.
template <class T, class Body>
void for_rows(const RowProblem& p, const Context&, Result result, const Body& body) {
  RowWorker<T> worker(p, result);
  RowCursor cursor(p, 0);
  for (std::int64_t r = 0; r < p.rows; ++r, cursor.next()) body(worker, cursor.row());
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
