// logsumexp and state: one result a row, of rows that have one scale and whose results lie at one stride; by what is
// found of all rows on the host, from nodes of plain rows' trees or from states.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/in_order.cuh"
#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Whether rows' `count` nodes are merged by a thread a row, not a warp. Measured: with fewer rows threads leave the
/// device idle.
inline bool merges_by_threads(std::int64_t rows, std::int64_t count) {
  constexpr std::int64_t kRowsANode = 4096;
  return count <= kFewNodes && rows > kRowsANode * count;
}

/// States of each of some rows' chunks as a fold leaves them, [rows][count + left]. What merges them is short: behind a
/// read of much more than the L2 cache holds its code comes from memory, a line at a time (measured: of 256 nodes,
/// eight a lane, one after the other in a warp's code, 28 us).
struct RowNodes {
  using F = fold::LogSumExp<float>;
  static constexpr int kChunks = 4;      ///< of a merged node
  static constexpr int kWarpNodes = 64;  ///< that a warp merges at a time, two a lane
  static constexpr int kMost = 1024;     ///< that a warp or a block merges

  F::State* states;
  int count;     ///< nodes of one level of the tree: chunks, or merged ones, of which the last may be a chunk
  int left = 0;  ///< 2 to kChunks chunks, whose node would be the next one, or none

  /// `merged` nodes of a row's first chunks, and the states of the others.
  SOFTFOLD_HD RowNodes(F::State* at, std::int64_t chunks, std::int64_t merged)
      : states(at), count(static_cast<int>(merged)) {
    const int others = static_cast<int>(chunks - merged * kChunks);
    if (merged == 0 || others == 1) {
      count += others;
    } else {
      left = others;
    }
  }
  SOFTFOLD_HD int all() const { return count + (left > 0 ? 1 : 0); }

  /// A row's root, of at most kFewNodes, by a thread.
  __device__ __forceinline__ F::State root_by_thread(std::int64_t row) const {
    const F::State* from = first_of(row);
    if (count == 1 && left == 0) return from[0];
    const F::State last = last_of(from);
    return merge_few<F>([&](int i) { return i < count ? from[i] : last; }, all());
  }
  /// Of at most kMost, by a warp.
  __device__ __forceinline__ F::State root_by_warp(std::int64_t row) const {
    const F::State* from = first_of(row);
    Pair next = load_pair(from, 0);
    const lift::Node last = merge_left(from);
    lift::Node own{lift::kNone, 0.F}, root;
#pragma unroll 1
    for (int run = 0; run * kWarpNodes < all(); ++run) {
      const Pair now = next;
      if ((run + 1) * kWarpNodes < all()) next = load_pair(from, run + 1);
      root = merge_pairs(now, run, last);
      if (lane() == run) own = root;
    }
    return root_state(all() > kWarpNodes ? root_of_lanes(own) : root, from);
  }
  /// The same by a block that has a warp for each kWarpNodes; its first one gets it.
  __device__ __forceinline__ F::State root_by_block(std::int64_t row) const {
    __shared__ lift::Node roots[kMost / kWarpNodes];
    const F::State* from = first_of(row);
    const int run = static_cast<int>(threadIdx.x) / 32;
    const Pair own = load_pair(from, run);
    const lift::Node root = merge_pairs(own, run, merge_left(from));
    if (lane() == 0) roots[run] = root;
    __syncthreads();
    if (run > 0) return F::identity();
    return root_state(root_of_lanes(lane() * kWarpNodes < all() ? roots[lane()] : lift::Node{lift::kNone, 0.F}), from);
  }

