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
/// About as many chunks as clusters of 16-warp blocks hold on the device at one time.
constexpr std::int64_t kChunksAtOnce = 4096;

const char* refuses_rung(const RowProblem& p) {
  return p.rung == Rung::automatic || p.rung == Rung::fused ? nullptr : "another rung is asked for";
}

const char* refuses_warp_rows(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p)) return why;
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= kMostBlocks) return "more rows than a grid has";
  return refuses_plain(p);
}

template <class E, int kLanes>
void launch_warp_rows(const RowProblem& p, const PlainRows& plain, cudaStream_t stream) {
  constexpr int rows_per_block = kThreads / kLanes, resident = sizeof(E) == 4 ? 3 : 4;
  using Place = Landing<E, kLanes>;
  constexpr int landed = rows_per_block * kRowRuns<E>;
  const Grid grid{(p.rows + landed - 1) / landed, kThreads, 1, landed * Place::kBytes};
  PlainRows rows = plain;
  rows.joined = rows.joined && p.n == Place::kSlots && rows.x_stride == p.n * Place::kSize;
  rows.pitch = rows.joined ? static_cast<int>(rows.x_stride) : Place::kBytes;
  const auto go = [&](auto kernel) { launch("softmax_warp_rows", kernel, grid, stream, rows); };
  switch (p.op) {
    case Op::softmax: return go(softmax_warp_rows<E, kLanes, Leaves::softmax, resident>);
    case Op::log_softmax: return go(softmax_warp_rows<E, kLanes, Leaves::log_softmax, resident>);
    default: return go(softmax_warp_rows<E, kLanes, Leaves::state, resident>);
  }
}

void run_warp_rows(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  launch_warp_rows(p, plain_rows(p), stream_of(context));
}

const char* refuses_cluster_row(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p)) return why;
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (chunks > 2 * kWarpsPerBlock && p.rows > kChunksAtOnce / chunks)
    return "more rows than clusters run at once: a grid that stays is faster";
  if (p.n > 256 * lift::kChunk) return "a row is longer than a cluster holds (262144)";
  if (p.rows >= kMostBlocks / 16) return "more rows than a grid has";
  return refuses_plain(p);
}

template <class E, bool kEngine>
void launch_cluster_row(const RowProblem& p, const Spread& spread, cudaStream_t stream) {
  const Grid grid{p.rows * spread.blocks, spread.warps * 32, spread.blocks,
                  kEngine ? spread.warps * Landing<E, 32>::kBytes : 0};
  const PlainRows rows = plain_rows(p);
  if (p.op == Op::log_softmax) {
    launch("softmax_cluster_row", softmax_cluster_row<E, true, kEngine>, grid, stream, rows);
  } else {
    launch("softmax_cluster_row", softmax_cluster_row<E, false, kEngine>, grid, stream, rows);
  }
}

void run_cluster_row(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Spread spread = spread_row(p.rows, lift::chunk_count(p.n), traits_of(device.device()));
  const cudaStream_t stream = stream_of(context);
  switch (p[Slot::x].dtype) {
    case DType::bfloat16: return launch_cluster_row<fold::BFloat16, false>(p, spread, stream);
    case DType::float16: return launch_cluster_row<fold::Float16, false>(p, spread, stream);
    default:  // measured: the engine is faster in a block alone, ordinary loads in a cluster
      if (spread.blocks == 1) return launch_cluster_row<float, true>(p, spread, stream);
      launch_cluster_row<float, false>(p, spread, stream);
  }
}

}  // namespace

PlainRows plain_rows(const RowProblem& p) {
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  const auto stride = [&](const Operand& o) { return p.outer_rank == 0 || !o.given ? 0 : o.strides[0]; };
  const auto scale = fold::make_scale<float>(p.scale);
  const std::int64_t bytes = p.n * static_cast<std::int64_t>(size_of(x.dtype));
  const bool on_vectors = reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && stride(x) % 16 == 0;
  return {x.data,    y.given ? y.data : nullptr,
          x.data,    x.data + (p.rows - 1) * stride(x) + bytes,
          stride(x), stride(y),
          p.rows,    p.n,
          scale,     lift::Factor(scale.c),
          p.empty,   0,
          on_vectors};
}

void launch_warp_rows(const RowProblem& p, const PlainRows& rows, cudaStream_t stream) {
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.n <= 128) return launch_warp_rows<E, 4>(p, rows, stream);
    if (p.n <= 256) return launch_warp_rows<E, 8>(p, rows, stream);
    if (p.n <= 512) return launch_warp_rows<E, 16>(p, rows, stream);
    launch_warp_rows<E, 32>(p, rows, stream);
  });
}

const RowKernel softmax_warp_rows_kernel{"softmax_warp_rows", refuses_warp_rows, run_warp_rows, nullptr};
const RowKernel softmax_cluster_row_kernel{"softmax_cluster_row", refuses_cluster_row, run_cluster_row, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
