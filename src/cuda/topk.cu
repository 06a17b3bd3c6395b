// topk: which rows each kernel takes, and how rows are cut.
#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/levels.cuh"
#include "cuda/small_rows.hpp"
#include "cuda/states.hpp"
#include "cuda/topk_large.cuh"
#include "cuda/topk_radix.cuh"
#include "cuda/topk_search.cuh"
#include "cuda/topk_warp.cuh"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using State = fold::LogSumExp<float>::State;

bool wants_states(const TopkProblem& p) {
  return p[TopkSlot::probabilities].given || p[TopkSlot::log_probabilities].given || p[TopkSlot::lse].given;
}

int processors_of(const TopkProblem& p) { return traits_of(DeviceOf(p[Slot::x].data).device()).processors; }

const char* refuses_radix(const TopkProblem& p, const Context& context) {
  return wants_states(p) ? refuses_states(p, context) : nullptr;
}

std::int64_t radix_blocks(const TopkProblem& p) { return std::min<std::int64_t>(p.rows, 4 * processors_of(p)); }

template <class T>
std::int64_t radix_bytes(const TopkProblem& p) {
  return p.k * static_cast<std::int64_t>(sizeof(fold::Ranked<T>));
}

/// The workspace of topk_radix: rows' states, if any, and a block's entries where it has no room for them itself.
template <class T>
fold::Ranked<T>* lay_out_radix(const TopkProblem& p, const Context& context, Parts& parts, RowStates& states) {
  if (wants_states(p)) states.lay_out(p, parts, context);
  return radix_bytes<T>(p) <= kMostRadixBytes ? nullptr : parts.take<fold::Ranked<T>>(radix_blocks(p) * p.k);
}

std::size_t radix_workspace(const TopkProblem& p, const Context& context) {
  Parts parts(nullptr);
  RowStates states;
  with_fold_type(p, [&]<class T>(T) { lay_out_radix<T>(p, context, parts, states); });
  return parts.used();
}

void run_radix(const TopkProblem& given, const Context& context) {
  const DeviceOf device(given[Slot::x].data);
  const Scratch scratch(radix_workspace(given, context), context);
  TopkProblem p = given;
  with_fold_type(p, [&]<class T>(T) {
    Parts parts(scratch.data());
    RowStates states;
    auto* entries = lay_out_radix<T>(given, context, parts, states);
    if (wants_states(p)) {
      states.run(context);
      p[Slot::states] = states.operand();
    }
    const auto shared_bytes = static_cast<int>(entries == nullptr ? radix_bytes<T>(p) : 0);
    launch("topk_radix", topk_radix<T>, {radix_blocks(p), kRadixThreads, 1, shared_bytes}, stream_of(context), p,
           wants_states(p), entries);
  });
}

/// Of plain rows, by what has room for a few.
const char* refuses_plain_topk(const TopkProblem& p) {
  if (p.k == 0) return "nothing is taken";
  if (p.k > kMostFilterK) return "more than 256 are taken";
  if (!(fold::make_scale<float>(p.scale).c > 0.F)) return "the scale is not positive";
  if (p.rows * lift::chunk_count(p.n) >= 0x7FFFFFFF) return "more chunks than a grid has blocks";
  return refuses_plain(p);
}

const char* refuses_warp_rows(const TopkProblem& p, const Context&) {
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.k > kMostWarpK) return "more than 32 are taken";
  if (p.k > 8 && p.n < 16 * p.k) return "a row has fewer runs of 16 elements than are taken";
  return refuses_plain_topk(p);
}

template <class E, int kLanes>
void launch_warp_rows(const TopkProblem& p, Stream stream) {
  const Grid grid{ceil_div(p.rows, kWarpTopkWarps * (32 / kLanes)), kWarpTopkWarps * 32};
  const float c = fold::make_scale<float>(p.scale).c;
  launch("topk_warp_rows", wants_states(p) ? topk_warp_rows<E, kLanes, true> : topk_warp_rows<E, kLanes, false>, grid,
         stream, p, c);
}

void run_warp_rows(const TopkProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Stream stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.n <= 256 && p.k <= 8) return launch_warp_rows<E, 8>(p, stream);
    if (p.n <= 512 && p.k <= 16) return launch_warp_rows<E, 16>(p, stream);
    launch_warp_rows<E, 32>(p, stream);
  });
}

const char* refuses_search(const TopkProblem& p, const Context&) {
  static_assert(kMostSearchK >= kMostFilterK);
  if (p.n > 4 * lift::kChunk) return "a row is longer than a block holds (4096)";
  // Measured. A filter's bound is one of as many maxima as it has seen runs.
  if (p.n > lift::kChunk && p.n > 35 * p.k) return "so few of a row are faster filtered";
  if (p.rows >= 0x7FFFFFFF / 32) return "more rows than a grid has";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "the scale is not finite";
  return refuses_plain_topk(p);
}

void run_search(const TopkProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const auto go = [&]<int kCount, int kWarps = 1>() {
      using Block = SearchBlock<kWarps>;
      launch("topk_search", topk_search<E, kCount, kWarps>, {ceil_div(p.rows, Block::kRows), Block::kThreads},
             stream_of(context), p, small_rows(p), wants_states(p));
    };
    if (p.n <= 128) return go.template operator()<4>();
    if (p.n <= 256) return go.template operator()<8>();
    if (p.n <= 512) return go.template operator()<16>();
    if (p.n <= lift::kChunk) return go.template operator()<32>();
    p.n <= 2 * lift::kChunk ? go.template operator()<32, 2>() : go.template operator()<32, 4>();
  });
}

