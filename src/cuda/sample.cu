// sample: which rows are drawn from by one read, and how the kernels follow each other.
#include "cuda/sample.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/sample_draw.cuh"
#include "cuda/sample_rows.hpp"
#include "cuda/sample_top.cuh"
#include "cuda/states.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using State = fold::LogSumExp<float>::State;

constexpr const char* kTellsNoTop = "top_tokens are asked for";

const char* refuses_rows(const SampleProblem& p, const Context&) {
  if (p[SampleSlot::top_tokens].given) return kTellsNoTop;
  return p.n < 0xFFFFFFFFLL ? nullptr : "a row is longer than 2^32 - 2";
}

std::int64_t room_for(const SampleProblem& p) { return SampleBlocks<AnyElements>::room_for(p.n); }

std::size_t rows_workspace(const SampleProblem& p, const Context&) {
  Parts parts(nullptr);
  lay_out_sample_rows(p, parts, RowsLeft::all);
  return parts.used();
}

void run_rows(const SampleProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(rows_workspace(p, context), context);
  Parts parts(scratch.data());
  launch_sample_rows(p, lay_out_sample_rows(p, parts, RowsLeft::all), nullptr, RowsLeft::all, stream_of(context));
}

/// Of all rows; the temperature is not 0.
fold::Scale<float> scaled(const SampleProblem& p) { return fold::make_scale<float>(p.scale / p.temperature); }

bool has_options_of_rows(const SampleProblem& p) {
  return p[SampleSlot::temperatures].given || p[SampleSlot::top_ks].given || p[SampleSlot::top_ps].given ||
         p[SampleSlot::min_ps].given;
}

/// No row of the call has anything taken away, and none is greedy.
bool is_unfiltered(const SampleProblem& p) {
  return !has_options_of_rows(p) && p.temperature > 0. && p.top_p >= 1. && p.min_p <= 0. &&
         (p.top_k == 0 || p.top_k >= p.n) && scaled(p).c < fold::infinity<float>();
}

/// Entries that a row may need; 0: none would help.
int most_entries(const SampleProblem& p) {
  if (is_unfiltered(p)) return 0;
  if (has_options_of_rows(p)) return kMostFilterK;
  if (p.temperature == 0.) return 1 + kMostTies;
  if (p.top_k > 0 && p.top_k < p.n)
    return p.top_k + kMostTies <= kMostFilterK ? static_cast<int>(p.top_k) + kMostTies : 0;
  return p.top_p < 1. ? 0 : kMostFilterK;
}

/// Rows that the k best elements do not decide: hardly any, if all rows have the same k.
RowsLeft left_to_rows(const SampleProblem& p) {
  return !has_options_of_rows(p) && p.top_k > 0 && p.top_k < p.n ? RowsLeft::few : RowsLeft::all;
}

/// Measured: rows up to which a block or a cluster each is faster: greedy ones; such of which more entries are wanted
/// than their chunks have lanes, whose maxima then bound nothing; and a few long ones of which many are wanted.
std::int64_t most_by_rows(const SampleProblem& p) {
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (has_options_of_rows(p)) return 0;
  if (p.temperature == 0.) return chunks > 8 ? 0 : p.n < 512 ? 1024 : 512;
  if (p.top_k <= 0 || p.top_k >= p.n || p.n < 256) return 0;
  const bool cuts = p.top_p < 1. || p.min_p > 0.;
  if (chunks > 8) return p.top_k >= 100 && !cuts && chunks <= 128 ? 32 : 0;
  if (chunks * 32 >= most_entries(p)) return 0;
  if (chunks > 4) return 64;
  if (p.top_k >= 128 && !cuts) return std::int64_t{1} << 62;
  if (p.n < 512) return p.top_k >= 32 && cuts ? 0 : 128;
  return 512;
}

const char* refuses_draw(const SampleProblem& p, const Context&) {
  if (p[SampleSlot::top_tokens].given) return kTellsNoTop;
  if (p.n == 0) return "rows of no elements";
  if (p[SampleSlot::bias].given || p[SampleSlot::bitmask].given) return "logits have a bias or a bitmask";
  if (p[Slot::y].given || p[SampleSlot::masked].given) return "results of x's shape are asked for";
  if (most_entries(p) == 0 && !is_unfiltered(p)) return "what is kept may be more than 225 elements";
  if (lift::chunk_count(p.n) > std::int64_t{1024} * kMostSegmentChunks) return "a row is longer than 2^28";
  if (p.rows * lift::chunk_count(p.n) >= 0x7FFFFFFF) return "more chunks than a grid has blocks";
  if (const char* why = refuses_plain(p)) return why;
  return p.rows <= most_by_rows(p) ? "such rows, or so few of them, are faster by sample_rows" : nullptr;
}

