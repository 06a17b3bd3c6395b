// Brings operands to the axes of a row problem: x's own without the folded one, or [rows] for ragged rows.
#pragma once

#include "front/problem.hpp"

#include <span>

namespace softfold {
inline namespace v0 {

struct RowBuilder {
  /// Sets the problem's rows and their length. Operands are added to it afterwards.
  RowBuilder(RowProblem& p, const View& x, const RowOptions& options);
  /// The same where there is no x: rows of this shape.
  RowBuilder(RowProblem& p, std::span<const std::int64_t> rows);

  /// An operand of x's shape, or with `axis_size` elements along the axis; with `broadcast`, one that broadcasts to it
  /// from the right.
  void full(Operand& o, const char* name, const View& v, bool broadcast = false, std::int64_t axis_size = -1);
  /// An operand with one value a row, or with a contiguous vector of `trailing` values.
  void per_row(Operand& o, const char* name, const View& v, int trailing = 0, bool broadcast = false);
  /// scales, mask, length and causal, checked.
  void add_options(const RowOptions& options);

  RowProblem& p;
  std::span<const std::int64_t> shape;  ///< x's; empty where there is no x
  int axis;                             ///< of shape; -1 where there is no x
  bool ragged;
};

/// Joins neighbouring outer axes that every operand (also those of `more`) walks as one, so that kernels see few of
/// them. The axis T of a causal problem stays alone: its index is a row's limit.
void collapse(RowProblem& p, std::span<Operand> more = {});

}  // namespace v0
}  // namespace softfold
