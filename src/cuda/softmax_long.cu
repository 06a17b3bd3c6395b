// Long rows and whole-row results of plain problems: which kernels follow each other.
#include "cuda/softmax_long.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using State = fold::LogSumExp<float>::State;

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
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
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

/// Whether results are parked on their way, of a problem that refuses_tiles() lets pass.
bool is_apart(const RowProblem& p) { return p[Slot::y].given && refuses_plain(p) != nullptr; }

const char* refuses_tiles(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::tiled)) return why;
  if (p.n == 0) return "rows of no elements";
  if (p.rows * lift::chunk_count(p.n) >= std::int64_t{0x7FFFFFFF} * 8) return "more chunks than a grid has";
  const char* why = refuses_plain(p);
  return p[Slot::y].given && why != nullptr && refuses_apart(p) == nullptr ? nullptr : why;
}

std::size_t tiles_workspace(const RowProblem& p, const Context&) { return state_bytes<State>(p); }

/// The longest row of one run of slots: 16-bit rows of one chunk, float32 ones of up to 512 elements.
template <class E>
constexpr std::int64_t kLongestRun = sizeof(E) == 2 ? lift::kChunk : 512;

/// Measured: up to so many chunks are folded by a warp each before the warps of fold_slots have begun.
constexpr std::int64_t kFewChunks = 4096;
template <class E>
bool takes_slots(const RowProblem& p, const DeviceTraits& device) {
  const bool fits = device.shared_bytes >= kBlockBytes && (sizeof(E) == 2 || p.n <= kLongestRun<E>);
  const std::int64_t chunks = p.rows * lift::chunk_count(p.n);
  return fits && chunks > kFewChunks && chunks < RunTiles::kMostRuns;
}

/// How rows are cut. merges: the chunks of a tile are, unless rows lie end to end and are no whole tiles: their tiles
/// then lie across rows (measured: cut apart, float16 ones lose 5 percent).
template <class E, int kLanes>
RunTiles cut_rows(const PlainRows& rows, bool merges) {
  using At = Slots<E, kLanes>;
  RunTiles tiles{};
  const std::int64_t runs = rows.n / At::kSlots;
  tiles.rest = static_cast<int>(rows.n % At::kSlots);
  tiles.dense = tiles.rest == 0 && rows.joined && (rows.rows == 1 || rows.x_stride == rows.n * At::kSize);
  const bool within_rows = runs % At::kRuns == 0 || !tiles.dense;
  merges = merges && kMerges<E, kLanes> && within_rows &&
           rows.n <= std::int64_t{RowNodes::kMost} * RowNodes::kChunks * lift::kChunk;
  const std::int64_t nodes = merges ? runs / At::kRuns : 0, merged_runs = nodes * At::kRuns;
  const std::int64_t merged = rows.rows * nodes, others = rows.rows * (runs - merged_runs);
  const std::int64_t full = merged + ceil_div(others, At::kRuns);
  tiles.merged = static_cast<unsigned>(merged);
  tiles.full = static_cast<unsigned>(full);
  tiles.all = static_cast<unsigned>(full + (tiles.rest > 0 ? ceil_div(rows.rows, At::kRuns) : 0));
  tiles.runs = static_cast<unsigned>(runs);
  tiles.merged_runs = static_cast<unsigned>(merged_runs);
  tiles.others = static_cast<unsigned>(others);
  tiles.merged_tiles = Divisor(std::max<std::int64_t>(nodes, 1));
  tiles.other_runs = Divisor(std::max<std::int64_t>(runs - merged_runs, 1));
  return tiles;
}

/// The runs of kLanes lanes that p's rows are made of, to `to`; returns how many nodes of a row are merged.
template <class E, int kLanes>
std::int64_t launch_slots(const PlainRows& rows, const FoldResults& to, bool merges, const DeviceTraits& device,
                          Stream stream) {
  static_assert(!kMerges<E, kLanes> || Slots<E, kLanes>::kRuns == RowNodes::kChunks);
  RunTiles tiles = cut_rows<E, kLanes>(rows, merges);
  const std::int64_t blocks = std::min<std::int64_t>(tiles.all, device.processors);
  const int warps = static_cast<int>(std::min<std::int64_t>(ceil_div(tiles.all, blocks), kSlotWarps));
  tiles.looks_up = kLooksUp<E> && TermTable::fits(rows.factor.c);
  const Grid grid{blocks, warps * 32, 1, Places<E, kLanes>::kAll};
  launch("fold_slots", fold_slots<E, kLanes>, grid, stream, rows, tiles, to);
  return tiles.merged_runs / RowNodes::kChunks;
}

