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

/// Chunks a processor below which clusters do not stay for gradients.
inline constexpr std::int64_t kFewestStayGradients = 64;
/// Measured: chunks up to which float32 rows are as fast by a block each.
inline constexpr std::int64_t kMostBlockChunks = 10;

PlainGradient plain_gradient(const RowProblem& p);
/// Null if it is one.
const char* refuses_plain_gradient(const RowProblem& p);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
