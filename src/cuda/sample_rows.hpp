// sample by clusters that keep a row in shared memory: what its launches need, for all who leave rows to it.
#pragma once

#include "cuda/launch.hpp"
#include "cuda/states.hpp"
#include "softfold/fold/logsumexp.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The rows' trees, null where they have room elsewhere. behind_draw: few rows are left to it.
fold::LogSumExp<float>::State* lay_out_sample_rows(const SampleProblem& p, Parts& parts, bool behind_draw = false);

/// left: a row, 0 where it has been drawn already, on the device; null: none has.
void launch_sample_rows(const SampleProblem& p, fold::LogSumExp<float>::State* trees, const unsigned* left,
                        Stream stream);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
