// Ragged rows for which clusters stay: softmax by ragged_units.cuh, log_softmax by softmax_length.cuh.
#pragma once

#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The longest that they take of all rows, and then of those that kernels before, or they themselves, have left on a
/// queue; and so all shorter ones. 0: none.
struct RaggedStay {
  std::int64_t of_all = 0, of_left = 0;
  constexpr bool given() const { return of_all > 0 || of_left > 0; }
};

struct RaggedQueue;

/// Warps of a block of ragged_units that take units.
constexpr int ragged_unit_warps(std::size_t size) { return size == 4 ? 11 : 15; }

/// Mean length up to which ragged_tiles is the fastest for most rows of log_softmax, and of softmax where ragged_units
/// cannot take them; what it leaves as too long is a queue's. Measured for uniform and exponential lengths.
constexpr std::int64_t most_mean_of_tiles(std::size_t size) { return size == 4 ? 9000 : 20000; }

/// None where clusters cannot take rows, or are as slow or slower than others for such as these on average.
RaggedStay stays_for_ragged(const RowProblem& p);
/// softmax or log_softmax of rows of up to `longest` elements, of all or, if it is given, of those on `source`. Longer
/// ones go to the queue `longer`, those that have to be taken exactly to `missed`; both
/// have room for all rows of the source.
void launch_ragged_stays(const RowProblem& p, std::int64_t longest, const RaggedQueue& source,
                         const RaggedQueue& longer, const RaggedQueue& missed, Stream stream);
void launch_ragged_units(const RowProblem& p, std::int64_t longest, const RaggedQueue& source,
                         const RaggedQueue& longer, const RaggedQueue& missed, Stream stream);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
