// A plain problem of gradients: y, dy and dx at one stride each, nothing hidden.
#pragma once

#include "cuda/softmax_plain.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// y and dx, and dy and dx, as what is read and what is written.
struct PlainGradient {
  PlainRows y, dy;
  float scale;
};

/// Measured: chunks a processor below which clusters do not stay for gradients, but blocks have a row each, or clusters
/// that do not stay.
inline std::int64_t fewest_to_stay(const RowProblem& p) {
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (chunks > 16) return p.n % lift::kChunk == 0 ? 2 : 1;
  if (size_of(p[Slot::x].dtype) == 4) return 16;
  return chunks <= 8 ? 64 : 64 - 11 * (chunks - 8) / 2;
}
/// Measured: chunks up to which float32 rows are as fast by a block each.
inline constexpr std::int64_t kMostBlockChunks = 10;

PlainGradient plain_gradient(const RowProblem& p);
/// Null if it is one.
const char* refuses_plain_gradient(const RowProblem& p);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
