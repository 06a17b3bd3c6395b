// What a SIMD target offers for merging parts of rows.
#pragma once

#include "cpu/chunk_ops.hpp"
#include "front/problem.hpp"
#include "softfold/fold/parts.hpp"

#include <array>
#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// The parts of a row that count, largest share first: then the first product is exact or nearly so, and two parts
/// give the same bits in either order.
struct LiveParts {
  int count = 0;
  std::array<const void*, MergeProblem::kMaxParts> x;
  std::array<double, MergeProblem::kMaxParts> share;
};

struct MergeOps {
  using Join = fold::PartSum (*)(const fold::PartSum* parts, int count, bool base_two, double* share);
  using LogOf = double (*)(const fold::PartSum&, bool base_two);
  /// y = sum of share * x over the live parts, at least one, each share rounded to the precision of the fold first.
  /// y may be one of the xs. `stream`: past the cache.
  using Combine = void (*)(const LiveParts&, std::int64_t n, void* y, bool stream);
  /// y = share * x, as probabilities are written. y may be x.
  using Rescale = void (*)(const void* x, double share, std::int64_t n, void* y, bool stream);

  Join join;
  LogOf log_of;
  std::array<std::array<Combine, 4>, 4> combine;  ///< by x's dtype and y's
  std::array<std::array<Rescale, 4>, 4> rescale;
};

/// The table of the chosen target (targets.hpp).
const MergeOps& merge_ops();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
