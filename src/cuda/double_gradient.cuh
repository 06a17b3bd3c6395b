// The gradients of softmax and log_softmax of float64 with one read.
#pragma once

#include "cuda/backward.cuh"
#include "cuda/double_elements.cuh"
#include "cuda/double_nodes.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A row's y, dy and dx: what backward_warp_rows and backward_cluster_row ask of elements. What is not there is
/// `nothing` and -0, as GradientSlots has it.
template <int kLanes_, int kCount, template <class> class Gradient>
struct DoubleGradient {
  using Node = GradientState<double>;
  using Exchange = ClusterNodes<GradientFold<double>>;
  using Through = Gradient<double>;
  static constexpr int kLanes = kLanes_, kMinBlocks = kCount > 16 ? 1 : 2, kMostThreads = 256;

  DoubleElements<kLanes, kCount> elements;
  double y[kCount], dy[kCount];
  unsigned present;

  __device__ __forceinline__ DoubleGradient(const RowProblem& p, const char* row) : elements(p, row, 0) {}

  __device__ __forceinline__ void load(const RowProblem& p, const BackwardRow& r, std::int64_t begin, int length) {
    const std::int64_t stride = p[Slot::x].axis_stride;
    elements.fetch(y, r.x + begin * stride, stride, length);
    elements.fetch(dy, r.dy + begin * p[Slot::dy].axis_stride, p[Slot::dy].axis_stride, length);
    elements.look(p, r, begin, length);
    present = elements.present.words[0];
    if (present == elements.kAll) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if ((present >> i & 1U) == 0) y[i] = Through::nothing(), dy[i] = -0.;
  }
  __device__ __forceinline__ Node sum() const {
    bool any = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) any |= !(y[i] == Through::nothing());
    const double sum = sum_tree<kCount>([&](int i) { return Through::leaf(y[i], dy[i]); });
    return {elements.add_lanes(sum), any ? 1U : 0U};
  }
  __device__ __forceinline__ void write(const RowProblem& p, const BackwardRow& r, std::int64_t begin, int n,
                                        const Node& row) {
    if (row.any == 0) present = 0;
    to_results(Through{row.sum, r.scale});
    if (present != elements.kAll) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if ((present >> i & 1U) == 0) dy[i] = 0.;
    }
    elements.put_all(p, r.y, begin, n, dy);
  }

 private:
  /// dy becomes dx.
  __device__ __forceinline__ void to_results(const fold::SoftmaxGradient<double>& through) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) dy[i] = through(y[i], dy[i]);
  }
  /// As LogSoftmaxGradient has it, several elements at a time.
  __device__ __forceinline__ void to_results(const fold::LogSoftmaxGradient<double>& through) {
    using S = fold::Scalar<double>;
    constexpr int kWide = kCount < 4 ? kCount : 4, kFloor = static_cast<int>(fold::Real<double>::kFlush);
#pragma unroll
    for (int i = 0; i < kCount; i += kWide) {
      const auto p = terms_of<kWide>([&](int k) { return y[i + k]; }, fold::kLog2E, 0, kFloor);
#pragma unroll
      for (int k = 0; k < kWide; ++k) {
        const double dx = S::mul(S::sub(dy[i + k], S::mul(p.of[k], through.sum)), through.scale);
        dy[i + k] = y[i + k] <= 0x1p9 ? fold::canonical(dx) : fold::canonical_nan<double>();
      }
    }
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
