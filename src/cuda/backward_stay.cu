// backward_cluster_stays and backward_hidden_stays: what they take, and how they are launched.
#include "cuda/backward_stay.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured: softmax's gradients in 16 bit, of few instructions, are fastest by blocks of one warp, to 32 chunks.
constexpr StaySpread spread(std::int64_t chunks, Op op, std::size_t size, bool on_vectors, int warp_bytes) {
  static_assert(GradientShape<float>::kLanes == 32 && GradientShape<fold::BFloat16>::kLanes == 16);
  if (size == 4) return most_processors(chunks);
  SpreadNeeds needs{false, on_vectors, on_vectors ? 1.3 : 0.9, warp_bytes};
  if (op == Op::softmax_backward) needs.one_warp = 1.02;
  return best_spread(chunks, needs);
}

/// Null if clusters find enough to stay for: so many chunks a processor.
const char* refuses_clusters(const RowProblem& p, std::int64_t fewest) {
  if (p.n > 256 * lift::kChunk) return "a row is longer than a cluster holds (262144)";
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (traits.largest_cluster < 16) return "the device has no clusters of 16 blocks";
  const bool few = are_fewer_chunks(p, fewest);
  return few ? "too few rows to stay for" : nullptr;
}

const char* refuses(const RowProblem& p, const Context&) {
  if (lift::chunk_count(p.n) <= (size_of(p[Slot::x].dtype) == 2 ? 3 : kMostBlockChunks))
    return "a row fits a block, or few warps";
  if (const char* why = refuses_clusters(p, fewest_to_stay(p))) return why;
  return refuses_plain_gradient(p);
}

/// Measured, beside blocks and clusters that do not stay.
bool is_faster_with_masks(const RowProblem& p) {
  const std::int64_t chunks = lift::chunk_count(p.n);
  const bool log = p.op == Op::log_softmax_backward;
  if (size_of(p[Slot::x].dtype) == 4) return chunks > (log ? 64 : 48) && (chunks <= 128 || chunks > 160);
  return chunks > (log ? 64 : 40);
}

const char* refuses_hidden_stays(const RowProblem& p, const Context&) {
  const std::int64_t fewest = size_of(p[Slot::x].dtype) == 4 ? 24 : 64;  // measured
  if (p.rung != Rung::automatic) return "a gradient has no rungs";
  if (!p[Slot::mask].given) return "rows have no mask";
  if (is_cut(p)) return "rows are cut short";
  if (!is_faster_with_masks(p)) return "clusters that do not stay are faster";
  if (const char* why = refuses_clusters(p, fewest)) return why;
  return refuses_hidden_problem(p);
}

template <class E, template <class> class Gradient, class Problem>
void launch_stays(const char* name, const RowProblem& p, Problem rows, const Context& context) {
  const auto chunks = static_cast<int>(lift::chunk_count(p.n));
  const StaySpread s = spread(chunks, p.op, sizeof(E), on_whole_vectors(p), kStayBytes<fold::BFloat16, Problem>);
  const Scratch scratch(counter_bytes(p, context), context);
  rows.y.taken = reinterpret_cast<CounterWord*>(scratch.data());
  const int shared = s.warps * kStayBytes<E, Problem> + 2 * SumBox::bytes(chunks);
  launch_to_stay(name, backward_cluster_stays<E, Gradient, Problem>, s, shared, p.rows, stream_of(context), rows);
}

template <class Problem>
void run_problem(const char* name, const RowProblem& p, const Problem& rows, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() { launch_stays<E, Gradient>(name, p, rows, context); });
  });
}

void run(const RowProblem& p, const Context& context) {
  run_problem("backward_cluster_stays", p, plain_gradient(p), context);
}

void run_hidden(const RowProblem& p, const Context& context) {
  const HiddenProblem h = hidden_problem(p);
  const HiddenStays rows{{h.rows, h.dy, static_cast<float>(p.scale)}, p, {h.rows, h.mask.begin, h.mask.end, 0}};
  run_problem("backward_hidden_stays", p, rows, context);
}

}  // namespace

const RowKernel backward_cluster_stays_kernel{"backward_cluster_stays", refuses, run, counter_bytes};
const RowKernel backward_hidden_stays_kernel{"backward_hidden_stays", refuses_hidden_stays, run_hidden, counter_bytes};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
