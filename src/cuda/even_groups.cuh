// Rows of one length that are too long for a cluster: all blocks share the groups of their chunks, as they share those
// of ragged rows from a list.
#pragma once

#include "cuda/ragged_long.cuh"
#include "cuda/states.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The groups of all rows, one row's behind the other's, as RaggedListOf has them.
template <class State_>
struct EvenGroups {
  using State = State_;
  using List = RaggedListOf<State>;
  using Group = typename List::Group;
  using Chunks = typename List::Chunks;
  static constexpr int kLevel = List::kLevel, kGroup = List::kGroup;

  State* states;  ///< a group
  std::int64_t n, rows;

  static SOFTFOLD_HD std::int64_t groups_of(std::int64_t n) { return (lift::chunk_count(n) + kGroup - 1) >> kLevel; }
  static __device__ __forceinline__ Chunks chunks_of(std::int64_t first_group, long long at, std::int64_t n) {
    return List::chunks_of(first_group, at, n);
  }
  SOFTFOLD_HD long long count() const { return rows * groups_of(n); }
  __device__ __forceinline__ Group group(long long at) const {
    const std::int64_t row = at / groups_of(n);
    return {row, row * groups_of(n)};
  }
};

/// Those of p's rows, with the states' place.
template <class State>
EvenGroups<State> even_groups(const RowProblem& p, Parts& parts) {
  EvenGroups<State> groups{nullptr, p.n, p.rows};
  groups.states = parts.take<State>(groups.count());
  return groups;
}
template <class State>
std::size_t even_workspace(const RowProblem& p, const Context&) {
  Parts parts(nullptr);
  (void)even_groups<State>(p, parts);
  return parts.used();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
