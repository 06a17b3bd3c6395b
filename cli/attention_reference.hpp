// Attention as it is written on paper, in float64: what `softfold attention --check` compares with.
#pragma once

#include "softfold/executor.hpp"
#include "softfold/options.hpp"

namespace softfold::cli {

/// How far a result is from the reference.
struct Checked {
  double largest_error = 0;  ///< infinite where one of the two alone is NaN or infinite
  double largest_value = 0;  ///< of the reference
};

/// Compares `out` with softmax(scores) v, a row of scores at a time, of operands that a plan has accepted. All views
/// are contiguous, on the host; every option counts but rung, lse and state. Rows of no sequence are left out.
Checked check_attention(const View& q, const View& k, const View& v, const View& out, const AttentionOptions& options,
                        Executor& executor);

}  // namespace softfold::cli
