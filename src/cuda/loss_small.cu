// cross_entropy_small: which losses it takes, and how many blocks have them.
#include "cuda/loss_add.cuh"
#include "cuda/loss_small.cuh"
#include "cuda/small_rows.hpp"

#include "cuda/generic_items.cuh"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured: elements of all rows that one cluster is faster for than a grid, which leaves losses to another launch.
std::int64_t most_of_cluster(const LossProblem& p) { return p.n <= 128 ? 20000 : 32768; }
/// Measured: those that this is faster for than folding tiles of vectors.
std::int64_t most_elements(const LossProblem& p) {
  if (p.n <= 5) return std::int64_t{1} << 62;
  if (p.n <= 32) return 1 << 18;
  if (p.n <= 128) return 3 << 17;
  return most_of_cluster(p);
}

bool has_clusters(const DeviceOf& device) {
  return traits_of(device.device()).largest_cluster >= SmallLossSums::kMostBlocks;
}
bool by_one_cluster(const LossProblem& p, const DeviceOf& device) {
  return adds_rows(p) && p.rows <= SmallLossSums::kMostRows && p.rows * p.n <= most_of_cluster(p) &&
         has_clusters(device);
}

const char* refuses(const LossProblem& p, const Context&) {
  if (const char* why = refuses_losses(p)) return why;
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows >= 0x7FFFFFFF / 32) return "more rows than a grid has";
  return p.rows * p.n <= most_elements(p) ? nullptr : "so many elements are faster by other kernels";
}

/// What a grid leaves of rows, and add_losses of chunks of them.
struct Sums {
  RowLosses rows{};
  RowsSum *losses = nullptr, *targets = nullptr;
  CounterWord* done = nullptr;

  Sums(const LossProblem& p, Parts& parts) {
    if (!adds_rows(p)) return;
    const std::size_t sums = state_bytes<RowsSum>(rows_as_row(p));
    done = parts.take<CounterWord>(1);
    rows.losses = parts.take<double>(p.rows), losses = parts.bytes_for<RowsSum>(sums);
    if (p.reduction == Reduction::mean)
      rows.targets = parts.take<RowsSum>(p.rows), targets = parts.bytes_for<RowsSum>(sums);
  }
};

std::size_t workspace(const LossProblem& p, const Context&) {
  Parts parts(nullptr);
  Sums(p, parts);
  return parts.used();
}

SmallLosses small_losses(const LossProblem& p) {
  const auto of = [&](const Operand& o) -> SmallLosses::Operand {
    if (!o.given) return {};
    return {o.data, {p.outer_rank == 0 ? 0 : o.strides[0]}, o.axis_stride, o.dtype, true};
  };
  return {small_rows(p),
          p.n,
          p.ignore_index,
          p.scale,
          p.outer_rank,
          p.reduction,
          p.empty,
          of(p[Slot::x]),
          of(p[Slot::states]),
          of(p[LossSlot::targets]),
          of(p[LossSlot::weight]),
          of(p[LossSlot::loss]),
          of(p[LossSlot::log_probability]),
          of(p[LossSlot::status])};
}

void run(const LossProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  Parts parts(scratch.data());
  const Sums sums(p, parts);
  const Stream stream = stream_of(context);
  const bool alone = by_one_cluster(p, device);
  clear_status(p, stream);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_small_shape<lift::kPerLane>(p.n, [&]<int kLanes, int kCount>() {
      const Grid grid = alone ? SmallLossSums::cluster(p, ceil_div(p.rows, 32 / kLanes)) : small_grid<kLanes>(p.rows);
      launch("cross_entropy_small", cross_entropy_small<E, kLanes, kCount>, grid, stream, small_losses(p),
             alone ? RowLosses{} : sums.rows);
    });
  });
  if (alone || !adds_rows(p)) return;
  launch("add_losses", add_losses, add_losses_grid(p), stream.following(), p, sums.rows, sums.losses, sums.targets,
         RowsTotal{}, sums.done);
  if (lift::chunk_count(p.rows) > kMostChunks) put_sum(p, sums.losses, sums.targets, {}, stream.following());
}

}  // namespace

bool finishes_few(const LossProblem& p) {
  return adds_rows(p) && p.rows <= SmallLossSums::kMostWarps && has_clusters(DeviceOf(p[Slot::x].data));
}
void finish_few(const LossProblem& p, const RowNodes& nodes, const Stream& stream, bool early) {
  launch("finish_few_losses", finish_few_losses, SmallLossSums::cluster(p, p.rows), stream, small_losses(p), nodes,
         early);
}

const LossKernel cross_entropy_small_kernel{"cross_entropy_small", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
