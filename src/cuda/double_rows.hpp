// What kernels of float64 take, and the shapes they are launched in.
#pragma once

#include "cuda/choose.hpp"
#include "cuda/levels.cuh"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kDoubleThreads = 256;  ///< of blocks that have rows of one tile, or chunks

/// Null if rows of float64 can be read an element at a time, a group of lanes or a warp a chunk, else why not. Where
/// rows lie side by side, a group's lanes ask for elements far apart, and groups for neighbouring ones.
inline const char* refuses_double(const RowProblem& p, Rung rung) {
  if (!p.is_double()) return "elements are not float64";
  if (const char* why = refuses_rung(p.rung, rung)) return why;
  if (p[Slot::offsets].given) return "ragged rows have no common length";
  if (p.n == 0) return "rows of no elements";
  return refuses_chunks(p);
}
/// The same of longer rows, with results of their elements: so few of these lie together that the general kernels are
/// faster where many rows lie side by side.
inline const char* refuses_double_apart(const RowProblem& p, Rung rung) {
  return is_across(p) && !are_few_across(p) ? "rows lie side by side" : refuses_double(p, rung);
}

/// Null if, further, a group holds a row. Measured: gradients of rows side by side over 512 elements.
inline const char* refuses_double_rows(const RowProblem& p, Rung rung) {
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p[Slot::dy].given && p.n > lift::kChunk / 2) return refuses_double_apart(p, rung);
  return refuses_double(p, rung);
}
/// Null if, further, a cluster holds one.
inline const char* refuses_double_cluster(const RowProblem& p, Rung rung) {
  const char* why = refuses_double_apart(p, rung);
  return why != nullptr ? why : refuses_one_cluster(p);
}

/// go.operator()<lanes a row, elements a lane>() of rows of one tile. Measured: few lanes do what is done once a row
/// fewer times, many of them ask for whole lines of memory at once.
template <class Go>
void with_double_shape(std::int64_t n, const Go& go) {
  if (n <= 2) return go.template operator()<1, 2>();
  if (n <= 4) return go.template operator()<1, 4>();
  if (n <= 8) return go.template operator()<2, 4>();
  if (n <= 16) return go.template operator()<4, 4>();
  if (n <= 32) return go.template operator()<4, 8>();
  if (n <= 64) return go.template operator()<8, 8>();
  if (n <= 128) return go.template operator()<8, 16>();
  if (n <= 256) return go.template operator()<16, 16>();
  if (n <= 512) return go.template operator()<32, 16>();
  go.template operator()<32, 32>();
}

/// Blocks for so many groups of lanes.
inline Grid grid_of_groups(std::int64_t groups, int lanes) {
  return {ceil_div(groups, kDoubleThreads / lanes), kDoubleThreads};
}

/// The rows' states, and the workspace that is asked for them.
const fold::LogSumExp<double>::State* double_states(const RowProblem& p, char* memory, Stream stream);
inline std::size_t double_state_bytes(const RowProblem& p) { return state_bytes<fold::LogSumExp<double>::State>(p); }

/// Whether clusters of blocks of so many warps hold a row, a chunk a warp.
inline bool fits_clusters(const RowProblem& p, int warps) {
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  return lift::chunk_count(p.n) <= std::int64_t{warps} * std::max(traits.largest_cluster, 1);
}
/// Where small blocks hold a row, several of them share a processor, and some load while others compute.
inline Grid grid_of_clusters(const RowProblem& p, int small, int large) {
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  return cluster_grid(p.rows, lift::chunk_count(p.n), traits, fits_clusters(p, small) ? small : large);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
