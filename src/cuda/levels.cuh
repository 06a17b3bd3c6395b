// From the states of chunks to one a row, level by level, on a stream.
#pragma once

#include "cuda/launch.hpp"
#include "cuda/row_results.cuh"

#include <algorithm>
#include <cstdlib>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kThreads = 128, kWarps = kThreads / 32;

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

inline Grid warps_for(std::int64_t items) { return {ceil_div(items, kWarps), kThreads}; }

/// Whether rows, not the elements of one, lie side by side in an operand: in the result, unless another is named.
inline bool is_across(const RowProblem& p, Slot slot = Slot::y) {
  const Operand& o = p[slot];
  if (!o.given || p.outer_rank == 0) return false;
  const auto stride = std::abs(o.strides[static_cast<std::size_t>(p.outer_rank - 1)]);
  return p.rows > 1 && stride != 0 && stride < std::abs(o.axis_stride);
}
/// Whether rows side by side are so few elements that neighbouring lanes need not have neighbouring rows. Measured.
inline bool are_few_across(const RowProblem& p) {
  constexpr std::int64_t most = 1 << 17;
  return is_across(p) && p.rows * p.n <= most;
}

/// Elements of different rows that lie together, of rows side by side, and their bytes.
struct Together {
  std::int64_t elements, bytes;
  Together(const RowProblem& p, Slot slot)
      : elements(p.outer[static_cast<std::size_t>(p.outer_rank - 1)]),
        bytes(elements * static_cast<std::int64_t>(size_of(p[slot].dtype))) {}
};
/// Whether they are so few that neighbouring lanes are better in a row than side by side. Measured: gradients; folds to
/// one result a row; softmax and log_softmax.
inline bool lie_few_together(const RowProblem& p) {
  if (!is_across(p)) return false;
  const Together lie(p, Slot::y);
  const std::int64_t all = p.rows * p.n, few = 1 << 19, some = 1 << 20;
  if (p[Slot::dy].given) {
    if (lie.elements <= 4) return true;
    if (lie.bytes <= 16) return p.n <= lift::kChunk ? p.n >= 128 || all <= some : all <= few;
    return lie.bytes <= 32 && p.n > 4 * lift::kChunk && all <= few;
  }
  if (lie.bytes <= 8) return true;
  if (lie.elements > 4 && p.n <= 32) return false;
  if (lie.bytes <= 16) return p.n <= lift::kChunk || all <= few || (p.n > 4 * lift::kChunk && p.n <= 16 * lift::kChunk);
  if (lie.bytes <= 32) return p.n > 16 * lift::kChunk ? all <= few : p.n <= lift::kChunk / 2;
  return p.n <= lift::kChunk / 4 && (lie.bytes <= 64 || (lie.bytes <= 128 && all <= some));
}
inline bool folds_few_together(const RowProblem& p) {
  if (!is_across(p, Slot::x)) return false;
  const Together lie(p, Slot::x);
  if (lie.elements <= 2) return p.n >= 128;
  return p.n > 256 && lie.bytes <= 32 && p.rows * p.n <= (lie.bytes <= 16 ? 1 << 22 : 1 << 20);
}

inline std::int64_t write_items(const RowProblem& p, bool across) {
  return across ? ceil_div(p.rows, 32) * ceil_div(p.n, 32) : p.rows * lift::chunk_count(p.n);
}

/// Calls f with a value of the type that the problem is folded in.
template <class F>
void with_fold_type(const RowProblem& p, F&& f) {
  if (p.is_double()) {
    f(double{});
  } else {
    f(float{});
  }
}

/// Null if a grid has a warp for every chunk, else why not.
inline const char* refuses_chunks(const RowProblem& p) {
  constexpr std::int64_t most = std::int64_t{0x7FFFFFFF} * kWarps;
  const bool fits = p.rows * std::max<std::int64_t>(lift::chunk_count(p.n), 1) < most;
  return fits ? nullptr : "more chunks than a grid has";
}

/// How many nodes of a row one node of the level above takes. kLong: of a fold whose merge is long.
template <bool kLong>
std::int64_t fan_in(const RowProblem& p, std::int64_t count) {
  constexpr std::int64_t kManyNodes = 1 << 13;
  if (count <= kFewNodes) return kFewNodes;
  return kLong && p.rows * count >= kManyNodes ? kRun : 32;
}

/// How many nodes each level of the tree has in all, from the chunks up.
template <bool kLong, class Visit>
void for_levels(const RowProblem& p, const Visit& visit) {
  for (std::int64_t count = lift::chunk_count(p.n); count > 1;) {
    const std::int64_t next = ceil_div(count, fan_in<kLong>(p, count));
    visit(count, next);
    count = next;
  }
}

/// Bytes for the states of every level.
template <class State, bool kLong = false>
std::size_t state_bytes(const RowProblem& p) {
  std::int64_t states = p.rows * std::max<std::int64_t>(lift::chunk_count(p.n), 1);
  for_levels<kLong>(p, [&](std::int64_t, std::int64_t next) { states += p.rows * next; });
  return static_cast<std::size_t>(states) * sizeof(State);
}

/// From the chunks' states at `states`, which a kernel of the same call wrote, to one a row; returns where they are.
template <class F, bool kLong = false>
typename F::State* merge_levels(const RowProblem& p, typename F::State* states, Stream stream) {
  for_levels<kLong>(p, [&](std::int64_t count, std::int64_t next) {
    typename F::State* to = states + p.rows * count;
    const std::int64_t items = p.rows * next;
    const Grid threads{ceil_div(items, kThreads), kThreads};
    if (count <= kFewNodes) {
      launch("merge_few_nodes", merge_few_nodes<F>, threads, stream.following(), states, count, to, p.rows);
    } else if (fan_in<kLong>(p, count) == 32) {
      launch("merge_nodes", merge_nodes<F>, warps_for(items), stream.following(), states, count, to, next, items);
    } else if constexpr (kLong) {
      launch("merge_runs", merge_runs<F>, threads, stream.following(), states, count, to, next, items);
    }
    states = to;
  });
  return states;
}

/// logsumexp and state: from the chunks' states at `states` to every row's result.
template <class T>
void merge_to_results(const RowProblem& p, typename fold::LogSumExp<T>::State* states, Stream stream) {
  const auto* roots = merge_levels<fold::LogSumExp<T>>(p, states, stream);
  const Grid grid{ceil_div(p.rows, kThreads), kThreads};
  if constexpr (sizeof(T) == 4) {
    if (has_row_results(p))
      return launch("put_row_results", put_row_results<typename fold::LogSumExp<T>::State>, grid, stream.following(),
                    RowResults(p), p.rows, roots);
  }
  launch("write_row_results", write_row_results<T>, grid, stream.following(), p, roots);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
