// fold_listed_rows: which rows it takes, and how its kernels are launched.
#include "cuda/listed_runs.cuh"

#include "cuda/choose.hpp"
#include "cuda/cut_tile.cuh"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/states.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// About as many runs a block lists, and a warp merges the states of.
constexpr std::int64_t kListedOfBlock = 1024, kMergedOfWarp = 32;

/// Rows whose states a warp merges: a lane each, but neighbours may all be so long that a warp takes each by itself.
int rows_of_warp(std::int64_t rows, std::int64_t chunks) {
  if (2 * chunks < 3 * rows) return 32;
  return static_cast<int>(std::clamp<std::int64_t>(kMergedOfWarp * rows / chunks, 1, 8));
}

/// Full runs that rows can have; those of ragged rows lie end to end.
std::int64_t most_full_runs(const RowProblem& p) {
  return p[Slot::offsets].given ? p.ragged_elements / lift::kChunk : p.rows * (p.n / lift::kChunk);
}

/// Measured beside the other kernels: rows or elements that are so few that three launches take longer, or so short
/// that lanes take a row each faster.
const char* refuses_measured(const RowProblem& p) {
  constexpr std::int64_t kMega = 1 << 20;
  const std::int64_t elements = p[Slot::offsets].given ? p.ragged_elements : p.rows * p.n;
  const auto from = [elements](std::int64_t megas) {
    return elements >= megas * kMega ? nullptr : "fewer elements than a list of runs is worth";
  };
  if (p[Slot::offsets].given) {
    const std::int64_t mean = elements / p.rows;
    if (mean < 160) return "rows are shorter than runs are worth";
    if (mean > 2 * kMega) return "rows are longer than a warp merges well";
    return from(6);
  }
  if (p.n > 2 * kMega) return "rows are longer than a warp merges well";
  if (!on_whole_vectors(p)) return p.n < 200 ? "rows are shorter than runs are worth" : from(12);
  if (p.n <= lift::kChunk) return "a row is shorter than a list of runs is worth";
  return from(p.n < 8192 ? 64 : 32);
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::tiled)) return why;
  if (!p[Slot::offsets].given && !p[Slot::length].given && !p.causal) return "the lengths of all rows are known";
  if (p[Slot::mask].given) return "rows have a mask";
  if (size_of(p[Slot::x].dtype) != 2) return "runs of float32 are shorter than chunks";
  if (!has_row_results(p)) return "results are several strides apart, or rows have scales of their own";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (p.rows == 0) return "there are no rows";
  if (most_full_runs(p) + p.rows >= RunTiles::kMostRuns) return "more runs than a list has";
  if (const char* why = refuses_vectors(p)) return why;
  if (const char* why = refuses_measured(p)) return why;
  const bool fits = traits_of(DeviceOf(p[Slot::x].data).device()).shared_bytes >= kBlockBytes;
  return fits ? nullptr : "blocks have too little shared memory";
}

RunList list_of(const RowProblem& p, Parts& parts) {
  RunList list{};
  list.capacity = static_cast<unsigned>(most_full_runs(p)), list.rows = static_cast<unsigned>(p.rows);
  list.counters = parts.take<RunList::Counters>(1);
  list.full = parts.take<ListedRun>(list.capacity), list.cut = parts.take<ListedRun>(p.rows);
  list.of_rows = parts.take<RunList::OfRow>(p.rows);
  list.states = parts.take<RunList::State>(list.state_count());
  return list;
}

std::size_t workspace(const RowProblem& p, const Context&) {
  Parts parts(nullptr);
  (void)list_of(p, parts);
  return parts.used();
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  Parts parts(scratch.data());
  const RunList list = list_of(p, parts);
  const Stream stream = stream_of(context);
  check(cudaMemsetAsync(list.counters, 0, sizeof(RunList::Counters), stream), "list_runs");
  const std::int64_t chunks = most_full_runs(p) + p.rows;
  const auto rows_of_block = std::clamp<std::int64_t>(kListedOfBlock * p.rows / chunks, 1, RunLister::kThreads);
  launch("list_runs", list_runs, {ceil_div(p.rows, rows_of_block), RunLister::kThreads}, stream, p, list,
         static_cast<int>(rows_of_block));

  const Extent x = memory_of(p, p[Slot::x]);
  const auto scale = fold::make_scale<float>(p.scale);
  const PlainRows rows{p[Slot::x].data,       nullptr, x.begin, x.end, 0, 0, p.rows, p.n, scale,
                       lift::Factor(scale.c), p.empty, 0,       false};
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if constexpr (sizeof(E) == 2) {
      const Grid grid{traits_of(device.device()).processors, 32 * kSlotWarps, 1, Places<E, 8>::kAll};
      launch("fold_listed_runs", fold_listed_runs<E>, grid, stream.following(), rows, list,
             kLooksUp<E> && TermTable::fits(scale.c));
      const int each = rows_of_warp(p.rows, chunks);
      launch("finish_listed_rows", finish_listed_rows<E>, {ceil_div(p.rows, each * kFinishWarps), 32 * kFinishWarps},
             stream.following(), p, list, RowResults(p), each);
    }
  });
}

}  // namespace

const RowKernel fold_listed_rows_kernel{"fold_listed_rows", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
