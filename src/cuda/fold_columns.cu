// fold_across_columns: what it takes, and how it is launched.
#include "cuda/fold_columns.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/elements.hpp"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) { return refuses_columns(p); }

std::size_t workspace(const RowProblem& p, const Context&) {
  return lift::chunk_count(p.n) > 1 ? state_bytes<fold::LogSumExp<float>::State>(p) : 0;
}

template <class E, int kRows>
void launch_columns(const FoldColumns& f, Stream stream) {
  launch("fold_across_columns", fold_across_columns<E, kRows>, {blocks_of(f.share, kColumnWarps), kColumnWarps * 32},
         stream, f);
}

/// The states of p's chunks, [rows][chunks]; no place for them: the results of p's rows, of one chunk each.
void launch_rows(const RowProblem& p, int processors, fold::LogSumExp<float>::State* states, Stream stream) {
  const int rows = rows_of_word(p);
  const FoldColumns f = columns_of(p, rows, processors, states);
  with_element(p[Slot::x].dtype,
               [&]<class E>() { with_word_rows<E>(rows, [&]<int kRows>() { launch_columns<E, kRows>(f, stream); }); });
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  auto* states = reinterpret_cast<fold::LogSumExp<float>::State*>(scratch.data());
  launch_rows(p, traits_of(device.device()).processors, states, stream_of(context));
  if (states != nullptr) merge_to_results<float>(p, states, stream_of(context));
}

}  // namespace

const char* refuses_columns(const RowProblem& p) {
  const char* why = refuses_across(p);
  return why != nullptr ? why : refuses_hidden_columns(p);
}

const fold::LogSumExp<float>::State* fold_columns(const RowProblem& p, char* memory, int processors, Stream stream) {
  auto* states = reinterpret_cast<fold::LogSumExp<float>::State*>(memory);
  launch_rows(p, processors, states, stream);
  return merge_levels<fold::LogSumExp<float>>(p, states, stream);
}

const RowKernel fold_across_columns_kernel{"fold_across_columns", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
