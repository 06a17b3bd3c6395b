// softmax_grid_few: what it takes, and how it is launched.
#include "cuda/softmax_few.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/states.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured: shorter rows are faster by a block or a cluster a row.
constexpr std::int64_t kShortest = 64 * lift::kChunk;

/// Blocks of a row whose nodes a warp merges.
constexpr std::int64_t kMostMerged = 256;

/// Warps of a block: the fewest, a power of two, of which one block a processor holds all chunks, or else two; more
/// where a row's blocks can then wait for each other's nodes one by one.
int warps_for_few(const RowProblem& p, const DeviceTraits& device) {
  const std::int64_t chunks = lift::chunk_count(p.n);
  const bool watch = chunks <= kMostWatched * kFewWarps;
  const auto too_few = [&](int warps) {
    const std::int64_t blocks = ceil_div(chunks, warps);
    return p.rows * blocks > device.processors || blocks > kMostMerged || (watch && blocks > kMostWatched);
  };
  int warps = 1;
  while (warps < kFewWarps && too_few(warps)) warps *= 2;
  return warps;
}

const char* refuses_grid_few(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  if (p.n <= kShortest) return "a row is short enough for a block or a cluster";
  if (const char* why = refuses_plain(p)) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  const std::int64_t chunks = lift::chunk_count(p.n), blocks = ceil_div(chunks, kFewWarps);
  if (p.rows * blocks > kFewBlocks * traits.processors) return "more rows than the device holds at a time";
  if (blocks > kMostMerged) return "a row of more blocks than a warp merges";
  if (clusters_hold(p)) return "so few rows that clusters, which are faster, hold them at once";
  return nullptr;
}

/// The call's workspace.
FewShare lay_out_few(const RowProblem& p, int warps, char* memory, std::size_t& bytes) {
  const std::int64_t blocks = ceil_div(lift::chunk_count(p.n), warps);
  Parts parts(memory);
  FewShare share{{parts.take<lift::Node>(p.rows * blocks), parts.take<double>(p.rows * blocks)},
                 parts.take<unsigned>(p.rows * kArrivedApart),
                 static_cast<int>(blocks)};
  bytes = parts.used();
  return share;
}

std::size_t few_workspace(const RowProblem& p, const Context&) {
  std::size_t bytes = 0;
  lay_out_few(p, warps_for_few(p, traits_of(DeviceOf(p[Slot::x].data).device())), nullptr, bytes);
  return bytes;
}

void run_grid_few(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const int warps = warps_for_few(p, traits_of(device.device()));
  const Scratch scratch(few_workspace(p, context), context);
  std::size_t bytes = 0;
  const FewShare share = lay_out_few(p, warps, scratch.data(), bytes);
  const PlainRows rows = plain_rows(p);
  const Grid grid{p.rows * share.blocks, warps * 32, 1, 0, true};
  const Stream stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.op == Op::log_softmax) {
      launch("softmax_grid_few", softmax_grid_few<E, true>, grid, stream, rows, share);
    } else {
      launch("softmax_grid_few", softmax_grid_few<E, false>, grid, stream, rows, share);
    }
  });
}

}  // namespace

const RowKernel softmax_grid_few_kernel{"softmax_grid_few", refuses_grid_few, run_grid_few, few_workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
