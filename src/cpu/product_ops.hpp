// What a SIMD target offers for products of matrices: one tile of the result.
#pragma once

#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// Products are added in runs of this many, each a chain of FMAs from 0; the runs one after the other.
inline constexpr int kProductDepth = 256;
inline constexpr int kTileHeight = 6;
/// No target's tile is wider.
inline constexpr int kWidestTile = 64;

template <class T>
struct ProductOps {
  int width;  ///< columns of a tile
  /// c[i * stride + j] = sum of a[k * kTileHeight + i] b[k * width + j] over k < depth, and what was there if `add`.
  /// b: 64-byte aligned.
  void (*tile)(const T* a, const T* b, int depth, T* c, std::int64_t stride, bool add);
};

/// The table of the chosen target (targets.hpp).
template <class T>
const ProductOps<T>& product_ops();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
