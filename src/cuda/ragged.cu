// Ragged rows: what their kernels take, and how they are launched.
#include "cuda/ragged.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Elements for a warp, so that what it does once counts little, and for a block that looks for long rows.
constexpr std::int64_t kElementsOfWarp = 16384, kElementsOfBlock = 32768;
/// Mean length from which long rows are many enough to have blocks by the number of elements.
constexpr std::int64_t kMeanOfLong = 2048;

const char* refuses(const RowProblem& p, const Context&) {
  if (p.rung != Rung::automatic) return "another rung is asked for";
  if (!p[Slot::offsets].given) return "rows are not ragged";
  if (p.rows >= 0x3FFFFFFF) return "more rows than a grid has";
  return refuses_vectors(p);
}

/// For rows of this many elements on average; any other lengths are right, too.
RaggedSpread spread_rows(const RowProblem& p, int processors) {
  const std::int64_t mean = std::max<std::int64_t>(p.ragged_elements / std::max<std::int64_t>(p.rows, 1), 1);
  const std::int64_t blocks = std::int64_t{kRaggedBlocks} * processors;
  RaggedSpread spread{};
  const std::int64_t at_once = ceil_div(p.rows, blocks * kRaggedWarps);
  spread.warp_rows =
      static_cast<int>(std::clamp<std::int64_t>(kElementsOfWarp / mean, 1, std::min<std::int64_t>(at_once, 32)));
  spread.long_rows = mean < kMeanOfLong ? std::max<std::int64_t>(ceil_div(p.rows, blocks), 1)
                                        : std::max<std::int64_t>(kElementsOfBlock / mean, 1);
  spread.long_blocks = ceil_div(p.rows, spread.long_rows);
  return spread;
}

template <class E, RaggedLeaves kLeaves>
void launch_rows(const RowProblem& p, int processors, Stream stream) {
  if (p.rows == 0) return;
  const RaggedSpread spread = spread_rows(p, processors);
  const std::int64_t blocks = spread.long_blocks + ceil_div(p.rows, spread.warp_rows * kRaggedWarps);
  const int shared = kLeaves == RaggedLeaves::row ? 0 : kRaggedWarps * static_cast<int>(sizeof(RaggedParking));
  launch("ragged_rows", ragged_rows<E, kLeaves>, {blocks, 32 * kRaggedWarps, 1, shared}, stream, p, spread);
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const int processors = traits_of(device.device()).processors;
  const Stream stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    switch (p.op) {
      case Op::softmax: return launch_rows<E, RaggedLeaves::softmax>(p, processors, stream);
      case Op::log_softmax: return launch_rows<E, RaggedLeaves::log_softmax>(p, processors, stream);
      default: return launch_rows<E, RaggedLeaves::row>(p, processors, stream);
    }
  });
}

}  // namespace

const RowKernel softmax_ragged_rows_kernel{"softmax_ragged_rows", refuses, run, nullptr};
const RowKernel fold_ragged_rows_kernel{"fold_ragged_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
