// logsumexp and state of plain problems: one result a row, by what is found of them all on the host.
#pragma once

#include "cuda/generic.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Whether rows' `count` nodes are merged by a thread a row, not a warp. Measured: with fewer rows threads leave the
/// device idle.
inline bool merges_by_threads(std::int64_t rows, std::int64_t count) {
  constexpr std::int64_t kRowsANode = 4096;
  return count <= kFewNodes && rows > kRowsANode * count;
}

/// Where plain rows' results go, and as what.
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

  __device__ __forceinline__ void put_state(std::int64_t row, const fold::LogSumExp<float>::State& state) const {
    char* at = to + row * stride;
    if (is_state) {
      *reinterpret_cast<StoredState*>(at) = stored_state<float>(state, scale);
    } else {
      put(dtype, at, fold::LogSumExp<float>::finish(state, kappa));
    }
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
