// Long rows and whole-row results of plain problems: which kernels follow each other.
#include "cuda/softmax_long.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/fold_half.cuh"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using State = fold::LogSumExp<float>::State;

const char* refuses_rung(const RowProblem& p, Rung rung) {
  return p.rung == Rung::automatic || p.rung == rung ? nullptr : "another rung is asked for";
}

/// Blocks of softmax_grid_row that the launch bounds allow on a processor.
constexpr int kGridBlocks = 3;

/// Measured: with fewer rows in flight their exchanges cost more than a second read.
constexpr int kFewestRows = 3;

/// Groups of blocks that run at once, and blocks in each.
GridShare share_rows(const RowProblem& p, const DeviceTraits& device) {
  const int blocks = static_cast<int>(ceil_div(lift::chunk_count(p.n), kGridWarps));
  const std::int64_t fit = device.processors * kGridBlocks / blocks;
  return {nullptr, nullptr, static_cast<int>(std::min(fit, p.rows)), blocks};
}

const char* refuses_grid_row(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p, Rung::fused)) return why;
  if (const char* why = refuses_plain(p)) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  const std::int64_t blocks = ceil_div(lift::chunk_count(p.n), kGridWarps);
  if (blocks * kFewestRows > traits.processors * kGridBlocks)
    return "fewer than three rows fit on the device at a time: two reads are faster";
  return nullptr;
}

std::size_t grid_workspace(const RowProblem& p, const Context&) {
  const GridShare share = share_rows(p, traits_of(DeviceOf(p[Slot::x].data).device()));
  return static_cast<std::size_t>(share.groups) * kRowsInFlight * static_cast<std::size_t>(share.blocks) *
             sizeof(State) +
         static_cast<std::size_t>(p.rows) * sizeof(unsigned);
}

void run_grid_row(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(grid_workspace(p, context), context);
  GridShare share = share_rows(p, traits_of(device.device()));
  share.nodes = reinterpret_cast<State*>(scratch.data());
  share.arrived = reinterpret_cast<unsigned*>(share.nodes + share.groups * kRowsInFlight * share.blocks);
  check(cudaMemsetAsync(share.arrived, 0, static_cast<std::size_t>(p.rows) * sizeof(unsigned), stream_of(context)),
        "softmax_grid_row");
  const PlainRows rows = plain_rows(p);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const Grid grid{share.groups * share.blocks, kGridWarps * 32, 1,
                    kGridWarps * (kWaitingBytes + Landing<E, 32>::kBytes), true};
    if (p.op == Op::log_softmax) {
      launch("softmax_grid_row", softmax_grid_row<E, true>, grid, stream_of(context), rows, share);
    } else {
      launch("softmax_grid_row", softmax_grid_row<E, false>, grid, stream_of(context), rows, share);
    }
  });
}

const char* refuses_tiles(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p, Rung::tiled)) return why;
  if (p.n == 0) return "rows of no elements";
  if (p.rows * lift::chunk_count(p.n) >= std::int64_t{0x7FFFFFFF} * 8) return "more chunks than a grid has";
  return refuses_plain(p);
}

std::size_t tiles_workspace(const RowProblem& p, const Context&) { return state_bytes<State>(p); }

/// The states of all rows' chunks.
template <class E>
void fold_plain(const RowProblem& p, const PlainRows& rows, State* states, Stream stream) {
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (p.n <= 512 || (sizeof(E) == 2 && p.n < lift::kChunk)) {
    PlainRows to = rows;
    to.y = reinterpret_cast<char*>(states);
    RowProblem fold_only = p;
    fold_only.op = Op::state;
    return launch_warp_rows(fold_only, to, stream);
  }
  if constexpr (sizeof(E) == 2) {
    if (rows.factor.plain) {
      return launch("fold_half_tiles", fold_half_tiles<E>, {ceil_div(p.rows * chunks, kHalfChunks), kHalfThreads},
                    stream, rows, chunks, states);
    }
  }
  constexpr int runs = kFoldRuns<E>;
  const Grid grid{ceil_div(p.rows * chunks, 8 * runs), 256, 1, 8 * runs * Landing<E, 32>::kBytes};
  launch("fold_tiles", fold_tiles<E>, grid, stream, rows, chunks, states);
}

/// logsumexp and state from the chunks' states: levels of the tree while a row has more of them than one warp merges.
void write_results(const RowProblem& p, State* states, Stream stream) {
  constexpr std::int64_t kMostNodes = 256;
  std::int64_t count = lift::chunk_count(p.n);
  while (count > kMostNodes) {
    const std::int64_t next = ceil_div(count, 32);
    State* to = states + p.rows * count;
    launch("merge_nodes", merge_nodes<fold::LogSumExp<float>>, warps_for(p.rows * next), stream, states, count, to,
           next, p.rows * next);
    states = to;
    count = next;
  }
  const int left = static_cast<int>(count);
  if (left <= kFewNodes) {
    const Grid grid{ceil_div(p.rows, kThreads), kThreads};
    launch("write_merged_results", write_merged_results<true>, grid, stream, p, states, left);
  } else {
    launch("write_merged_results", write_merged_results<false>, warps_for(p.rows), stream, p, states, left);
  }
}

void run_tiles(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(tiles_workspace(p, context), context);
  const Stream stream = stream_of(context);
  const PlainRows rows = plain_rows(p);
  const std::int64_t chunks = lift::chunk_count(p.n);
  auto* states = reinterpret_cast<State*>(scratch.data());
  with_element(p[Slot::x].dtype, [&]<class E>() {
    fold_plain<E>(p, rows, states, stream);
    if (p.op != Op::softmax && p.op != Op::log_softmax) return write_results(p, states, stream.following());
    const State* roots = merge_levels<fold::LogSumExp<float>>(p, states, stream);
    const Grid grid{ceil_div(p.rows * chunks, 8), 256, 1, 8 * Landing<E, 32>::kBytes};
    if (p.op == Op::softmax)
      return launch("write_tiles", write_tiles<E, false>, grid, stream.following(), rows, chunks, roots);
    launch("write_tiles", write_tiles<E, true>, grid, stream.following(), rows, chunks, roots);
  });
}

}  // namespace

void fold_plain_chunks(const RowProblem& p, State* states, Stream stream) {
  with_element(p[Slot::x].dtype, [&]<class E>() { fold_plain<E>(p, plain_rows(p), states, stream); });
}

const RowKernel softmax_grid_row_kernel{"softmax_grid_row", refuses_grid_row, run_grid_row, grid_workspace};
const RowKernel softmax_two_reads_kernel{"softmax_two_reads", refuses_tiles, run_tiles, tiles_workspace};
const RowKernel fold_tiles_kernel{"fold_tiles", refuses_tiles, run_tiles, tiles_workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
