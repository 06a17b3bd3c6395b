// The one list of problems that every backend is run on: operation x dtype x shape x options, with operands made the
// same on every machine.
#pragma once

#include "support/array.hpp"
#include "support/rows.hpp"

#include "softfold/options.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace softfold_test {

using softfold::Op;

enum class MaskShape : std::uint8_t { none, full, last_axis, one_a_row };

/// A row problem in a few words. Everything about row r follows from first_row + r, so a row can be made alone.
struct RowCase {
  Op op = Op::softmax;
  DType in = DType::float32, out = DType::float32;
  Shape shape{1, 1};
  int axis = -1;
  Kind kind = Kind::count;  ///< count: another kind for every row
  double scale = 1;
  MaskShape mask = MaskShape::none;
  bool scales = false, length = false, ragged = false, causal = false;
  bool faint = false;  ///< with scales: they are those whose product with log2(e) is subnormal
  softfold::Empty empty = softfold::Empty::zero;
  softfold::Rung rung = softfold::Rung::automatic;
  std::int64_t first_row = 0;
  bool poison = false;  ///< what does not exist (mask, length, causal) is NaN, infinite or huge instead of ordinary

  /// "softmax.float32.3x1025.gaussian.mask", unique in the list.
  std::string name() const;
  std::int64_t n() const { return shape[static_cast<std::size_t>(axis < 0 ? axis + std::ssize(shape) : axis)]; }
  std::int64_t rows() const;
  double scale_of_row(std::int64_t r) const;
  std::int64_t length_of_row(std::int64_t r) const;  ///< n, `length`, causal limit: the least of them
  bool exists(std::int64_t r, std::int64_t i) const;
  /// Row r as float64 numbers, poison included.
  std::vector<double> row(std::int64_t r) const;
};

/// Options of operations that have structs of their own; views are bound with the operands.
using OwnOptions = std::variant<std::monostate, softfold::CrossEntropyOptions, softfold::EntropyOptions,
                                softfold::KlDivergenceOptions, softfold::TopkOptions, softfold::SampleOptions>;

/// Operands in memory. Views of them stay valid as long as the problem stays where it is.
struct Problem {
  Op op = Op::softmax;
  std::vector<Array> inputs, outputs;
  std::optional<Array> scales, length, offsets, mask;
  int axis = -1;
  double scale = 1;
  bool causal = false;
  softfold::Empty empty = softfold::Empty::zero;
  softfold::Rung rung = softfold::Rung::automatic;
  softfold::MergeOptions merge;
  OwnOptions own;

  bool is_merge() const { return op == Op::merge_states || op == Op::merge_attention || op == Op::merge_blocks; }
  std::vector<Array*> operands();
};

Problem make_problem(const RowCase& c, Layout layout = Layout::contiguous);

/// Views of every operand, at the operands' own memory or at copies of it (`bases`, in the order of operands()).
struct Bound {
  std::vector<View> inputs, outputs;
  softfold::RowOptions rows;
  softfold::MergeOptions merge;
  OwnOptions own;
};
Bound bind(Problem& p);
Bound bind(Problem& p, const std::vector<unsigned char*>& bases, softfold::Device device);

/// A case of the list: a row problem, a merge, or an operation with options of its own.
struct Case {
  std::string name;
  std::optional<RowCase> rows;
  int merge = -1;  ///< which of the merge problems, if it is one
  int own = -1;    ///< which of the operations with options of their own
  Problem make(Layout layout = Layout::contiguous) const;
};

const std::vector<Case>& cases();

/// FNV-1a of all outputs' elements, in order.
std::uint64_t hash_of_outputs(const Problem& p);

}  // namespace softfold_test
