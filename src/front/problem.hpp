// An operation after every check: sizes and strides in one form that every backend reads. No ownership, no heap.
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

/// Where row r of an operand lies, relative to the operand's data, by its coordinates in `outer`.
constexpr std::int64_t row_offset(const Operand& o, const std::array<std::int64_t, kMaxRank>& outer, int outer_rank,
                                  std::int64_t row) {
  std::int64_t at = 0;
  for (int d = outer_rank - 1; d > 0; --d) {
    const auto axis = static_cast<std::size_t>(d);
    at += row % outer[axis] * o.strides[axis];
    row /= outer[axis];
  }
  return outer_rank > 0 ? at + row * o.strides[0] : 0;
}

/// Null if a kernel of this rung may run where `asked` is, else why not. Rung::automatic: a kernel of no rung.
inline const char* refuses_rung(Rung asked, Rung rung = Rung::automatic) {
  return asked == Rung::automatic || asked == rung ? nullptr : "another rung was asked for";
}

/// rows() rows of n elements; row r's coordinates are the mixed-radix digits of r in `outer` (last fastest).
struct RowProblem {
  Op op;
  Empty empty;
  Rung rung;
  bool causal;  ///< outer's last axis is T: row i of it has its first i + 1 + n - T elements
  int outer_rank;
  std::int64_t rows;
  std::int64_t n;                ///< N; for ragged rows the longest one
  std::int64_t elements;         ///< in all rows together; for ragged rows, whose rows * n may be far more, x's
  std::int64_t ragged_elements;  ///< of ragged rows: x's, which no offset may pass
  double scale;
  std::array<std::int64_t, kMaxRank> outer;
  std::array<Operand, static_cast<std::size_t>(Slot::count)> operands;

  constexpr const Operand& operator[](Slot s) const { return operands[static_cast<std::size_t>(s)]; }
  Operand& operator[](Slot s) { return operands[static_cast<std::size_t>(s)]; }

  /// Where row r of an operand with one value a row lies.
  char* at(const Operand& o, std::int64_t row) const { return o.data + row_offset(o, outer, outer_rank, row); }

  /// The dtype that the fold is computed in: float64 for float64 elements, else float32.
  constexpr bool is_double() const { return (*this)[Slot::x].dtype == DType::float64; }
};

/// What cross_entropy, entropy and their backward passes have beyond the rows; x, dx (Slot::y) and states are the rows'
/// own.
enum class LossSlot : std::uint8_t { targets, loss, log_probability, dloss, weight, status, count };

struct LossProblem : RowProblem {
  Reduction reduction;
  std::int64_t ignore_index;
  double label_smoothing, z_loss;
  Shard shard;  ///< x's place in the whole rows; size 0: x is whole
  std::array<Operand, static_cast<std::size_t>(LossSlot::count)> more;

  /// How many classes the whole rows have.
  constexpr std::int64_t classes() const { return shard.size != 0 ? shard.size : n; }

  using RowProblem::operator[];
  constexpr const Operand& operator[](LossSlot s) const { return more[static_cast<std::size_t>(s)]; }
  Operand& operator[](LossSlot s) { return more[static_cast<std::size_t>(s)]; }
};

/// What topk has beyond the rows.
enum class TopkSlot : std::uint8_t { values, indices, probabilities, log_probabilities, lse, count };

struct TopkProblem : RowProblem {
  std::int64_t k;
  bool sorted;
  std::array<Operand, static_cast<std::size_t>(TopkSlot::count)> more;

  using RowProblem::operator[];
  constexpr const Operand& operator[](TopkSlot s) const { return more[static_cast<std::size_t>(s)]; }
  Operand& operator[](TopkSlot s) { return more[static_cast<std::size_t>(s)]; }
};

/// What sample has beyond the rows.
enum class SampleSlot : std::uint8_t {
  tokens,
  temperatures,
  top_ks,
  top_ps,
  min_ps,
  bias,
  bitmask,
  seeds,
  offsets,
  row_ids,
  log_probability,
  rank,
  masked,
  top_tokens,
  top_log_probabilities,
  count
};

