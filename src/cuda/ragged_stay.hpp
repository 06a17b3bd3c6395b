// Ragged rows for which clusters stay (softmax_length.cuh).
#pragma once

#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The longest of them, and so all shorter ones; 0: none.
struct RaggedStay {
  std::int64_t longest = 0;
  bool of_queue = false;  ///< of those that kernels before leave; else of all rows
  constexpr bool takes(std::int64_t n) const { return n > 0 && n <= longest; }
};

struct RaggedQueue;

/// Mean length up to which ragged_tiles is the fastest for most rows of softmax and log_softmax; what it leaves as too
/// long is a queue's. Measured for uniform and exponential lengths.
constexpr std::int64_t most_mean_of_tiles(std::size_t size) { return size == 4 ? 9000 : 20000; }

/// None where clusters cannot take rows, or are as slow or slower than others for such as these on average.
RaggedStay stays_for_ragged(const RowProblem& p);
/// softmax or log_softmax of these rows; those that are longer go to the queue, which has room for all rows. source: if
/// of_queue.
void launch_ragged_stays(const RowProblem& p, const RaggedStay& stay, const RaggedQueue& source,
                         const RaggedQueue& queue, Stream stream);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
