// sample by a block or a cluster of blocks a row: what its launches need, for all who leave rows to it.
#pragma once

#include "cuda/launch.hpp"
#include "cuda/states.hpp"
#include "softfold/fold/logsumexp.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// How many of a call's rows are left to it.
enum class RowsLeft { all, few };

/// The rows' trees, null where they have room elsewhere.
fold::LogSumExp<float>::State* lay_out_sample_rows(const SampleProblem& p, Parts& parts, RowsLeft expected);

/// left: a row, 0 where it has been drawn already, on the device; null: none has. expected: as they were laid out.
void launch_sample_rows(const SampleProblem& p, fold::LogSumExp<float>::State* trees, const unsigned* left,
                        RowsLeft expected, Stream stream);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
