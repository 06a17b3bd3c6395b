// Which rows the kernels for small problems take, and in which shapes.
#pragma once

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/levels.cuh"
#include "cuda/small_blocks.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Null if they take p's rows, else why not.
const char* refuses_small(const RowProblem& p, const Context&);
SmallRows small_rows(const RowProblem& p);
/// Whether PlainAccess serves, of rows that refuses_small() takes or refuses_plain_rows() does.
bool is_plain_small(const RowProblem& p);
/// Null if it does, of any rows, else why not.
const char* refuses_plain_small(const RowProblem& p);
/// A group of kLanes lanes a row.
template <int kLanes>
Grid small_grid(std::int64_t rows) {
  return {ceil_div(rows, kSmallThreads / kLanes), kSmallThreads};
}

/// go.operator()<lanes a row, elements a lane, at most kMost>(), 4 or more. Few elements a lane: a warp has no other to
/// wait for.
template <int kMost, class Go>
void with_small_shape(std::int64_t n, const Go& go) {
  if (n <= 2) return go.template operator()<1, 2>();
  if (n <= 4) return go.template operator()<1, 4>();
  if (n <= 8) return go.template operator()<2, 4>();
  if (n <= 16) return go.template operator()<4, 4>();
  if (n <= 32) return go.template operator()<8, 4>();
  if (n <= 64) return go.template operator()<16, 4>();
  if (kMost == 4 || n <= 128) return go.template operator()<32, 4>();
  if constexpr (kMost > 4) {
    if (n <= 256) return go.template operator()<32, 8>();
    if (n <= 512) return go.template operator()<32, 16>();
  }
  if constexpr (kMost > 16) go.template operator()<32, kMost>();
}

/// go.operator()<Access>() of what p's rows want.
template <class Go>
void with_small_access(const RowProblem& p, const Go& go) {
  if (!is_plain_small(p)) return go.template operator()<AnyAccess>();
  with_element(p[Slot::x].dtype, [&]<class E>() { go.template operator()<PlainAccess<E>>(); });
}

/// Measured: whether a row is a block's (small_blocks.cuh). Of many rows groups of lanes are faster, but with more than
/// 16 elements a lane those of gradients wait for each other.
inline bool is_small_block(const RowProblem& p) {
  if (p.n > lift::kChunk) return true;
  if (p[Slot::dy].given) return p.n > 512 || (p.n > 128 && p.rows <= 256);
  return p.n > 512 && p.rows <= 256;
}

/// Launches p's rows: by_groups.operator()<Access, lanes a row, elements a lane, at most kMost>(grid), or
/// by_blocks.operator()<Access, chunks of a row>(grid).
template <int kMost, class ByGroups, class ByBlocks>
void launch_small(const RowProblem& p, const ByGroups& by_groups, const ByBlocks& by_blocks) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  with_small_access(p, [&]<class Access>() {
    const auto groups = [&]<int kLanes, int kCount>() {
      by_groups.template operator()<Access, kLanes, kCount>(small_grid<kLanes>(p.rows));
    };
    // Neighbouring lanes to neighbouring rows.
    if constexpr (Access::kAny)
      if (p.n > 4 && p.n <= 8 && is_across(p)) return groups.template operator()<1, 8>();
    if (!is_small_block(p)) return with_small_shape<kMost>(p.n, groups);
    const auto blocks = [&]<int kChunks>() {
      by_blocks.template operator()<Access, kChunks>({p.rows, SmallBlock<kChunks>::kThreads});
    };
    if (p.n <= lift::kChunk) return blocks.template operator()<1>();
    p.n <= 2 * lift::kChunk ? blocks.template operator()<2>() : blocks.template operator()<4>();
  });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
