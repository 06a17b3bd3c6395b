// fold_across_hidden: what it takes, and how it is launched.
#include "cuda/fold_hidden_columns.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/elements.hpp"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using State = fold::LogSumExp<float>::State;

const char* refuses(const RowProblem& p, const Context&) { return refuses_hidden_columns(p); }

std::size_t workspace(const RowProblem& p, const Context&) { return state_bytes<State>(p); }

template <class E, int kRows>
void launch_columns(const RowProblem& p, int processors, State* states, Stream stream) {
  const FoldHiddenColumns columns{.of = columns_of(p, kRows, processors, states), .hidden = HiddenColumns(p, kRows)};
  launch("fold_across_hidden", fold_across_hidden<E, kRows>,
         {blocks_of(columns.of.share, kColumnWarps), kColumnWarps * 32}, stream, columns);
}

/// The states of p's chunks, [rows][chunks].
void launch_rows(const RowProblem& p, int processors, State* states, Stream stream) {
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_word_rows<E>(rows_of_word(p), [&]<int kRows>() { launch_columns<E, kRows>(p, processors, states, stream); });
  });
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  auto* states = reinterpret_cast<State*>(scratch.data());
  launch_rows(p, traits_of(device.device()).processors, states, stream_of(context));
  merge_to_results<float>(p, states, stream_of(context));
}

}  // namespace

const char* refuses_hidden_columns(const RowProblem& p) {
  if (const char* why = refuses_side_by_side(p)) return why;
  if (lift::chunk_count(p.n) > 0x7FFFFFFF) return "a row has more chunks than are counted";
  return refuses_chunks(p);
}

const State* fold_hidden_columns(const RowProblem& p, char* memory, int processors, Stream stream) {
  auto* states = reinterpret_cast<State*>(memory);
  launch_rows(p, processors, states, stream);
  return merge_levels<fold::LogSumExp<float>>(p, states, stream);
}

const RowKernel fold_across_hidden_kernel{"fold_across_hidden", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
