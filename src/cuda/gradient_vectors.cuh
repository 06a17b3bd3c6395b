// What a row's gradient adds up and writes, of y and dy that wait in registers as vectors.
#pragma once

#include "cuda/rows.cuh"
#include "softfold/fold/gradient.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// kVectors vectors of each of kLanes lanes, in the layout of Tile. What is not there is Gradient::nothing() in y and
/// -0 in dy: its leaf is -0.
template <class E, template <class> class Gradient, int kLanes, int kVectors>
struct GradientVectors {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(E));
  using Vectors = uint4[kVectors];

  /// The tree over the slots; `any` is of the lane's own elements.
  static __device__ __forceinline__ lift::SumNode sum(const Vectors& y, const Vectors& dy) {
    bool any = false;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      float v[kWidth];
      Packed<E>::unpack(y[j], v);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) any |= !(v[k] == Gradient<float>::nothing());
    }
    const float sum = lift::add_tree<kWidth, kLanes, float, kVectors * kWidth>([&](int j, int k) {
      float a[kWidth], b[kWidth];
      Packed<E>::unpack(y[j], a);
      Packed<E>::unpack(dy[j], b);
      return Gradient<float>::leaf(a[k], b[k]);
    });
    return {sum, any ? 1U : 0U};
  }

  /// A vector of dx. any: whether the row has anything in it.
  static __device__ __forceinline__ uint4 result(const Gradient<float>& through, bool any, const uint4& y,
                                                 const uint4& dy) {
    return any ? gradient(through, y, dy) : uint4{0U, 0U, 0U, 0U};
  }

 private:
  static __device__ __forceinline__ uint4 gradient(const Gradient<float>& through, const uint4& y, const uint4& dy) {
    float a[kWidth], b[kWidth];
    Packed<E>::unpack(y, a);
    Packed<E>::unpack(dy, b);
    bool nan = false;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      b[k] = through(a[k], b[k]);
      nan |= fold::is_nan(b[k]);
    }
    if constexpr (sizeof(E) == 2) {
      if (nan) {
        E e[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) e[k] = fold::narrow<E>(b[k]);
        return Packed<E>::join(e);
      }
    }
    return Packed<E>::pack(b);
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
