// softmax_lengths_pairs, softmax_masked_pairs: what they take, and how they are launched.
#include "cuda/hidden_pairs.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured: shorter rows are faster by groups of lanes.
std::int64_t fewest_elements(const RowProblem& p) {
  const bool wide = size_of(p[Slot::x].dtype) == 4;
  if (!p[Slot::mask].given) return wide ? 400 : 512;
  return wide || p.op == Op::log_softmax ? 1025 : 513;
}
/// Measured: those on vectors that have masks and fill groups of lanes, or two chunks, are faster by groups of lanes
/// and clusters.
bool fills_lanes(const RowProblem& p) {
  const bool two_chunks = p.n == 2 * lift::kChunk && p.op == Op::log_softmax;
  return (p.n == 512 || p.n == lift::kChunk || two_chunks) && on_whole_vectors(p);
}

const char* refuses_pairs(const RowProblem& p) {
  if (p.n > 2 * lift::kChunk) return "a row is longer than a warp holds (2048)";
  if (p.n < fewest_elements(p)) return "so short rows are faster by groups of lanes";
  if (p.rows > 0x7FFFFFFF) return "more rows than a grid has";
  return fold::make_scale<float>(p.scale).c < 0.F ? "a negative scale" : nullptr;
}

const char* refuses_lengths(const RowProblem& p, const Context&) {
  const char* why = refuses_pairs(p);
  return why != nullptr ? why : refuses_cut(p);
}

const char* refuses_masked(const RowProblem& p, const Context&) {
  if (!p[Slot::mask].given) return "rows have no mask";
  if (const char* why = refuses_pairs(p)) return why;
  if (const char* why = refuses_hidden(p)) return why;
  if (fills_lanes(p)) return "rows that fill groups of lanes or chunks are faster by these";
  return masks_fit_vectors(p) ? nullptr : "masks lie otherwise to vectors than rows do";
}

template <class E, bool kOnVectors, bool kMasked>
void launch_rows(const char* name, const RowProblem& p, int processors, Stream stream) {
  // Measured; fewer where blocks would not fill the device.
  const int runs = runs_that_fill(p.n <= (sizeof(E) == 4 ? 700 : 1600) ? 4 : 2, p.rows, 1, processors);
  const int row = PairPlace<E>::bytes(p.n), mask = kMasked ? PairPlace<char>::bytes(p.n) : 0;
  const auto rows = short_rows(p);
  const PairedRows given{rows,
                         kMasked ? memory_of(p, p[Slot::mask]) : Extent{},
                         fold::LogNormaliser<float>::two_kappa_of(rows.scale),
                         row + mask,
                         row,
                         runs};
  const Grid grid{(p.rows + runs - 1) / runs, 32, 1, runs * given.pitch};
  if (p.op == Op::log_softmax)
    return launch(name, log_softmax_hidden_pairs<E, kOnVectors, kMasked>, grid, stream, given);
  launch(name, softmax_hidden_pairs<E, kOnVectors, kMasked>, grid, stream, given);
}

template <bool kMasked>
void run(const char* name, const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const int processors = traits_of(device.device()).processors;
  const Stream stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (on_whole_vectors(p)) return launch_rows<E, true, kMasked>(name, p, processors, stream);
    launch_rows<E, false, kMasked>(name, p, processors, stream);
  });
}
void run_lengths(const RowProblem& p, const Context& context) { run<false>("softmax_lengths_pairs", p, context); }
void run_masked(const RowProblem& p, const Context& context) { run<true>("softmax_masked_pairs", p, context); }

}  // namespace

const RowKernel softmax_lengths_pairs_kernel{"softmax_lengths_pairs", refuses_lengths, run_lengths, nullptr};
const RowKernel softmax_masked_pairs_kernel{"softmax_masked_pairs", refuses_masked, run_masked, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
