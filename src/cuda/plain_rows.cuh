// Plain rows as kernels take them, and what their gradients are made with beside a loss.
#pragma once

#include "cuda/launch.hpp"
#include "softfold/lift/warp.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// What a row's probabilities become in the gradient of cross-entropy without smoothing: (pull p) factor, but for the
/// target's.
struct alignas(16) GradientRow {
  enum class Kind : int { zero, nan, regular, wild };
  float pull, factor;
  Kind kind;       ///< nan: wherever an element is; wild: a product may be NaN or infinite
  unsigned power;  ///< not 0: it is regular, pull is 1, and factor a power of two, of either sign, or 0

  GradientRow() = default;
  __device__ __forceinline__ GradientRow(float pull_, float factor_, Kind kind_)
      : pull(pull_), factor(factor_), kind(kind_) {
    power = kind == Kind::regular && pull == 1.F && (__float_as_uint(factor) & 0x007F'FFFFU) == 0 ? 1U : 0U;
  }
};
/// A row's target: which of its elements, or -1, and what that is in x, left by who may write the gradient over it.
struct alignas(8) RowTarget {
  static constexpr int kLeft = -2;  ///< written behind: a row with a target whose gradient is still to be found
  int index;
  float element;
};
/// One on its way to a warp, a word a lane.
class GradientWords {
 public:
  __device__ __forceinline__ explicit GradientWords(const GradientRow* row)
      : word_(row == nullptr ? 0U : reinterpret_cast<const unsigned*>(row)[threadIdx.x % 4]) {}
  __device__ __forceinline__ GradientRow row() const {
    const auto word = [&](int i) { return __shfl_sync(lift::kWholeWarp, word_, i); };
    return {__uint_as_float(word(0)), __uint_as_float(word(1)), static_cast<GradientRow::Kind>(word(2))};
  }

 private:
  unsigned word_;
};

/// A plain problem.
struct PlainRows {
  const char* x;
  char* y;
  const char *x_begin, *x_end;      ///< all of x's memory
  std::int64_t x_stride, y_stride;  ///< bytes between rows
  std::int64_t rows, n;
  fold::Scale<float> scale;
  lift::Factor factor;  ///< of scale.c
  Empty empty;
  int pitch;    ///< bytes between landing places of a warp's rows
  bool joined;  ///< rows lie on 16-byte boundaries; in softmax_warp_rows also end to end: a warp's rows are one copy
  const GradientRow* gradients = nullptr;           ///< a row, for Leaves::gradient
  RowTarget* targets = nullptr;                     ///< a row, beside `gradients` where puts_targets()
  fold::LogSumExp<float>::State* states = nullptr;  ///< a row, on 16 bytes: goes there beside its gradient
  unsigned long long* taken = nullptr;              ///< of clusters that stay: RowSource's counter
  /// LogNormaliser's, which takes a division in double.
  float two_kappa = fold::LogNormaliser<float>::two_kappa_of(scale);

  /// How a row's log-probabilities are found.
  __device__ __forceinline__ fold::LogNormaliser<float> log_normaliser(const fold::LogSumExp<float>::State& row,
                                                                       bool near = false) const {
    fold::LogNormaliser<float> norm(row, scale, near);
    norm.set_c(factor.c);
    norm.two_kappa = two_kappa;
    return norm;
  }
};

PlainRows plain_rows(const RowProblem& p);
/// The states of all chunks of p's rows, [rows][chunks].
void fold_plain_chunks(const RowProblem& p, fold::LogSumExp<float>::State* states, Stream stream);

/// Null if p's gradients can be written by the read that folds its rows' states, else why not.
const char* refuses_gradient(const RowProblem& p);
/// The states and gradients of p's rows; y may be x. rows: plain_rows(p), with both; states may be left as FramedState.
/// The kernel before is one that begin_first(); few_before: of few blocks, which leave clusters their places. True: the
/// kernel behind may read what that one has written without waiting for this one's end (of rows that puts_targets() it
/// may not, as those are written to).
bool launch_gradient(const RowProblem& p, const PlainRows& rows, Stream stream, bool few_before);
/// Whether it looks after the gradients of rows' targets, too.
inline bool puts_targets(const RowProblem& p) { return p.n <= lift::kChunk; }
/// Its part of rows that fill no power of two, of those that a block holds, and of those for which clusters stay.
bool is_odd_for_gradient(const RowProblem& p);
void launch_odd_gradient(const PlainRows& rows, DType dtype, Stream stream);
bool blocks_for_gradient(const RowProblem& p);
void launch_blocks_gradient(const PlainRows& rows, DType dtype, Stream stream);
bool clusters_stay_for(const RowProblem& p);  ///< whatever p.op is
void launch_stays_gradient(const PlainRows& rows, DType dtype, Stream stream, bool early);

/// Whether rows of up to 128 chunks are so few that softmax_cluster_row takes them all at once, by blocks of 8 warps.
bool clusters_hold(const RowProblem& p);

/// What leaves a kernel, of x's shape, or state: one a row.
enum class Leaves { softmax, log_softmax, gradient, state };

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
