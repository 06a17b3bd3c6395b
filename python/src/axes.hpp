// SciPy's `axis`: None, a number or several. Several axes become one where memory allows: kept axes first, the folded
// ones merged into the last.
#pragma once

#include "array.hpp"

namespace softfold::python {

struct Axes {
  int rank = 0;   ///< of x
  int count = 0;  ///< how many are folded
  std::array<bool, kMaxRank> folded{};

  int kept() const { return rank - count; }
  /// The folded axis where there is exactly one.
  int only() const;
  /// Whether operands can go to the library as they are.
  bool is_plain() const { return count == 1; }
};

/// Refuses axes out of range, named twice, or none at all. A 0-dimensional x is a row of one element.
Axes parse_axes(nb::handle axis, int rank);

/// One axis, for an operation that refuses those that its input lacks.
int axis_of(nb::handle axis);

/// `t`, which broadcasts to x's shape, with the folded axes behind the kept ones.
Tensor move_folded(const Tensor& t, const Tensor& x, const Axes& axes, const char* name);

/// Makes the last `count` axes one. False, and nothing changed, if strides do not allow that.
bool join_last(Tensor& t, int count);

/// A per-row operand (`trailing` more axes behind) in the shape of the kept axes: the folded ones, of size 1 if they
/// are there at all, are dropped.
void drop_folded(Tensor& t, const Axes& axes, int trailing);

/// The shape of a per-row result.
nb::tuple row_shape(const Tensor& x, const Axes& axes, bool keepdims, int trailing);

}  // namespace softfold::python
