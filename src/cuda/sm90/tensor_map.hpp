// Tensor maps, which tell the copy engine where a tensor's tiles lie.
#pragma once

#include "front/problem.hpp"

#include <cuda.h>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Null if the copy engine can read the tensor, else why not. A stride of a size-1 axis does not matter.
const char* refuses_tiles(const AttentionTensor& x, std::int64_t batches, std::int64_t heads, std::int64_t tokens);

/// Boxes of 64 columns (128 bytes, swizzled) times `rows` tokens of a 16-bit tensor (batches, heads, tokens, columns).
CUtensorMap tile_map(const AttentionTensor& x, std::int64_t batches, std::int64_t heads, std::int64_t tokens,
                     std::int64_t columns, int rows);

/// Boxes of `columns` neighbours along the first axis, one along the second, `rows` along the third and one along the
/// fourth, of a tensor of elements as `x` has them; strides: bytes along all axes but the first. `fetched`: how many
/// bytes the L2 cache fetches at a time: 0, 128 or 256.
CUtensorMap box_map(const Operand& x, const std::array<std::int64_t, 4>& sizes,
                    const std::array<std::int64_t, 3>& strides, int columns, int rows, int fetched);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