/// Its probabilities are the rows' y.
struct SampleProblem : RowProblem {
  double temperature, top_p, min_p;
  std::int64_t top_k;
  std::int64_t top;  ///< how many of the largest elements are told of
  std::uint64_t seed, offset;
  FilterOrder order;
  Distribution of;
  std::array<Operand, static_cast<std::size_t>(SampleSlot::count)> more;

  using RowProblem::operator[];
  constexpr const Operand& operator[](SampleSlot s) const { return more[static_cast<std::size_t>(s)]; }
  Operand& operator[](SampleSlot s) { return more[static_cast<std::size_t>(s)]; }
};

/// Parts of the same rows, to be merged: part p of an operand lies at data[p].
struct MergeProblem {
  static constexpr int kMaxParts = kMaxMergeParts;
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

/// (b, h, t, d) of a tensor lies b * batch + h * head + t * token + d elements behind data. Of packed sequences t
/// counts through all of them, and batch is 0.
struct AttentionTensor {
  char* data;
  DType dtype;
  bool given;
  std::int64_t batch, head, token;
};

/// Something for each score: (b, h, i, j) lies at those strides, in elements; 0 where it is broadcast. i and j count
/// from the sequence's first query and key in memory.
struct ScoreOperand {
  char* data;
  DType dtype;
  bool given;
  std::array<std::int64_t, 4> strides;
};

/// A short vector: one number a sequence (`stride`, in elements) or a head (`stride`; `batch` between sequences).
struct VectorOperand {
  char* data;
  DType dtype;
  bool given;
  std::int64_t stride, batch;
};

/// out = softmax(scores) v. Query head h reads key head h / (q_heads / kv_heads).
///
/// Sequence b has T queries and keys j in [start, end) of memory: T = tq, end = tk, or of packed sequences
/// T = q_offsets[b+1] - q_offsets[b] and end = kv_offsets[b+1] - kv_offsets[b]; then end = min(end, lengths[b]) and
/// start = min(starts[b], end), 0 without `starts`. Query i sees key j if start <= j < end, and
/// i + end - T - left <= j <= i + end - T + right (a negative left or right is no limit), and mask(b, h, i, j).
/// Its score is bias + softcap tanh(scale q.k / softcap) - slope |i + end - T - j|, each where given.
struct AttentionProblem {
  Op op;
  Rung rung;
  bool packed;             ///< Varlen: q, k, v, out, lse and state have one token axis for all sequences
  std::int64_t rows;       ///< (query, head) pairs in all
  std::int64_t sequences;  ///< B
  std::int64_t q_heads, kv_heads;
  std::int64_t tq, tk;               ///< of packed sequences the largest that may come
  std::int64_t q_tokens, kv_tokens;  ///< the token axes in memory: tq and tk, or all packed sequences' together
  std::int64_t kv_sequences;         ///< k's and v's batch size: B, or the cache's behind kv_index
  int d, dv;                         ///< 1 .. kMaxHeadDim
  double scale;
  float softcap;             ///< 0: none
  std::int64_t left, right;  ///< of the window; -1 unlimited. causal is right = 0
  AttentionTensor q, k, v, out;
  AttentionTensor lse;                                                   ///< one element a row: float32 or float64
  AttentionTensor state;                                                 ///< m, d, o[dv] a row, side by side
  VectorOperand sink, slopes;                                            ///< a head
  VectorOperand q_offsets, kv_offsets, kv_lengths, kv_starts, kv_index;  ///< a sequence: int32 or int64
  ScoreOperand mask, bias;

  static constexpr int kMaxHeadDim = 512;
  /// The dtype that the fold is computed in: float64 for float64 operands, else float32.
  constexpr bool is_double() const { return q.dtype == DType::float64; }
  /// Whether a key may be hidden from a query that its sequence has.
  constexpr bool windowed() const { return left >= 0 || right >= 0; }
};

}  // namespace v0
}  // namespace softfold
