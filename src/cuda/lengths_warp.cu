// softmax_lengths_warp and fold_lengths_warp: what they take, and how they are launched.
#include "cuda/lengths_warp.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr std::int64_t kMostBlocks = 0x7FFFFFFF;

const char* refuses(const RowProblem& p, const Context&) {
  if (p.op != Op::softmax) return "log-probabilities are found from the elements once more";
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= kMostBlocks) return "more rows than a grid has";
  return refuses_cut_rows(p);
}

/// So many rows, or chunks of them.
template <class Warp>
void launch_rows(const RowProblem& p, std::int64_t all, const FoldResults& to, Stream stream) {
  constexpr int rows = Warp::kWarps * Warp::kPlaces;
  const auto scale = fold::make_scale<float>(p.scale);
  launch(Warp::kFold ? "fold_lengths_warp" : "softmax_lengths_warp", lengths_warp<Warp>,
         {ceil_div(all, rows), 32 * Warp::kWarps}, stream, ShortRows{p, {}, scale, lift::Factor(scale.c)}, all, to);
}
/// kFold: `to` says where states go; else nothing of it is read.
template <bool kFold>
void launch_lengths(const RowProblem& p, const FoldResults& to, Stream stream) {
  const std::int64_t all = kFold ? p.rows * lift::chunk_count(p.n) : p.rows;
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.n <= 128) return launch_rows<LengthsWarp<E, 4, kFold>>(p, all, to, stream);
    if (p.n <= 256) return launch_rows<LengthsWarp<E, 8, kFold>>(p, all, to, stream);
    if (p.n <= 512) return launch_rows<LengthsWarp<E, 16, kFold>>(p, all, to, stream);
    launch_rows<LengthsWarp<E, 32, kFold>>(p, all, to, stream);
  });
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  launch_lengths<false>(p, {nullptr, RowResults(p)}, stream_of(context));
}

using State = fold::LogSumExp<float>::State;

const char* refuses_fold(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::tiled)) return why;
  if (p.n <= 32) return "rows are too short for groups of lanes";
  if (const char* why = refuses_uncut(p)) return why;
  if (const char* why = refuses_scales(p)) return why;
  return on_whole_vectors(p) ? refuses_chunks(p) : "rows begin or end inside vectors";
}

/// Whether states are rows' own, and go straight to their results.
bool folds_to_results(const RowProblem& p) { return p.n <= lift::kChunk && has_row_results(p); }

std::size_t fold_workspace(const RowProblem& p, const Context&) {
  return folds_to_results(p) ? 0 : state_bytes<State>(p);
}

void run_fold(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(fold_workspace(p, context), context);
  auto* states = folds_to_results(p) ? nullptr : reinterpret_cast<State*>(scratch.data());
  launch_lengths<true>(p, {states, RowResults(p)}, stream_of(context));
  if (states != nullptr) merge_to_results<float>(p, states, stream_of(context));
}

}  // namespace

const RowKernel softmax_lengths_warp_kernel{"softmax_lengths_warp", refuses, run, nullptr};
const RowKernel fold_lengths_warp_kernel{"fold_lengths_warp", refuses_fold, run_fold, fold_workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
