// softmax of rows that are longer than clusters hold well, as softmax_guess.cuh takes those that they do: groups of
// blocks that stay, a row written while its successor is folded, all of its chunks in one frame guessed from the row
// before.
#pragma once

#include "cuda/softmax_guess.cuh"
#include "softfold/lift/grid.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Of rows of up to kChunks chunks. kTight: in blocks of so many warps that there is no room for parts of rows to lie
/// to sectors as they do in x.
template <int kChunks, bool kTight>
inline constexpr GuessForm kGroupForm{Leaves::softmax, kTight ? Lands::in_one_place : Lands::on_vectors, kChunks, true,
                                      true};

/// What a block's warps tell each other of a row that no guess held.
struct GroupMisses {
  fold::LogSumExp<float>::State chunks[2 * kStayWarps], root;
  int step;  ///< how many there were

  /// By the warps that have a part of rows.
  static __device__ __forceinline__ void meet(int warps) {
    __syncwarp();
    asm volatile("bar.sync 1, %0;" ::"r"(32 * warps) : "memory");
  }
};

/// A row that no guess held; all blocks of the group come here.
template <class E, GuessForm kForm>
__device__ __noinline__ lift::Root read_again_by_group(const typename GuessPart<E, kForm>::Problem& p, int row,
                                                       int warps, GroupMisses& misses, GuessWaits& waits) {
  using Shape = GuessShape<E, kForm>;
  const GuessPart<E, kForm> part(p, waits);
  typename GuessRows<E, kForm>::Vectors raw;
  typename GuessRows<E, kForm>::Values v;
  const auto own = fold_again(part, row, raw, v);
  const int warp = warp_index(), run = warp / p.kRunWarps;
  if (lane_index() % Shape::kLanes == 0) misses.chunks[2 * warp + lane_index() / Shape::kLanes] = own.state;
  GroupMisses::meet(warps);
  const std::int64_t at = (2 * static_cast<std::int64_t>(p.group()) + misses.step % 2) * p.runs;
  const lift::GridExchange exchange{p.nodes + at, p.arrived + row, p.runs};
  if (warp % p.kRunWarps == 0) {
    const int first = (p.first_run() + run) * p.kRunChunks;
    const auto node =
        lift::merge_states([&](int i) { return misses.chunks[2 * warp + i]; }, min(p.kRunChunks, part.chunks - first));
    lift::GridFold::send(exchange, node, p.first_run() + run);
  }
  if (warp == 0) {
    const auto root = lift::GridFold::receive(exchange);
    if (lane_index() == 0) misses.root = root;
  }
  GroupMisses::meet(warps);
  // As one that is far: nobody has found that all chunks lie near each other (lift::near_multiplier).
  const lift::Root root{{lift::kFar, misses.root.d}, misses.root};
  GuessResults<E, kForm>{part}.put_exactly(raw, v, own, root, row);
  if (threadIdx.x == 0) ++misses.step;  // for the next such row, whose warps meet before they look
  return root;
}

/// p.y's rows; kChunks: of a row, at most.
template <class E, int kChunks, bool kTight>
__global__ void __launch_bounds__(kStayWarps * 32, 1)
    softmax_grid_guesses(const __grid_constant__ typename GuessPart<E, kGroupForm<kChunks, kTight>>::Problem p) {
  begin_in_order();
  constexpr GuessForm kForm = kGroupForm<kChunks, kTight>;
  __shared__ GroupMisses misses;
  __shared__ typename GuessRows<E, kForm>::Mail mail;
  __shared__ GuessWaits waits;
  __shared__ int first_row;
  GroupSource source{first_row, p.groups};
  const int rows = static_cast<int>(p.rows);
  const int of_block =
      min(static_cast<int>(lift::chunk_count(p.n)), p.first_run(1) * p.kRunChunks) - p.first_run() * p.kRunChunks;
  const int warps = (of_block + 1) / 2;
  if (warp_index() < warps) {
    const GuessPart<E, kForm> part(p, waits);
    part.init();
    CopyBarrier::publish();
    part.fetch_elements(p.group(), 0, true);
  }
  if (threadIdx.x == 0) mail.init(p, warps), misses.step = 0, first_row = p.group();
  CopyBarrier::publish();
  __syncthreads();
  if (warp_index() >= warps) return;

  GuessedFrame frame;
#pragma unroll 1
  for (int step = 0;; ++step) {
    const int row = guess_rows<E, kForm>(p, source, step, frame, mail, waits);
    if (row >= rows) break;
    frame.follow(read_again_by_group<E, kForm>(p, row, warps, misses, waits));
    if (source.row(step) >= rows) break;  // the last one, written behind
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
