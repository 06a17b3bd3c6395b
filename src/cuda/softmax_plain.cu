// softmax and log_softmax of plain problems: how the kernels are launched.
#include "cuda/softmax_plain.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 0x7FFFFFFF;

const char* refuses_rung(const RowProblem& p) {
  return p.rung == Rung::automatic || p.rung == Rung::fused ? nullptr : "another rung is asked for";
}

PlainRows plain_rows(const RowProblem& p) {
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  const std::int64_t x_stride = p.outer_rank == 0 ? 0 : x.strides[0], y_stride = p.outer_rank == 0 ? 0 : y.strides[0];
  const std::int64_t bytes = p.n * static_cast<std::int64_t>(size_of(x.dtype));
  return {x.data,   y.data, x.data, x.data + (p.rows - 1) * x_stride + bytes, x_stride,
          y_stride, p.rows, p.n,    fold::make_scale<float>(p.scale),         p.empty,
          0,        false};
}

const char* refuses_warp_rows(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p)) return why;
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= kMostBlocks) return "more rows than a grid has";
  return refuses_plain(p);
}

template <class E, int kLanes>
void launch_warp_rows(const RowProblem& p, cudaStream_t stream) {
  constexpr int rows_per_block = kThreads / kLanes, resident = sizeof(E) == 4 ? 3 : 4;
  using Place = Landing<E, kLanes>;
  const Grid grid{(p.rows + rows_per_block - 1) / rows_per_block, kThreads, 1, rows_per_block * Place::kBytes};
  PlainRows rows = plain_rows(p);
  rows.joined =
      p.n == Place::kSlots && rows.x_stride == p.n * Place::kSize && reinterpret_cast<std::uintptr_t>(rows.x) % 16 == 0;
  rows.pitch = rows.joined ? static_cast<int>(rows.x_stride) : Place::kBytes;
  if (p.op == Op::log_softmax) {
    launch("softmax_warp_rows", softmax_warp_rows<E, kLanes, true, resident>, grid, stream, rows);
  } else {
    launch("softmax_warp_rows", softmax_warp_rows<E, kLanes, false, resident>, grid, stream, rows);
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
  if (p.n > 256 * lift::kChunk) return "a row is longer than a cluster holds (262144)";
  if (p.rows >= kMostBlocks / 16) return "more rows than a grid has";
  return refuses_plain(p);
}

void run_cluster_row(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Spread spread = spread_row(p.rows, lift::chunk_count(p.n), traits_of(device.device()));
  Grid grid{p.rows * spread.blocks, spread.warps * 32, spread.blocks};
  const PlainRows rows = plain_rows(p);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    grid.shared_bytes = spread.warps * Landing<E, 32>::kBytes;
    if (p.op == Op::log_softmax) {
      launch("softmax_cluster_row", softmax_cluster_row<E, true>, grid, stream_of(context), rows);
    } else {
      launch("softmax_cluster_row", softmax_cluster_row<E, false>, grid, stream_of(context), rows);
    }
  });
}

}  // namespace

const RowKernel softmax_warp_rows_kernel{"softmax_warp_rows", refuses_warp_rows, run_warp_rows, nullptr};
const RowKernel softmax_cluster_row_kernel{"softmax_cluster_row", refuses_cluster_row, run_cluster_row, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
