// From the states of chunks to one a row, level by level, on a stream.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/launch.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kThreads = 128, kWarps = kThreads / 32;

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

inline Grid warps_for(std::int64_t items) { return {ceil_div(items, kWarps), kThreads}; }

/// How many nodes each level of the tree has in all, from the chunks up; a level is 32 times smaller than the one
/// below.
template <class Visit>
void for_levels(const RowProblem& p, const Visit& visit) {
  for (std::int64_t count = lift::chunk_count(p.n); count > 1;) {
    const std::int64_t next = ceil_div(count, 32);
    visit(count, next);
    count = next;
  }
}

/// Bytes for the states of every level.
template <class State>
std::size_t state_bytes(const RowProblem& p) {
  std::int64_t states = p.rows * std::max<std::int64_t>(lift::chunk_count(p.n), 1);
  for_levels(p, [&](std::int64_t, std::int64_t next) { states += p.rows * next; });
  return static_cast<std::size_t>(states) * sizeof(State);
}

/// From the chunks' states at `states` to one a row; returns where they are.
template <class F>
const typename F::State* merge_levels(const RowProblem& p, typename F::State* states, cudaStream_t stream) {
  for_levels(p, [&](std::int64_t count, std::int64_t next) {
    typename F::State* to = states + p.rows * count;
    launch("merge_nodes", merge_nodes<F>, warps_for(p.rows * next), stream, states, count, to, next, p.rows * next);
    states = to;
  });
  return states;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
