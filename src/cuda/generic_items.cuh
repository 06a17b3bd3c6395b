// What warps of general kernels take each, and the nodes that they leave.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/levels.cuh"
#include "cuda/ragged_chunks.cuh"
#include "cuda/states.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline bool is_ragged(const RowProblem& p) { return p[Slot::offsets].given; }

/// Chunks of all rows, or of ragged ones the most that there may be.
inline std::int64_t count_of_chunks(const RowProblem& p) {
  return is_ragged(p) ? most_ragged_chunks(p) : p.rows * lift::chunk_count(p.n);
}

/// Null if a grid has a warp for each of these, else why not.
inline const char* refuses_items(const RowProblem& p) {
  if (!is_ragged(p)) return refuses_chunks(p);
  return count_of_chunks(p) < std::int64_t{0x7FFFFFFF} * kWarps ? nullptr : "more chunks than a grid has";
}

/// What warps take each, and in workspace what they have to know for it.
class Items {
 public:
  Items(const RowProblem& p, Parts& parts)
      : p_(p),
        bytes_(is_ragged(p) ? first_chunk_bytes(p) : 0),
        memory_(is_ragged(p) ? parts.bytes_for<char>(bytes_) : nullptr) {}
  void find(Stream stream) {
    if (is_ragged(p_)) first_chunks_ = find_first_chunks(p_, memory_, bytes_, stream);
  }
  GenericItems chunks() const { return {count_of_chunks(p_), false, first_chunks_}; }
  /// What is written is written along rows, or across them.
  GenericItems results() const { return results(is_across(p_)); }
  GenericItems results(bool across) const {
    return {is_ragged(p_) ? count_of_chunks(p_) : write_items(p_, across), across, first_chunks_};
  }

 private:
  const RowProblem& p_;
  std::size_t bytes_;  ///< of what is found
  char* memory_;
  const std::int64_t* first_chunks_ = nullptr;
};

/// The states of chunks, and from them one a row. kLong: as of merge_levels().
template <class F, bool kLong = false>
class Nodes {
 public:
  using State = typename F::State;

  Nodes(const RowProblem& p, State* at) : p_(p), nodes_(at) {}
  Nodes(const RowProblem& p, Parts& parts) : Nodes(p, parts.bytes_for<State>(bytes(p))) {}
  static std::size_t bytes(const RowProblem& p) {
    if (!is_ragged(p)) return state_bytes<State, kLong>(p);
    return static_cast<std::size_t>(count_of_chunks(p) + p.rows) * sizeof(State);
  }
  State* chunks() const { return nodes_; }
  /// Of rows of no elements every state is the empty one.
  State* merge(const GenericItems& items, Stream stream) const {
    if (items.count == 0) {
      launch("merge_nodes", merge_nodes<F>, warps_for(p_.rows), stream, nodes_, std::int64_t{0}, nodes_,
             std::int64_t{1}, p_.rows);
      return nodes_;
    }
    if (!is_ragged(p_)) return merge_levels<F, kLong>(p_, nodes_, stream);
    State* roots = nodes_ + items.count;
    launch("merge_ragged", merge_ragged<F>, {ceil_div(p_.rows, kThreads), kThreads}, stream.following(), nodes_,
           items.first_chunks, items.count, roots, p_.rows);
    return roots;
  }

 private:
  const RowProblem& p_;
  State* nodes_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