/// The call's workspace.
struct DrawMemory {
  SampleWork work;
  State* raw;

  DrawMemory(const SampleProblem& p, Parts& parts) : work{}, raw(nullptr) {
    const int most = most_entries(p);
    const std::int64_t chunks = lift::chunk_count(p.n);
    TopkShare& share = work.share;
    const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
    share = share_rows(p.rows, p.n, most, traits);
    const bool tells_raw = p.of == Distribution::raw && p[SampleSlot::log_probability].given;
    if (most == 0 || has_options_of_rows(p) || tells_raw) {
      share.nodes = parts.take<State>(p.rows * chunks);
      if (chunks > kSharedChunks) work.trees = parts.take<State>(p.rows * room_for(p));
    }
    if (most == 0) {
      share.segments = 1;
      if (tells_raw && fold::make_scale<float>(p.scale).c != scaled(p).c) raw = parts.take<State>(p.rows * chunks);
      work.raw = raw;
      return;
    }
    share.joins = share.segments > 1 && share.segments <= traits.largest_cluster;
    share.entries = parts.take<Entry>(p.rows * share.segments * most);
    // The k best decide nearly every row. One that they do not is drawn by the block that found so, but where rows may
    // all be such by larger blocks.
    const bool few = p.rows <= 2 * traits.processors;
    if (!share.joins || left_to_rows(p) == RowsLeft::all || !few) {
      work.left = parts.take<unsigned>(p.rows);
      work.rows = lay_out_sample_rows(p, parts, left_to_rows(p));
    } else {
      work.rows = parts.take<State>(p.rows * room_for(p));
    }
  }
};

std::size_t draw_workspace(const SampleProblem& p, const Context&) {
  Parts parts(nullptr);
  const DrawMemory memory(p, parts);
  return parts.used();
}

void launch_draw(const SampleJob& job, Stream stream) {
  const std::int64_t rows = job.p.rows;
  if (job.work.share.segments > 1) {
    launch("sample_draw", sample_draw<true>, {rows, kJoinThreads, 1, joined_draw_bytes(job)}, stream, job);
  } else {
    const Grid grid{ceil_div(rows, kDrawWarps), kDrawWarps * 32, 1, kDrawWarps * job.room.bytes()};
    launch("sample_draw", sample_draw<false>, grid, stream, job);
  }
}

/// The read, which also draws where clusters join the segments of rows.
void launch_filter(const SampleJob& job, Stream stream) {
  with_element(job.p[Slot::x].dtype, [&]<class E>() {
    Grid grid = filter_grid<E>(job.p, job.work.share);
    if (job.work.share.joins) grid.shared_bytes = std::max(grid.shared_bytes, joined_draw_bytes(job));
    launch_filter<E>(job, plain_rows(job.p), job.work.share, grid, stream);
  });
}

void run_draw(const SampleProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(draw_workspace(p, context), context);
  Parts parts(scratch.data());
  const DrawMemory memory(p, parts);
  const SampleWork& work = memory.work;
  const Stream stream = stream_of(context);
  const SampleJob job(p, work, !has_options_of_rows(p));
  const auto fold = [&](State* nodes, double scale) {
    RowProblem q = p;
    q.scale = scale;
    fold_plain_chunks(q, nodes, stream);
  };
  if (work.share.k == 0) {
    fold(work.share.nodes, p.scale / p.temperature);
    if (memory.raw != nullptr) fold(memory.raw, p.scale);
  }
  if (work.share.k > 0) launch_filter(job, stream);
  if (!work.share.joins) launch_draw(job, stream);
  if (work.left != nullptr) launch_sample_rows(p, work.rows, work.left, left_to_rows(p), stream);
}

constexpr Kernel<SampleProblem> kKernels[] = {{"sample_and_topk", refuses_top, run_top, top_workspace},
                                              {"sample_draw", refuses_draw, run_draw, draw_workspace},
                                              {"sample_rows", refuses_rows, run_rows, rows_workspace}};

}  // namespace
}  // namespace cuda

std::span<const Kernel<SampleProblem>> cuda_sample_kernels() { return cuda::kKernels; }

}  // namespace v0
}  // namespace softfold
