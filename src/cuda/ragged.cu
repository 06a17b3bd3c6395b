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
RaggedSpread spread_rows(const RowProblem& p, const RaggedList& list, int processors) {
  const std::int64_t mean = std::max<std::int64_t>(p.ragged_elements / std::max<std::int64_t>(p.rows, 1), 1);
  const std::int64_t blocks = std::int64_t{kRaggedBlocks} * processors;
  RaggedSpread spread{};
  spread.list = list;
  const std::int64_t at_once = ceil_div(p.rows, blocks * kRaggedWarps);
  spread.warp_rows =
      static_cast<int>(std::clamp<std::int64_t>(kElementsOfWarp / mean, 1, std::min<std::int64_t>(at_once, 32)));
  spread.long_rows = mean < kMeanOfLong ? std::max<std::int64_t>(ceil_div(p.rows, blocks), 1)
                                        : std::max<std::int64_t>(kElementsOfBlock / mean, 1);
  spread.long_blocks = ceil_div(p.rows, spread.long_rows);
  return spread;
}

/// The list of long rows at `memory`; empty.
RaggedList list_at(const RowProblem& p, char* memory, Stream stream) {
  RaggedList list{};
  list.capacity = RaggedList::most_groups(p.ragged_elements);
  list.taken = reinterpret_cast<unsigned long long*>(memory);
  list.states = reinterpret_cast<RaggedList::State*>(memory + 16);
  list.groups = reinterpret_cast<RaggedList::Group*>(list.states + list.capacity);
  if (list.capacity > 0) check(cudaMemsetAsync(list.taken, 0, sizeof(*list.taken), stream), "ragged_rows");
  return list;
}

template <class E, RaggedLeaves kLeaves>
void launch_rows(const RowProblem& p, const RaggedSpread& spread, Stream stream) {
  const std::int64_t blocks = spread.long_blocks + ceil_div(p.rows, spread.warp_rows * kRaggedWarps);
  const int shared = kLeaves == RaggedLeaves::row ? 0 : kRaggedWarps * static_cast<int>(sizeof(RaggedParking));
  launch("ragged_rows", ragged_rows<E, kLeaves>, {blocks, 32 * kRaggedWarps, 1, shared}, stream, p, spread);
}

std::size_t workspace(const RowProblem& p, const Context&) {
  return RaggedList::most_groups(p.ragged_elements) > 0 ? RaggedList::bytes(p.ragged_elements) : 0;
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const int processors = traits_of(device.device()).processors;
  const Stream stream = stream_of(context);
  const Scratch scratch(workspace(p, context), context);
  const RaggedList list = list_at(p, scratch.data(), stream);
  const RaggedSpread spread = spread_rows(p, list, processors);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    switch (p.op) {
      case Op::softmax: launch_rows<E, RaggedLeaves::softmax>(p, spread, stream); break;
      case Op::log_softmax: launch_rows<E, RaggedLeaves::log_softmax>(p, spread, stream); break;
      default: launch_rows<E, RaggedLeaves::row>(p, spread, stream);
    }
    if (list.capacity == 0) return;
    const Grid grid{std::min<std::int64_t>(list.capacity, std::int64_t{3} * processors), 32 * kRaggedWarps};
    launch("ragged_long_fold", ragged_long_fold<E>, grid, stream.following(), p, list);
    launch("ragged_long_write", ragged_long_write<E>, grid, stream.following(), p, list);
  });
}

}  // namespace

const RowKernel softmax_ragged_rows_kernel{"softmax_ragged_rows", refuses, run, workspace};
const RowKernel fold_ragged_rows_kernel{"fold_ragged_rows", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
