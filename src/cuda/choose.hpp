// Which problems a kernel can do, and how its work is cut. Bits do not depend on any of it.
#pragma once

#include "cuda/launch.hpp"
#include "front/problem.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Null if rows lie so that tiles of 16-byte vectors can move them: float32 or 16 bit, one dtype, elements side by
/// side, x and y equally far from a 16-byte boundary in every row. Else why not.
const char* refuses_vectors(const RowProblem& p);

/// Null if, further, all rows are alike: one stride between rows, one scale, nothing hidden. Else why not.
const char* refuses_plain(const RowProblem& p);

/// How a row is spread over blocks of a cluster: `blocks` of `warps` warps, a chunk a warp.
struct Spread {
  int blocks, warps;
};

inline constexpr int kWarpsPerBlock = 16;

/// The fewest blocks that hold a row's chunks, evenly filled; more of them while rows * blocks leave processors idle.
Spread spread_row(std::int64_t rows, std::int64_t chunks, const DeviceTraits& device);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