/// The states of all rows' chunks, merges: or nodes of several, or what rows of one run are asked for.
template <class E>
RowNodes fold_plain(const RowProblem& p, const FoldResults& to, bool merges, const DeviceTraits& device,
                    Stream stream) {
  constexpr int slots = 128 * 2 / static_cast<int>(sizeof(E));
  const PlainRows rows = plain_rows(p);
  const std::int64_t chunks = lift::chunk_count(p.n);
  const auto by_slots = [&] {
    if constexpr (sizeof(E) == 2) {
      if (p.n <= slots) return launch_slots<E, 1>(rows, to, merges, device, stream);
    }
    if (p.n <= 2 * slots) return launch_slots<E, 2>(rows, to, merges, device, stream);
    if (p.n <= 4 * slots) return launch_slots<E, 4>(rows, to, merges, device, stream);
    return launch_slots<E, 8>(rows, to, merges, device, stream);
  };
  if (takes_slots<E>(p, device)) return {to.states, chunks, by_slots()};
  const Grid grid{ceil_div(p.rows * chunks, 8), 256, 1, 8 * Landing<E, 32>::kBytes};
  launch("fold_tiles", fold_tiles<E>, grid, stream, rows, chunks, to.states);
  return {to.states, chunks, 0};
}

/// logsumexp and state: levels of the tree while a row has more nodes, all of chunks then, than are merged at once.
void write_results(const RowProblem& p, RowNodes nodes, Stream stream) {
  while (nodes.all() > RowNodes::kMost) {
    const std::int64_t count = nodes.count, next = ceil_div(count, 32);
    State* to = nodes.states + p.rows * count;
    launch("merge_nodes", merge_nodes<fold::LogSumExp<float>>, warps_for(p.rows * next), stream, nodes.states, count,
           to, next, p.rows * next);
    nodes = RowNodes(to, next, 0);
  }
  const auto by = [&](auto kernel, const Grid& grid) {
    launch("write_merged_results", kernel, grid, stream, RowResults(p), p.rows, nodes);
  };
  if (merges_by_threads(p.rows, nodes.all())) {
    by(write_merged_results<Merges::by_threads>, {ceil_div(p.rows, kThreads), kThreads});
  } else if (nodes.all() <= RowNodes::kWarpNodes) {
    by(write_merged_results<Merges::by_warps>, warps_for(p.rows));
  } else {
    by(write_merged_results<Merges::by_blocks>,
       {p.rows, 32 * static_cast<int>(ceil_div(nodes.all(), RowNodes::kWarpNodes))});
  }
}

template <class E, class O>
void write_rows(const RowProblem& p, const State* roots, Stream stream) {
  const std::int64_t chunks = lift::chunk_count(p.n);
  int results = 0;
  if constexpr (!std::is_void_v<O>) results = ParkedRun<O>::bytes(lift::kChunk);
  const Grid grid{ceil_div(p.rows * chunks, 8), 256, 1, 8 * (Landing<E, 32>::kBytes + results)};
  const auto by = [&](auto kernel) { launch("write_tiles", kernel, grid, stream, plain_rows(p), chunks, roots); };
  p.op == Op::softmax ? by(write_tiles<E, O, false>) : by(write_tiles<E, O, true>);
}

void run_tiles(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(tiles_workspace(p, context), context);
  const Stream stream = stream_of(context);
  auto* states = reinterpret_cast<State*>(scratch.data());
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const DeviceTraits& traits = traits_of(device.device());
    const bool writes = p.op == Op::softmax || p.op == Op::log_softmax;
    const bool at_once = !writes && p.n <= kLongestRun<E> && takes_slots<E>(p, traits);
    const RowNodes nodes = fold_plain<E>(p, {at_once ? nullptr : states, RowResults(p)}, !writes, traits, stream);
    if (at_once) return;
    if (!writes) return write_results(p, nodes, stream.following());
    const State* roots = merge_levels<fold::LogSumExp<float>>(p, states, stream);
    if (!is_apart(p)) return write_rows<E, void>(p, roots, stream.following());
    with_apart(p[Slot::x].dtype, p[Slot::y].dtype, [&]<class F, class O>() {
      if constexpr (std::is_same_v<E, F>) write_rows<E, O>(p, roots, stream.following());
    });
  });
}

}  // namespace

void fold_plain_chunks(const RowProblem& p, State* states, Stream stream) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    fold_plain<E>(p, {states, RowResults(p)}, false, traits_of(device.device()), stream);
  });
}
RowNodes fold_plain_nodes(const RowProblem& p, State* states, Stream stream) {
  const DeviceOf device(p[Slot::x].data);
  const RowResults to(p, states);
  if (fold_lane_rows_to(p, to, stream) || fold_narrow_rows_to(p, to, stream) || fold_odd_rows_to(p, to, stream))
    return {states, 1, 0};
  return with_element(p[Slot::x].dtype, [&]<class E>() {
    return fold_plain<E>(p, {states, RowResults(p)}, true, traits_of(device.device()), stream);
  });
}

const RowKernel softmax_grid_row_kernel{"softmax_grid_row", refuses_grid_row, run_grid_row, grid_workspace};
const RowKernel softmax_two_reads_kernel{"softmax_two_reads", refuses_tiles, run_tiles, tiles_workspace};
const RowKernel fold_tiles_kernel{"fold_tiles", refuses_tiles, run_tiles, tiles_workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
