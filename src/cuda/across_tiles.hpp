// Kernels of plain rows that lie side by side, as kernels.cc puts them in their place.
#pragma once

#include "cuda/kernels.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// softmax and log_softmax along an outer axis, of plain rows that the copy engine can read.
extern const RowKernel softmax_across_tiles_kernel;
/// The same of rows up to 32 elements, on 8 bytes.
extern const RowKernel softmax_across_short_kernel;
/// The same of plain rows of up to a few thousand elements, wherever they begin.
extern const RowKernel softmax_across_columns_kernel;
/// The same of rows of any length, which are read twice.
extern const RowKernel softmax_across_columns_twice_kernel;
/// finish_softmax, finish_log_softmax and gradients of logsumexp along an outer axis, of plain rows.
extern const RowKernel given_across_columns_kernel;

/// logsumexp and state along an outer axis, of plain rows.
extern const RowKernel fold_across_columns_kernel;
/// Gradients of softmax and log_softmax along an outer axis, of plain rows of up to a few thousand elements.
extern const RowKernel backward_across_columns_kernel;
/// The same of rows of any length, which are read twice.
extern const RowKernel backward_across_columns_twice_kernel;

/// The same of rows of which something is hidden, with scales of their own, or to another dtype.
extern const RowKernel softmax_across_hidden_kernel;
/// The same of rows of any length, which are read twice.
extern const RowKernel softmax_across_hidden_twice_kernel;

/// logsumexp and state of such rows.
extern const RowKernel fold_across_hidden_kernel;
/// Gradients of softmax and log_softmax of such rows.
extern const RowKernel backward_across_hidden_kernel;
/// The same of rows of any length, which are read twice.
extern const RowKernel backward_across_hidden_twice_kernel;

/// Null if rows lie side by side, in x, y and dy, else why not; of a tensor of two axes or three.
const char* refuses_side_by_side(const RowProblem& p);
/// The same of plain rows.
const char* refuses_across(const RowProblem& p);
/// How many rows lie side by side, and how many such runs there are. (Rows without outer axes are refused before; that
/// the compiler does not see.)
inline std::int64_t inner_of(const RowProblem& p) {
  return p.outer[static_cast<std::size_t>(std::max(p.outer_rank, 1) - 1)];
}
inline std::int64_t outer_of(const RowProblem& p) { return p.outer_rank == 2 ? p.outer[0] : 1; }
/// Bytes between an operand's runs; 0 where there is one.
inline std::int64_t outer_stride(const RowProblem& p, const Operand& o) { return outer_of(p) == 1 ? 0 : o.strides[0]; }

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
