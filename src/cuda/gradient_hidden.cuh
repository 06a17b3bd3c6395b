// Gradients of rows of which something is hidden: what a lane keeps of a row beside its elements.
#pragma once

#include "cuda/gradient_vectors.cuh"
#include "cuda/hidden.cuh"
#include "cuda/vector_masks.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Which elements of a lane's kVectors vectors are shown, a bit each.
template <class E, int kLanes, int kVectors>
class ShownElements {
  static constexpr int kFours = 4 / static_cast<int>(sizeof(E));
  unsigned words_[(kVectors * kFours + 7) / 8] = {};

 public:
  /// As find_shown() has it.
  template <bool kMask, int kWhole, bool kCut>
  __device__ __forceinline__ void find(const char* mask, int shift, int n, int length, int turn) {
    find_shown<E, kLanes, kVectors, kMask, kWhole, kCut>(
        mask, shift, n, length, turn, [&](int i, unsigned flags) { words_[i / 8] |= flags >> i % 8; });
  }
  /// Where more than the row's masks may be read.
  template <bool kMask>
  __device__ __forceinline__ void find(const char* mask, int shift, int length, int turn) {
    find<kMask, kVectors, true>(mask, shift, length, length, turn);
  }
  /// 0, but known only once all bits are.
  __device__ __forceinline__ int found() const {
    unsigned all = 0;
#pragma unroll
    for (const unsigned word : words_) all |= word;
    return static_cast<int>(all & threadIdx.y);  // of which the compiler does not know that it is 0
  }
  /// All bits of those of the j-th vector.
  __device__ __forceinline__ uint4 of(int j) const {
    const auto flags = [&](int k) { return words_[(j * kFours + k) / 8] << (j * kFours + k) % 8; };
    if constexpr (kFours == 2) {
      return shown_by_flags<E>({flags(0), flags(1)});
    } else {
      return shown_by_flags<E>(flags(0));
    }
  }
};

/// y, dy and dx of a lane: what is hidden is Gradient::nothing() and -0, as what is not there, and 0 in dx.
template <class E, template <class> class Gradient, int kLanes, int kVectors>
struct HiddenVectors : GradientVectors<E, Gradient, kLanes, kVectors> {
  using Vectors = uint4[kVectors];
  using Shown = ShownElements<E, kLanes, kVectors>;

  static __device__ __forceinline__ void hide(Vectors& y, Vectors& dy, const Shown& shown) {
    const unsigned none = PackedGradients<E>::word_of(Gradient<float>::nothing());
    const unsigned zero = PackedGradients<E>::word_of(-0.F);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const uint4 bits = shown.of(j);
      y[j] = chosen(bits, y[j], {none, none, none, none});
      dy[j] = chosen(bits, dy[j], {zero, zero, zero, zero});
    }
  }
  /// y becomes dx.
  static __device__ __forceinline__ void finish(Vectors& y, const Vectors& dy, const Shown& shown,
                                                const Gradient<float>& through, bool any) {
    using Base = GradientVectors<E, Gradient, kLanes, kVectors>;
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      y[j] = chosen(shown.of(j), Base::result(through, any, y[j], dy[j]), {0U, 0U, 0U, 0U});
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
