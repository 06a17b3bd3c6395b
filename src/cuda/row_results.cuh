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

/// States of each of some rows' chunks as a fold leaves them, [rows][count + left].
struct RowNodes {
  using F = fold::LogSumExp<float>;
  static constexpr int kChunks = 4;  ///< of a merged node

  F::State* states;
  int count;     ///< nodes of one level of the tree: chunks, or merged ones, of which the last may be a chunk
  int left = 0;  ///< chunks, up to kChunks, whose node would be the next one

  /// `merged` nodes of a row's first chunks, and the states of the others.
  RowNodes(F::State* at, std::int64_t chunks, std::int64_t merged) : states(at), count(static_cast<int>(merged)) {
    const int others = static_cast<int>(chunks - merged * kChunks);
    if (merged == 0 || others == 1) {
      count += others;
    } else {
      left = others;
    }
  }
  SOFTFOLD_HD int all() const { return count + (left > 0 ? 1 : 0); }

  /// A row's root, of at most 256 nodes by a warp, of at most kFewNodes by each thread for itself.
  __device__ __forceinline__ F::State root(std::int64_t row, bool by_threads) const {
    const F::State* from = states + row * (count + left);
    F::State last = F::identity();
    if (left > 0) last = merge_few<F, kChunks>([&](int i) { return from[count + i]; }, left);
    const auto load = [&](int i) { return i < count ? from[i] : last; };
    return by_threads ? merge_few<F>(load, all()) : lift::merge_states(load, all());
  }
};
/// The states of p's rows for their roots, at `states`, where there is room for every chunk's.
RowNodes fold_plain_nodes(const RowProblem& p, fold::LogSumExp<float>::State* states, Stream stream);

/// Where rows' results go, and as what.
struct RowResults {
  char* to;
  std::int64_t stride;  ///< bytes between rows
  DType dtype;
  bool is_state;
  double scale;
  fold::Scale<float>::Kappa kappa;

  explicit RowResults(const RowProblem& p)
      : dtype(p[Slot::row].dtype),
        is_state(p.op == Op::state),
        scale(p.scale),
        kappa(fold::make_scale<float>(p.scale).kappas()) {
    const Operand& o = p[is_state ? Slot::states : Slot::row];
    to = o.data;
    stride = p.outer_rank == 0 ? 0 : o.strides[0];
  }

  __device__ __forceinline__ char* at(std::int64_t row) const { return to + row * stride; }
  __device__ __forceinline__ void put_state(std::int64_t row, const fold::LogSumExp<float>::State& state) const {
    put_at(at(row), state);
  }
  __device__ __forceinline__ void put_at(char* place, const fold::LogSumExp<float>::State& state) const {
    if (is_state) {
      *reinterpret_cast<StoredState*>(place) = stored_state<float>(state, scale);
    } else {
      put(dtype, place, fold::LogSumExp<float>::finish(state, kappa));
    }
  }
};

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

/// From rows' states to their results.
template <class State>
__global__ void __launch_bounds__(128)
    put_row_results(const __grid_constant__ RowResults to, std::int64_t rows, const State* states) {
  begin_in_order();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row < rows) to.put_state(row, states[row]);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
