// What the merges of attention's and of blocks' parts share: where rows lie, and what each part contributes to one.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/kernels.hpp"
#include "softfold/fold/parts.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where a row lies in each of several operands, its place along the outer axes found once. 64-bit divisions are slow:
/// none for the first axis, and 32-bit ones for rows below 2^32.
template <int kOperands>
struct RowOffsets {
  std::int64_t at[kOperands] = {};

  __device__ RowOffsets(const MergeProblem& p, std::int64_t row, const Operand* const (&operands)[kOperands]) {
    for (int d = p.outer_rank - 1; d >= 0; --d) {
      const auto axis = static_cast<std::size_t>(d);
      std::int64_t place = row;
      if (d > 0) {
        const std::int64_t n = p.outer[axis];
        const bool small = ((row | n) >> 32) == 0;
        row = small ? static_cast<unsigned>(row) / static_cast<unsigned>(n) : row / n;
        place -= row * n;
      }
#pragma unroll
      for (int i = 0; i < kOperands; ++i) at[i] += place * operands[i]->strides[axis];
    }
  }
};
__device__ inline std::int64_t row_offset(const MergeProblem& p, const Operand& o, std::int64_t row) {
  return RowOffsets<1>(p, row, {&o}).at[0];
}

/// A row's parts: `log` has their first numbers, the second ones are read from memory each time.
template <class Log>
struct PartsOfRow {
  const MergeProblem& p;
  std::int64_t at;  ///< in each part's statistics
  Log log;
  __device__ fold::PartSum operator[](int i) const {
    if (p.statistics == Statistics::lse) return {log[i], 1.};
    const DType t = p.statistic.view.dtype;
    return {log[i], real_at(t, p.statistic.data[static_cast<std::size_t>(i)] + at + size_of(t))};
  }
};

/// One number a part that lie `kRows` apart, in shared memory: side by side for the rows.
template <class T, int kRows>
struct Column {
  T* first;
  __device__ T& operator[](int i) const { return first[i * kRows]; }
};

/// What each part contributes to a row: shares, the live parts from the largest share down, and the joint statistic.
/// `share` and `live` have p.parts places, `at` is the row's place in each part's statistics.
template <class Share, class Live>
struct Shares {
  fold::PartSum joint;
  Share share;
  Live live;
  int count = 0;

  __device__ Shares(const MergeProblem& p, std::int64_t at, const Share& s, const Live& l) : share(s), live(l) {
    // All are asked for before the first is looked at. join_parts() has read a part when it writes its share.
#pragma unroll 4
    for (int i = 0; i < p.parts; ++i)
      share[i] = real_at(p.statistic.view.dtype, p.statistic.data[static_cast<std::size_t>(i)] + at);
    joint = fold::join_parts(PartsOfRow<Share>{p, at, share}, p.parts, p.base == LogBase::two, share);
    const double least = p.value.view.dtype == DType::float64 ? fold::Real<double>::kSmallest
                                                              : static_cast<double>(fold::Real<float>::kSmallest);
    for (int i = 0; i < p.parts; ++i) {
      const double mine = share[i];
      if (mine < least) share[i] = 0.;
      if (mine < least || mine == 0.) continue;
      int to = count++;
      for (; to > 0 && share[live[to - 1]] < mine; --to) live[to] = live[to - 1];
      live[to] = static_cast<unsigned char>(i);
    }
  }
};

__device__ inline void write_statistic(const MergeProblem& p, std::int64_t at, const fold::PartSum& joint) {
  const DType t = p.out_statistic.view.dtype;
  char* to = p.out_statistic.data[0] + at;
  const bool base_two = p.base == LogBase::two;
  if (p.statistics == Statistics::lse) return put(t, to, fold::log_of(joint, base_two));
  const fold::PartSum stored = t == DType::float64 ? joint : fold::for_float32(joint, base_two);
  put(t, to, stored.log);
  put(t, to + size_of(t), stored.sum);
}

/// merge_attention of rows in vectors of 16 bytes (merge_vectors.cu).
const char* merge_vectors_refuse(const MergeProblem& p, const Context& context);
void run_merge_vectors(const MergeProblem& p, const Context& context);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
