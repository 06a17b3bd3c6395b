// softmax and log_softmax: what each one-read kernel takes, and how it is launched.
#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/softmax_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 0x7FFFFFFF;

const char* refuses_rung(const RowProblem& p) {
  return p.rung == Rung::automatic || p.rung == Rung::fused ? nullptr : "another rung is asked for";
}

const char* refuses_warp_rows(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p)) return why;
  if (p[Slot::offsets].given) return "ragged rows have no common length";
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= kMostBlocks) return "more rows than a grid has";
  return refuses_vectors(p);
}

template <class E, int kLanes>
void launch_warp_rows(const RowProblem& p, cudaStream_t stream) {
  const int per_block = kThreads / kLanes;
  const Grid grid{(p.rows + per_block - 1) / per_block, kThreads};
  if (p.op == Op::log_softmax) {
    launch("softmax_warp_rows_any", softmax_warp_rows_any<E, kLanes, true>, grid, stream, p);
  } else {
    launch("softmax_warp_rows_any", softmax_warp_rows_any<E, kLanes, false>, grid, stream, p);
  }
}

void run_warp_rows(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const cudaStream_t stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.n <= 128) return launch_warp_rows<E, 4>(p, stream);
    if (p.n <= 256) return launch_warp_rows<E, 8>(p, stream);
    if (p.n <= 512) return launch_warp_rows<E, 16>(p, stream);
    launch_warp_rows<E, 32>(p, stream);
  });
}

const char* refuses_cluster_row(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p)) return why;
  if (p[Slot::offsets].given) return "ragged rows have no common length";
  if (p.n > 256 * lift::kChunk) return "a row is longer than a cluster holds (262144)";
  if (p.rows >= kMostBlocks / 16) return "more rows than a grid has";
  return refuses_vectors(p);
}

void run_cluster_row(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Spread spread = spread_row(p.rows, lift::chunk_count(p.n), traits_of(device.device()));
  const Grid grid{p.rows * spread.blocks, spread.warps * 32, spread.blocks};
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.op == Op::log_softmax) {
      launch("softmax_cluster_row_any", softmax_cluster_row_any<E, true>, grid, stream_of(context), p);
    } else {
      launch("softmax_cluster_row_any", softmax_cluster_row_any<E, false>, grid, stream_of(context), p);
    }
  });
}

}  // namespace

const RowKernel softmax_warp_rows_any_kernel{"softmax_warp_rows_any", refuses_warp_rows, run_warp_rows, nullptr};
const RowKernel softmax_cluster_row_any_kernel{"softmax_cluster_row_any", refuses_cluster_row, run_cluster_row,
                                               nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
