// A row operation after every check: sizes and strides in one form that every backend reads. No ownership, no heap.
#pragma once

#include "softfold/options.hpp"

#include <array>
#include <cstdint>

namespace softfold {
inline namespace v0 {

/// The operands of the row operations. Which of them an operation has stands beside each value of Op.
enum class Slot : std::uint8_t {
  x,       ///< what is folded; for the backward passes of softmax and log_softmax: y
  y,       ///< the result of x's shape: y or dx
  dy,      ///< the gradient that comes in, of x's shape
  states,  ///< float64, (m, d, scale, digits) in its last axis, one a row; result of `state`, operand of `finish_*`
  row,     ///< one value a row: lse (result) or dlse (operand)
  scales,
  length,
  offsets,  ///< the ragged rows' [rows + 1]; indexed by the row itself
  mask,
  count,
};

/// One operand seen through the problem's own axes.
struct Operand {
  char* data;
  DType dtype;
  bool given;
  std::int64_t axis_stride;                    ///< bytes between neighbours along the folded axis (0: broadcast)
  std::array<std::int64_t, kMaxRank> strides;  ///< bytes along each outer axis; 0 where it is broadcast
};

/// rows() rows of n elements; row r's coordinates are the mixed-radix digits of r in `outer` (last fastest).
struct RowProblem {
  Op op;
  Empty empty;
  Rung rung;
  bool causal;  ///< outer's last axis is T: row i of it has its first i + 1 + n - T elements
  int outer_rank;
  std::int64_t rows;
  std::int64_t n;                ///< N; for ragged rows the longest one
  std::int64_t ragged_elements;  ///< of ragged rows: x's, which no offset may pass
  double scale;
  std::array<std::int64_t, kMaxRank> outer;
  std::array<Operand, static_cast<std::size_t>(Slot::count)> operands;

  constexpr const Operand& operator[](Slot s) const { return operands[static_cast<std::size_t>(s)]; }
  Operand& operator[](Slot s) { return operands[static_cast<std::size_t>(s)]; }

  /// The dtype that the fold is computed in: float64 for float64 elements, else float32.
  constexpr bool is_double() const { return (*this)[Slot::x].dtype == DType::float64; }
};

/// Parts of the same rows, to be merged: part p of an operand lies at data[p].
struct MergeProblem {
  static constexpr int kMaxParts = 16;
  struct Operands {
    std::array<char*, kMaxParts> data;
    Operand view;  ///< dtype and strides, the same for all parts; view.data is unused
  };
  Op op;
  LogBase base;
  Statistics statistics;
  int parts;
  int outer_rank;
  std::int64_t rows;
  std::int64_t n;  ///< elements of value a row (D of attention, a block's length); 0 for merge_states
  std::array<std::int64_t, kMaxRank> outer;
  Operands value;          ///< out (merge_attention), p (merge_blocks); not given for merge_states
  Operands statistic;      ///< lse or (m, d), one a row and part; the states of merge_states
  Operands out_value;      ///< one part (merge_attention) or all (merge_blocks)
  Operands out_statistic;  ///< one part
};

}  // namespace v0
}  // namespace softfold
