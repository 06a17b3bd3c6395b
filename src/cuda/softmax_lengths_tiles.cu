// softmax_lengths_tiles: rows that lengths cut short by the tiles of ragged rows; what it takes, and how it is
// launched.
#include "cuda/ragged_tiles.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// A block takes `rows` neighbouring rows at a time; which of them it leaves it says in one of the words at `left`.
template <class E, RaggedLeaves kLeaves, int kWarps, TileRows kRows>
__global__ void __launch_bounds__(32 * kWarps, kRaggedTileWarps / kWarps)
    softmax_lengths_tiles(const __grid_constant__ RowProblem p, const __grid_constant__ Extent x, int rows,
                          unsigned* left) {
  begin_in_order();
  using Storage = TileStorage<E, kLeaves, kWarps>;
  extern __shared__ __align__(16) char tile_memory[];
  __shared__ unsigned rest;
  Storage& storage = *reinterpret_cast<Storage*>(tile_memory);
  storage.make();
  const std::int64_t first = std::int64_t{blockIdx.x} * rows;
  const auto count = static_cast<int>(min(p.rows - first, std::int64_t{rows}));
  const unsigned all = 0xFFFFFFFFU >> (kMarked - count);
  if (threadIdx.x == 0) rest = all;
  RaggedTiles<E, kLeaves, kWarps, kRows>(p, nullptr, &x, {}, storage, first, all).run(0, rest, 0);
  if (threadIdx.x == 0) left[blockIdx.x] = rest;
}

constexpr int kLeftWarps = 4, kLeftBlocks = 4;  ///< of a block, and blocks of a processor

/// Those rows, a warp each: with NaN, infinities or elements far apart. Neighbours are different warps'.
template <class E, RaggedLeaves kLeaves>
__global__ void __launch_bounds__(32 * kLeftWarps, kLeftBlocks)
    softmax_lengths_left(const __grid_constant__ RowProblem p, int rows, const unsigned* left) {
  begin_in_order();
  __shared__ AnyStorage storage[kLeftWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t step = std::int64_t{gridDim.x} * kLeftWarps;
#pragma unroll 1
  for (std::int64_t base = std::int64_t{blockIdx.x} * kLeftWarps + warp; base < p.rows; base += 32 * step) {
    const std::int64_t own = base + lane * step;
    const bool is_left = own < p.rows && (left[own / rows] >> own % rows & 1U) != 0;
#pragma unroll 1
    for (unsigned some = __ballot_sync(lift::kWholeWarp, is_left); some != 0; some &= some - 1)
      any_row<E, kLeaves>(p, base + (__ffs(static_cast<int>(some)) - 1) * step, storage[warp], 1);
  }
}

constexpr int kFewWarps = kFewTileWarps, kMostWarps = 4 * kFewTileWarps;  ///< of a block
/// Measured: longer ones of float32 on vectors are as fast by a block a row, which takes elements far apart in the same
/// read.
constexpr std::int64_t most_chunks(std::size_t size, bool whole) {
  return size == 2 ? kMostWarps : whole ? 3 : 2 * kFewWarps;
}

const char* refuses(const RowProblem& p, const Context&) {
  const std::size_t size = size_of(p[Slot::x].dtype);
  if (p.n <= 2 * lift::kChunk) return "a row is short enough for a warp, or a block";
  if (const char* why = refuses_cut(p)) return why;
  if (p.n > most_chunks(size, on_whole_vectors(p)) * lift::kChunk) return "a row is longer than a block of these takes";
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  for (int i = 0; i < p.outer_rank; ++i)
    if (x.strides[static_cast<std::size_t>(i)] != y.strides[static_cast<std::size_t>(i)])
      return "rows lie differently in x and y";
  const DeviceTraits& traits = traits_of(DeviceOf(x.data).device());
  constexpr std::size_t shared = sizeof(TileStorage<fold::BFloat16, RaggedLeaves::softmax, kMostWarps>);
  if (p.n > 2 * kFewWarps * lift::kChunk && shared > static_cast<std::size_t>(traits.shared_bytes))
    return "the device has too little shared memory for blocks of so many warps";
  return are_fewer_chunks(p, kFewestStayChunks) ? "too few rows for all blocks" : nullptr;
}

int warps_for(const RowProblem& p) {
  const std::int64_t chunks = lift::chunk_count(p.n);
  return chunks <= kFewWarps ? kFewWarps : chunks <= 2 * kFewWarps ? 2 * kFewWarps : kMostWarps;
}
/// Rows that a block takes at a time, whether their elements exist or not.
int rows_for(const RowProblem& p, int processors) {
  const int warps = warps_for(p);
  return rows_of_tiles(elements_of_tiles(size_of(p[Slot::x].dtype), warps), p.n, p.rows, warps, processors, 1);
}

template <class E, RaggedLeaves kLeaves, int kWarps>
void launch_tiles(const RowProblem& p, int rows, unsigned* left, Stream stream) {
  const Grid grid{(p.rows + rows - 1) / rows, 32 * kWarps, 1,
                  static_cast<int>(sizeof(TileStorage<E, kLeaves, kWarps>))};
  constexpr const char* kName = "softmax_lengths_tiles";
  const Extent x = memory_of(p, p[Slot::x]);
  if constexpr (kWarps <= most_chunks(sizeof(E), true) || kWarps == kFewWarps)
    if (on_whole_vectors(p))
      return launch(kName, softmax_lengths_tiles<E, kLeaves, kWarps, TileRows::cut>, grid, stream, p, x, rows, left);
  launch(kName, softmax_lengths_tiles<E, kLeaves, kWarps, TileRows::cut_anywhere>, grid, stream, p, x, rows, left);
}

template <class E, RaggedLeaves kLeaves>
void launch_rows(const RowProblem& p, int processors, unsigned* left, Stream stream) {
  const int warps = warps_for(p), rows = rows_for(p, processors);
  if (warps == kFewWarps) launch_tiles<E, kLeaves, kFewWarps>(p, rows, left, stream);
  if (warps == 2 * kFewWarps) launch_tiles<E, kLeaves, 2 * kFewWarps>(p, rows, left, stream);
  if constexpr (most_chunks(sizeof(E), false) == kMostWarps)
    if (warps == kMostWarps) launch_tiles<E, kLeaves, kMostWarps>(p, rows, left, stream);
  const Grid grid{std::min<std::int64_t>((p.rows + kLeftWarps - 1) / kLeftWarps, kLeftBlocks * processors),
                  32 * kLeftWarps};
  launch("softmax_lengths_left", softmax_lengths_left<E, kLeaves>, grid, stream.following(), p, rows, left);
}

std::size_t workspace(const RowProblem& p, const Context&) {
  const int processors = traits_of(DeviceOf(p[Slot::x].data).device()).processors, rows = rows_for(p, processors);
  return static_cast<std::size_t>((p.rows + rows - 1) / rows) * sizeof(unsigned);
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const int processors = traits_of(device.device()).processors;
  const Stream stream = stream_of(context);
  const Scratch scratch(workspace(p, context), context);
  auto* left = reinterpret_cast<unsigned*>(scratch.data());
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.op == Op::log_softmax) return launch_rows<E, RaggedLeaves::log_softmax>(p, processors, left, stream);
    launch_rows<E, RaggedLeaves::softmax>(p, processors, left, stream);
  });
}

}  // namespace

const RowKernel softmax_lengths_tiles_kernel{"softmax_lengths_tiles", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