/// As few segments as keep all processors busy.
TopkShare share_topk(const TopkProblem& p, Parts& parts) {
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  TopkShare share = share_rows(p.rows, p.n, static_cast<int>(p.k), traits);
  if (share.segments == 1) return share;
  share.joins = share.segments <= traits.largest_cluster;
  if (wants_states(p)) share.states = parts.take<State>(p.rows * share.segments);
  share.entries = parts.take<Entry>(p.rows * share.segments * p.k);
  return share;
}

std::size_t filter_workspace(const TopkProblem& p, const Context&) {
  Parts parts(nullptr);
  share_topk(p, parts);
  return parts.used();
}

void run_filter(const TopkProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(filter_workspace(p, context), context);
  Parts parts(scratch.data());
  const TopkShare share = share_topk(p, parts);
  const Stream stream = stream_of(context);
  const TopkJob job{p, wants_states(p), lift::Factor(fold::make_scale<float>(p.scale).c)};
  with_element(p[Slot::x].dtype,
               [&]<class E>() { launch_filter<E>(job, plain_rows(p), share, filter_grid<E>(p, share), stream); });
  if (share.entries != nullptr && !share.joins)
    launch("topk_join", topk_join<TopkJob>, {p.rows, kJoinThreads, 1, join_bytes(share.k)}, stream, job, share);
}

int most_segments(const DeviceTraits& traits) { return std::min(traits.largest_cluster, kMostSegments); }

/// As few segments as keep all processors busy, or as a cluster has blocks.
LargeShare share_large(const TopkProblem& p, Parts& parts) {
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  LargeShare share{share_rows(p.rows, p.n, static_cast<int>(p.k), traits), LargeShare::room_for(static_cast<int>(p.k))};
  while (share.segments > most_segments(traits)) {
    share.chunks *= 2;
    share.segments = static_cast<int>(ceil_div(lift::chunk_count(p.n), share.chunks));
  }
  if (p.rows * share.segments <= 2 * traits.processors && share.chunks > kFilterWarps) share.ahead = kMostAhead;
  if (share.segments == 1) return share;
  share.joins = true;
  if (wants_states(p)) share.states = parts.take<State>(p.rows * share.segments);
  share.entries = parts.take<Entry>(p.rows * (share.segments - 1) * share.room);
  return share;
}

const char* refuses_large(const TopkProblem& p, const Context&) {
  if (p.k == 0) return "nothing is taken";
  if (p.k > kMostLargeK) return "more than 8192 are taken";
  if (!(fold::make_scale<float>(p.scale).c > 0.F)) return "the scale is not positive";
  if (p.rows > 0x7FFFFFFF / kMostSegments) return "more segments than a grid has blocks";
  if (const char* why = refuses_plain(p)) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (lift::chunk_count(p.n) > std::int64_t{kMostSegmentChunks} * most_segments(traits))
    return "a row is longer than a cluster of segments";
  Parts parts(nullptr);
  const LargeShare share = share_large(p, parts);
  const int bytes = with_element(p[Slot::x].dtype, [&]<class E>() { return large_grid<E>(p, share).shared_bytes; });
  if (bytes + kLargeOwnBytes > traits.shared_bytes) return "a block has no memory for so many";
  return parts.used() > kMostLargeBytes ? "segments of so many rows have more than 1 GiB of entries" : nullptr;
}

/// Measured: a filter's bound is one of as many maxima as it has seen runs, which are few for so many.
const char* refuses_filter(const TopkProblem& p, const Context& context) {
  if (lift::chunk_count(p.n) > std::int64_t{1024} * kMostSegmentChunks) return "a row is longer than 2^28";
  if (const char* why = refuses_plain_topk(p)) return why;
  return p.k > 128 && refuses_large(p, context) == nullptr ? "so many are faster by topk_large" : nullptr;
}

std::size_t large_workspace(const TopkProblem& p, const Context&) {
  Parts parts(nullptr);
  share_large(p, parts);
  return parts.used();
}

void run_large(const TopkProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(large_workspace(p, context), context);
  Parts parts(scratch.data());
  const LargeShare share = share_large(p, parts);
  const TopkJob job{p, wants_states(p), lift::Factor(fold::make_scale<float>(p.scale).c)};
  with_element(p[Slot::x].dtype, [&]<class E>() {
    launch("topk_large", topk_large<E>, large_grid<E>(p, share), stream_of(context), job, plain_rows(p), share);
  });
}

constexpr TopkKernel kKernels[] = {{"topk_warp_rows", refuses_warp_rows, run_warp_rows, nullptr},
                                   {"topk_search", refuses_search, run_search, nullptr},
                                   {"topk_filter", refuses_filter, run_filter, filter_workspace},
                                   {"topk_large", refuses_large, run_large, large_workspace},
                                   {"topk_radix", refuses_radix, run_radix, radix_workspace}};

}  // namespace
}  // namespace cuda

std::span<const Kernel<TopkProblem>> cuda_topk_kernels() { return cuda::kKernels; }

}  // namespace v0
}  // namespace softfold
