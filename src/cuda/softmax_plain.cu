// softmax and log_softmax of plain problems: how the kernels are launched.
#include "cuda/softmax_cluster.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr std::int64_t kMostBlocks = 0x7FFFFFFF;
/// About as many chunks as clusters of 16-warp blocks hold on the device at one time.
constexpr std::int64_t kChunksAtOnce = 4096;
/// Threads that blocks of softmax for few rows may have, which clusters_hold() does not take.
constexpr int kFewThreads = 288;
/// Warps of those which it does: as fast as any, by up to a fifth.
constexpr int kWarpsOfFew = 8;

const char* refuses_rung(const RowProblem& p) { return refuses_rung(p.rung, Rung::fused); }

const char* refuses_warp_rows(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p)) return why;
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 4 >= kMostBlocks) return "more rows than a grid has";
  return refuses_plain(p);
}

template <class E, int kLanes, Leaves kLeaves>
void launch_warp_rows_by(const PlainRows& plain, Stream stream) {
  using Place = Landing<E, kLanes>;
  using Shape = RowShape<E, kLeaves>;
  constexpr int sets = Shape::kWarps * Shape::kRuns, landed = sets * (32 / kLanes);
  PlainRows rows = plain;
  rows.joined = rows.joined && rows.n == Place::kSlots && rows.x_stride == rows.n * Place::kSize;
  rows.pitch = rows.joined ? static_cast<int>(rows.x_stride) : Place::kBytes;
  int bytes = sets * Place::kWarpBytes;
  if (rows.joined && kLeaves == Leaves::softmax) bytes = bytes_of_blocks(Shape::kBlocks, bytes);
  const Grid grid{(rows.rows + landed - 1) / landed, 32 * Shape::kWarps, 1, bytes};
  launch("softmax_warp_rows", softmax_warp_rows<E, kLanes, kLeaves>, grid, stream, rows);
}
template <Leaves kLeaves>
void launch_warp_rows(const PlainRows& rows, DType dtype, Stream stream) {
  with_element(dtype, [&]<class E>() {
    if (rows.n <= 128) return launch_warp_rows_by<E, 4, kLeaves>(rows, stream);
    if (rows.n <= 256) return launch_warp_rows_by<E, 8, kLeaves>(rows, stream);
    if (rows.n <= 512) return launch_warp_rows_by<E, 16, kLeaves>(rows, stream);
    launch_warp_rows_by<E, 32, kLeaves>(rows, stream);
  });
}

void run_warp_rows(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const DType dtype = p[Slot::x].dtype;
  if (p.op == Op::log_softmax) return launch_warp_rows<Leaves::log_softmax>(plain_rows(p), dtype, stream_of(context));
  launch_warp_rows<Leaves::softmax>(plain_rows(p), dtype, stream_of(context));
}

/// Measured: float32 rows of whole blocks of 16 chunks, up to 128.
bool takes_wide_cluster(const RowProblem& p) {
  return p[Slot::x].dtype == DType::float32 && p.n % (16 * lift::kChunk) == 0 && p.n <= 128 * lift::kChunk;
}

const char* refuses_cluster_row(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p)) return why;
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (chunks > 2 * kWarpsPerBlock && p.rows > kChunksAtOnce / chunks && !takes_wide_cluster(p))
    return "more rows than clusters run at once: a grid that stays is faster";
  const char* why = refuses_plain(p);
  return why != nullptr ? why : refuses_one_cluster(p);
}

/// A row's blocks, of up to `warps` warps with kCount elements a lane.
template <int kCount>
Grid grid_of(const RowProblem& p, const DeviceTraits& device, int warps) {
  constexpr int groups = kCount / lift::kPerLane;  // chunks a warp
  return cluster_grid(p.rows, (lift::chunk_count(p.n) + groups - 1) / groups, device, warps);
}

