// What the gradients of softmax and log_softmax by columns have in common: operands, leaves, and what warps tell each
// other.
#pragma once

#include "cuda/across_tiles.hpp"
#include "cuda/columns.cuh"
#include "cuda/tree_nodes.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A gradient's operands whose rows lie side by side.
struct GradientColumns {
  const char *y, *dy;
  char* dx;
  std::int64_t y_axis, y_outer, dy_axis, dy_outer, dx_axis, dx_outer;  ///< bytes between neighbours
  float scale;

  explicit GradientColumns(const RowProblem& p)
      : y(p[Slot::x].data), dy(p[Slot::dy].data), dx(p[Slot::y].data), scale(static_cast<float>(p.scale)) {
    y_axis = p[Slot::x].axis_stride, dy_axis = p[Slot::dy].axis_stride, dx_axis = p[Slot::y].axis_stride;
    y_outer = outer_stride(p, p[Slot::x]), dy_outer = outer_stride(p, p[Slot::dy]);
    dx_outer = outer_stride(p, p[Slot::y]);
  }
};

/// Rows of which nothing is hidden.
struct WholeColumn {
  __device__ __forceinline__ bool operator()(int, int) const { return true; }
};

/// A word of y and one of dy.
template <class E, template <class> class Gradient, int kRows>
struct GradientColumnWord {
  using Words = AcrossWord<E, kRows>;
  using Word = typename Words::Word;
  using Seen = unsigned[kRows];  ///< of each row, the bits in which any y is not `nothing`

  static __device__ __forceinline__ void absent(float (&leaves)[kRows]) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) leaves[row] = fold::Sum<float>::identity();
  }
  /// shown(row): whether the row's element is; the same below.
  template <class Shown>
  static __device__ __forceinline__ void leaves(const Word& y, const Word& dy, float (&to)[kRows], Seen& seen,
                                                const Shown& shown) {
    float a[kRows], b[kRows];
    Words::unpack(y, a), Words::unpack(dy, b);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const unsigned bits = __float_as_uint(a[row]) ^ __float_as_uint(Gradient<float>::nothing());
      const float leaf = Gradient<float>::leaf(a[row], b[row]);
      seen[row] |= shown(row) ? bits : 0U;
      to[row] = shown(row) ? leaf : fold::Sum<float>::identity();
    }
  }
  /// A word of results, where no row has nothing in it; not `regular` if some of them are NaN, which write_any()
  /// writes. scale(row): the row's.
  template <class Y, class Scale, class Shown>
  static __device__ __forceinline__ typename AcrossWord<Y, kRows>::Word results(
      const Word& y, const Word& dy, const GradientState<float> (&states)[kRows], const Scale& scale, bool& regular,
      const Shown& shown) {
    float a[kRows], b[kRows];
    Words::unpack(y, a), Words::unpack(dy, b);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      a[row] = value(Gradient<float>{states[row].sum, scale(row)}, a[row], b[row]);
      if (!shown(row)) a[row] = 0.F;
      regular = regular && !fold::is_nan(a[row]);
    }
    return AcrossWord<Y, kRows>::pack(a);
  }
  template <class Y, class Scale, class Shown>
  static __device__ __forceinline__ void write_any(char* to, const Word& y, const Word& dy,
                                                   const GradientState<float> (&states)[kRows], const Scale& scale,
                                                   const Shown& shown) {
    float a[kRows], b[kRows];
    Words::unpack(y, a), Words::unpack(dy, b);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const Gradient<float> through{states[row].sum, scale(row)};
      const bool any = states[row].any != 0 && shown(row);
      reinterpret_cast<Y*>(to)[row] = fold::narrow<Y>(any ? through(a[row], b[row]) : 0.F);
    }
  }
  static __device__ __forceinline__ bool all_have_any(const GradientState<float> (&states)[kRows]) {
    bool all = true;
#pragma unroll
    for (int row = 0; row < kRows; ++row) all = all && states[row].any != 0;
    return all;
  }
  static __device__ __forceinline__ bool has_any(unsigned seen) {
    const bool of_zero = Gradient<float>::nothing() == 0.F;  // of either sign
    return (of_zero ? seen << 1 : seen) != 0;
  }

 private:
  static __device__ __forceinline__ float value(const fold::SoftmaxGradient<float>& through, float y, float dy) {
    return through.value(y, dy);
  }
  static __device__ __forceinline__ float value(const fold::LogSoftmaxGradient<float>& through, float y, float dy) {
    return through(y, dy);
  }
};

/// What the warps of a tile tell each other: their sums, and of which lanes' rows they have seen something.
template <int kRows>
struct alignas(4 * kRows) GradientPart {
  float sums[kRows][32];
  unsigned any[kRows];

  /// By all lanes of a warp.
  __device__ __forceinline__ void put(int lane, const float (&sums_)[kRows], const bool (&any_)[kRows]) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      sums[row][lane] = sums_[row];
      const unsigned lanes = __ballot_sync(lift::kWholeWarp, any_[row]);
      if (lane == 0) any[row] = lanes;
    }
    __syncwarp();
  }
};

/// The lane's rows from `count` parts, of at most kMost.
template <bool kNeighbours, int kMost, int kRows>
__device__ __forceinline__ void join_gradients(const GradientPart<kRows>* parts, int count, int lane,
                                               float (&sums)[kRows], unsigned (&any)[kRows]) {
  using Sum = fold::Sum<float>;
#pragma unroll
  for (int row = 0; row < kRows; ++row) any[row] = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i >= count) continue;
#pragma unroll
    for (int row = 0; row < kRows; ++row) any[row] |= parts[i].any[row];
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float all[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) all[i] = i < count ? parts[i].sums[row][lane] : Sum::identity();
    join_parts<kNeighbours>(all, count, [](float a, float b) { return Sum::merge(a, b); });
    sums[row] = all[0];
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