 private:
  struct Pair {
    F::State states[2];
  };
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ const F::State* first_of(std::int64_t row) const { return states + row * (count + left); }
  __device__ __forceinline__ F::State last_of(const F::State* from) const {
    return left > 0 ? merge_few<F, kChunks>([&](int i) { return from[count + i]; }, left) : F::identity();
  }
  /// The lane's states of a run. (Where a node's load and what is done with it are one, each waits for the one before.)
  __device__ __forceinline__ Pair load_pair(const F::State* from, int run) const {
    const int first = run * kWarpNodes + 2 * lane();
    return {{from[min(first, count - 1)], from[min(first + 1, count - 1)]}};
  }
  /// last: the node of the chunks left.
  __device__ __forceinline__ lift::Node merge_pairs(const Pair& own, int run, const lift::Node& last) const {
    lift::Node node[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = run * kWarpNodes + 2 * lane() + i;
      node[i] = k == count ? last : lift::Node{lift::kNone, 0.F};
      if (k < count) node[i] = lift::node_of(own.states[i]);
    }
    return lift::merge_nodes(node);
  }
  static __device__ __forceinline__ lift::Node root_of_lanes(const lift::Node& own) {
    const lift::Node all[1] = {own};
    return lift::merge_nodes(all);
  }
  __device__ __forceinline__ lift::Node merge_left(const F::State* from) const {
    if (left == 0) return {lift::kNone, 0.F};
    const F::State own = from[count + min(lane(), left - 1)];
    return root_of_lanes(lane() < left ? lift::node_of(own) : lift::Node{lift::kNone, 0.F});
  }
  __device__ __forceinline__ F::State root_state(const lift::Node& root, const F::State* from) const {
    if (root.z != lift::kFar) return lift::state_of(root);
    const auto load = [nodes = *this, from](int i) { return i < nodes.count ? from[i] : nodes.last_of(from); };
    return lift::merge_states_wide(load, all());
  }
};
/// The states of p's rows for their roots, at `states`, where there is room for every chunk's.
RowNodes fold_plain_nodes(const RowProblem& p, fold::LogSumExp<float>::State* states, Stream stream);
struct RowResults;
/// Of rows of up to 1024 elements by a kernel for short ones, if one takes them; else false, and nothing is done.
bool fold_lane_rows_to(const RowProblem& p, const RowResults& to, Stream stream);
bool fold_narrow_rows_to(const RowProblem& p, const RowResults& to, Stream stream);
bool fold_odd_rows_to(const RowProblem& p, const RowResults& to, Stream stream);

/// Where rows' results go, and as what.
struct RowResults {
  using State = fold::LogSumExp<float>::State;
  enum class As : std::uint8_t { logsumexp, stored_states, states };

  char* to;
  std::int64_t stride;  ///< bytes between rows
  DType dtype;
  As as;
  double scale;
  fold::Scale<float>::Kappa kappa;

  explicit RowResults(const RowProblem& p)
      : dtype(p[Slot::row].dtype),
        as(p.op == Op::state ? As::stored_states : As::logsumexp),
        scale(p.scale),
        kappa(fold::make_scale<float>(p.scale).kappas()) {
    const Operand& o = p[p.op == Op::state ? Slot::states : Slot::row];
    to = o.data;
    stride = p.outer_rank == 0 ? 0 : o.strides[0];
  }
  /// p's rows' states as kernels that follow read them.
  RowResults(const RowProblem& p, State* states) : RowResults(p) {
    to = reinterpret_cast<char*>(states), stride = sizeof(State), as = As::states;
  }

  __device__ __forceinline__ char* at(std::int64_t row) const { return to + row * stride; }
  __device__ __forceinline__ void put_state(std::int64_t row, const fold::LogSumExp<float>::State& state) const {
    put_at(at(row), state);
  }
  __device__ __forceinline__ void put_at(char* place, const fold::LogSumExp<float>::State& state) const {
    if (as == As::stored_states) {
      *reinterpret_cast<StoredState*>(place) = stored_state<float>(state, scale);
    } else if (as == As::states) {
      *reinterpret_cast<State*>(place) = state;
    } else {
      put(dtype, place, fold::LogSumExp<float>::finish(state, kappa));
    }
  }
};

/// A row's result, called, not copied, where it is half as long as all else.
inline __device__ __noinline__ void put_result(const RowResults& to, std::int64_t row,
                                               fold::LogSumExp<float>::State state) {
  to.put_state(row, state);
}

/// Where the states that a kernel finds go: each to its place, or those of rows as what these are asked for.
struct FoldResults {
  fold::LogSumExp<float>::State* states;  ///< null: to `rows`
  RowResults rows;

  /// item: the state's place, or the row that it is of.
  __device__ __forceinline__ void put(std::int64_t item, const fold::LogSumExp<float>::State& state) const {
    if (states != nullptr) {
      states[item] = state;
    } else {
      rows.put_state(item, state);
    }
  }
};
/// Whether RowResults says where p's results go.
inline bool has_row_results(const RowProblem& p) { return p.outer_rank <= 1 && !p[Slot::scales].given; }

/// From rows' states to their results, a thread a row.
inline constexpr int kPutThreads = 128;
template <class State>
__global__ void __launch_bounds__(kPutThreads)
    put_row_results(const __grid_constant__ RowResults to, std::int64_t rows, const State* states) {
  begin_in_order();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row < rows) to.put_state(row, states[row]);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