/// kCount elements a lane, blocks of up to kThreads, where that is enough of kWarps; what kMinBlocks of them leave of
/// the registers.
template <class E, int kCount, int kThreads, int kMinBlocks, int kWarps = kThreads / 32>
void launch_cluster_row(const RowProblem& p, const DeviceTraits& device, Stream stream) {
  const Grid grid = grid_of<kCount>(p, device, kWarps);
  const PlainRows rows = plain_rows(p);
  const auto go = [&](auto kernel) { launch("softmax_cluster_row", kernel, grid, stream, rows); };
  if constexpr (kThreads != kFewThreads)
    if (p.op == Op::log_softmax) return go(softmax_cluster_row<E, Leaves::log_softmax, kCount, kThreads, kMinBlocks>);
  go(softmax_cluster_row<E, Leaves::softmax, kCount, kThreads, kMinBlocks>);
}

void run_cluster_row(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const DeviceTraits& traits = traits_of(device.device());
  const Stream stream = stream_of(context);
  const std::int64_t chunks = lift::chunk_count(p.n);
  const bool many = p.rows * chunks >= kChunksAtOnce;  // rows enough for blocks with few warps to fill the device
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if constexpr (sizeof(E) == 4) {
      if (many && chunks > 16 && chunks <= 32) return launch_cluster_row<E, 64, 512, 1>(p, traits, stream);
      if (many && chunks > 32 && takes_wide_cluster(p)) return launch_cluster_row<E, 128, 128, 3>(p, traits, stream);
    }
    if (!many && chunks > (p.op == Op::log_softmax ? 32 : 16) && chunks <= 128) {
      if (clusters_hold(p)) return launch_cluster_row<E, 32, 512, 2, kWarpsOfFew>(p, traits, stream);
      // Clusters of few warps may have a place all at once nevertheless.
      if (p.op == Op::softmax) return launch_cluster_row<E, 64, kFewThreads, 2, 4>(p, traits, stream);
    }
    launch_cluster_row<E, 32, 512, 2>(p, traits, stream);
  });
}

}  // namespace

bool clusters_hold(const RowProblem& p) {
  if (p.n > 128 * lift::kChunk || p.rows > kChunksAtOnce / std::max<std::int64_t>(lift::chunk_count(p.n), 1))
    return false;
  if (p.rows == 1) return true;
  const DeviceOf device(p[Slot::x].data);
  const DeviceTraits& traits = traits_of(device.device());
  bool holds = false;
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const auto find = [&](auto kernel) {
      const Grid grid = grid_of<32>(p, traits, kWarpsOfFew);
      return clusters_at_once("softmax_cluster_row", kernel, grid);
    };
    holds = p.rows <= (p.op == Op::log_softmax ? find(softmax_cluster_row<E, Leaves::log_softmax, 32, 512, 2>)
                                               : find(softmax_cluster_row<E, Leaves::softmax, 32, 512, 2>));
  });
  return holds;
}

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

const char* refuses_gradient(const RowProblem& p) {
  if (p.n == 0) return "rows of no elements";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  const char* why = refuses_plain(p);
  return why != nullptr ? why : refuses_one_cluster(p);
}

bool launch_gradient(const RowProblem& p, const PlainRows& rows, Stream stream, bool few_before) {
  const DeviceOf device(p[Slot::x].data);
  const DType dtype = p[Slot::x].dtype;
  if (is_odd_for_gradient(p)) {
    launch_odd_gradient(rows, dtype, stream);
  } else if (p.n <= lift::kChunk) {
    launch_warp_rows<Leaves::gradient>(rows, dtype, stream);
  } else if (blocks_for_gradient(p)) {
    launch_blocks_gradient(rows, dtype, stream);
  } else if (clusters_stay_for(p)) {
    launch_stays_gradient(rows, dtype, stream, few_before);
    return true;
  } else {
    with_element(dtype, [&]<class E>() {
      const Grid grid = cluster_grid(p.rows, lift::chunk_count(p.n), traits_of(device.device()));
      launch("softmax_cluster_row", softmax_cluster_row<E, Leaves::gradient, 32, 512, 2>, grid, stream, rows);
    });
  }
  return false;
}

const RowKernel softmax_warp_rows_kernel{"softmax_warp_rows", refuses_warp_rows, run_warp_rows, nullptr};
const RowKernel softmax_cluster_row_kernel{"softmax_cluster_row", refuses_cluster_row, run_cluster_row, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
