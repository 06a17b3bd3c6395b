// Rows whose axes memory does not hold as one: read piece by piece through a Stream, finished along their last axis.
#pragma once

#include "array.hpp"

namespace softfold::python {

/// op on x and out with their `folded` last axes, the bits those of a row that lies in one piece. `states`: given for
/// the finishing operations. False for an operation that has no such way.
bool run_in_pieces(Op op, const Tensor& x, const Tensor& states, const Tensor& out, int folded,
                   const RowOptions& options, const Context& context);

}  // namespace softfold::python
