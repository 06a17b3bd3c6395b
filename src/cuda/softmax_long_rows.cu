// Plain rows that no kernel holds on chip: the steps of softmax_long_rows.cuh.
#include "cuda/softmax_long_rows.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured: 16 to 40 MB of what was read last are the same; without this 16 bit takes 1 to 2 percent longer.
constexpr int kKeptBytes = 24000000;

/// Parts of a row, and nodes of all levels between these and its root.
template <class E>
struct Levels {
  int parts;
  std::int64_t nodes = 0;

  explicit Levels(std::int64_t n) : parts(static_cast<int>(ceil_div(n, LongPart<E>::kElements))) {
    for (std::int64_t count = parts; count > 0; count = count > kBlockNodes ? ceil_div(count, kWarpNodes) : 0)
      nodes += count;
  }
};

/// kWarpNodes nodes of a row to one, a warp each: from [rows][count] to [rows][next].
__global__ void __launch_bounds__(128)
    merge_long_nodes(const LongNode* from, int count, LongNode* to, int next, std::int64_t all) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= all) return;
  const std::int64_t row = quotient(item, next);
  const int at = static_cast<int>(item - row * next) * kWarpNodes;
  const LongNode* first = from + row * count + at;
  const LongNode node = merge_long([first](int i) { return first[i]; }, min(kWarpNodes, count - at));
  if (threadIdx.x % 32 == 0) to[item] = node;
}

/// A row's nodes, as many as a block of so many warps merges, to its root.
__global__ void __launch_bounds__(32 * kRootWarps) merge_long_rows(const LongNode* from, int count, LongNode* roots) {
  begin_in_order();
  __shared__ LongNode found[kRootWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, at = warp * kWarpNodes;
  const LongNode* first = from + static_cast<std::int64_t>(blockIdx.x) * count + at;
  const LongNode node = merge_long([first](int i) { return first[i]; }, min(kWarpNodes, count - at));
  if (threadIdx.x % 32 == 0) found[warp] = node;
  __syncthreads();
  if (warp > 0) return;
  const LongNode root = merge_long([](int i) { return found[i]; }, static_cast<int>(blockDim.x) / 32);
  if (threadIdx.x == 0) roots[blockIdx.x] = root;
}

const char* refuses_long_rows(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung)) return why;
  if (p.n <= 256 * lift::kChunk) return "a row is short enough for a cluster";
  if (p.rows * lift::chunk_count(p.n) >= std::int64_t{1} << 30) return "more chunks than a grid has";
  return refuses_plain(p);
}

std::size_t long_rows_workspace(const RowProblem& p, const Context&) {
  return with_element(p[Slot::x].dtype, [&]<class E>() {
    return static_cast<std::size_t>(p.rows * (Levels<E>(p.n).nodes + 1)) * sizeof(LongNode);
  });
}

/// The root of each of `rows` rows, whose `count` nodes each are the first of their levels' at `nodes`.
void launch_merges(LongNode* nodes, int count, std::int64_t rows, LongNode* roots, Stream stream) {
  while (count > kBlockNodes) {
    const int next = static_cast<int>(ceil_div(count, kWarpNodes));
    LongNode* to = nodes + rows * count;
    launch("merge_long_nodes", merge_long_nodes, warps_for(rows * next), stream.following(), nodes, count, to, next,
           rows * next);
    nodes = to, count = next;
  }
  const Grid grid{rows, 32 * static_cast<int>(ceil_div(count, kWarpNodes))};
  launch("merge_long_rows", merge_long_rows, grid, stream.following(), nodes, count, roots);
}

template <class E>
void run_steps(const RowProblem& p, LongNode* nodes, Stream stream) {
  using Part = LongPart<E>;
  using Tile = LongTile<E, false>;
  const PlainRows rows = plain_rows(p);
  const Levels<E> levels(p.n);
  LongNode* roots = nodes + p.rows * levels.nodes;
  const auto parts = static_cast<int>(p.rows * levels.parts);
  const LongParts folded{nodes, levels.parts, parts, std::max(parts - kKeptBytes / (Part::kElements * Part::kSize), 0)};
  launch("fold_parts", fold_parts<E>, {ceil_div(parts, kLongWarps), kLongThreads, 1, kLongWarps * Part::kBytes}, stream,
         rows, folded);
  launch_merges(nodes, levels.parts, p.rows, roots, stream);
  // Rows that begin inside vectors reach into one more.
  const std::int64_t reached = p.n + (rows.joined ? 0 : Tile::kWidth - 1);
  const auto tiles = static_cast<int>(ceil_div(reached, Tile::kVectors * Tile::kWidth));
  const LongRows written{roots, tiles, static_cast<int>(p.rows * tiles)};
  const Grid grid{ceil_div(written.all, kLongWarps), kLongThreads, 1, kLongWarps * Tile::kBytes};
  const auto write = [&](auto kernel) { launch("write_long_rows", kernel, grid, stream.following(), rows, written); };
  if (p.op == Op::softmax) return write(write_long_rows<E, false>);
  write(write_long_rows<E, true>);
}

void run_long_rows(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(long_rows_workspace(p, context), context);
  with_element(p[Slot::x].dtype,
               [&]<class E>() { run_steps<E>(p, reinterpret_cast<LongNode*>(scratch.data()), stream_of(context)); });
}

}  // namespace

const RowKernel softmax_long_rows_kernel{"softmax_long_rows", refuses_long_rows, run_long_rows, long_rows_workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
