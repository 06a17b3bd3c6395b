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

constexpr int kBlock = 256;
/// Mean lengths up to which 8 lanes, or a warp, take a row.
constexpr std::int64_t kMeanOfLanes = 128, kMeanOfWarp = 1024;

const char* refuses(const RowProblem& p, const Context&) {
  if (p.rung != Rung::automatic) return "another rung is asked for";
  if (!p[Slot::offsets].given) return "rows are not ragged";
  if (p.rows >= 0x7FFFFFFF) return "more rows than a grid has";
  return refuses_vectors(p);
}

template <class E, RaggedLeaves kLeaves>
void launch_rows(const RowProblem& p, cudaStream_t stream) {
  const std::int64_t mean = p.ragged_elements / std::max<std::int64_t>(p.rows, 1);
  if constexpr (kLeaves != RaggedLeaves::row) {
    if (mean <= kMeanOfLanes)
      return launch("ragged_warp_rows", ragged_warp_rows<E, kLeaves, 8>, {ceil_div(p.rows, kBlock / 8), kBlock}, stream,
                    p);
  }
  if (mean <= kMeanOfWarp)
    return launch("ragged_warp_rows", ragged_warp_rows<E, kLeaves, 32>, {ceil_div(p.rows, kBlock / 32), kBlock}, stream,
                  p);
  launch("ragged_block_row", ragged_block_row<E, kLeaves>, {p.rows, kBlock}, stream, p);
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const cudaStream_t stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    switch (p.op) {
      case Op::softmax: return launch_rows<E, RaggedLeaves::softmax>(p, stream);
      case Op::log_softmax: return launch_rows<E, RaggedLeaves::log_softmax>(p, stream);
      default: return launch_rows<E, RaggedLeaves::row>(p, stream);
    }
  });
}

}  // namespace

const RowKernel softmax_ragged_rows_kernel{"softmax_ragged_rows", refuses, run, nullptr};
const RowKernel fold_ragged_rows_kernel{"fold_ragged_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
