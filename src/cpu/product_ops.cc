// Tiles of matrix products, compiled for every SIMD target. Lanes run across columns, so every element is one chain of
// FMAs over k, whatever the target.
#include "softfold/lift/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/product_ops.cc"
#include <hwy/foreach_target.h>

#include "cpu/product_ops.hpp"
#include "softfold/lift/lanes.hpp"

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

/// As many accumulators as registers hold beside their operands: 16 of them, or 32.
#if HWY_TARGET == HWY_AVX2
inline constexpr int kTileVectors = 2;
#else
inline constexpr int kTileVectors = 4;
#endif

template <class T>
void product_tile(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, int depth, T* HWY_RESTRICT c, std::int64_t stride,
                  bool add) {
  using A = Lanes<T>;
  constexpr int w = A::kCount, kRows = cpu::kTileHeight, kVectors = kTileVectors;
  static_assert(w * kVectors <= cpu::kWidestTile);
  const typename A::D d;
  typename A::V sum[kRows * kVectors];
  for (auto& s : sum) s = A::zero();
  for (int k = 0; k < depth; ++k, a += kRows, b += w * kVectors) {
    typename A::V y[kVectors];
    for (int n = 0; n < kVectors; ++n) y[n] = hn::Load(d, b + n * w);
    for (int i = 0; i < kRows; ++i) {
      const auto x = A::set(a[i]);
      for (int n = 0; n < kVectors; ++n) sum[i * kVectors + n] = A::fma(x, y[n], sum[i * kVectors + n]);
    }
  }
  for (int i = 0; i < kRows; ++i, c += stride)
    for (int n = 0; n < kVectors; ++n) {
      T* to = c + n * w;
      hn::StoreU(add ? A::add(hn::LoadU(d, to), sum[i * kVectors + n]) : sum[i * kVectors + n], d, to);
    }
}

template <class T>
cpu::ProductOps<T> product_ops_of() {
  return {Lanes<T>::kCount * kTileVectors, product_tile<T>};
}
cpu::ProductOps<float> product_ops_float() { return product_ops_of<float>(); }
cpu::ProductOps<double> product_ops_double() { return product_ops_of<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/target_choice.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

SOFTFOLD_TABLE_OF(ProductOps, product_ops, float)
SOFTFOLD_TABLE_OF(ProductOps, product_ops, double)

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
#endif  // HWY_ONCE
