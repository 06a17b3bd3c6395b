// softmax_hidden_rows: what it takes, and how it is launched.
#include "cuda/softmax_hidden_rows.cuh"

#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured.
bool is_faster(const RowProblem& p) {
  const bool wide = size_of(p[Slot::x].dtype) == 4, log = p.op == Op::log_softmax;
  const bool cut = refuses_uncut(p) == nullptr, on_vectors = on_whole_vectors(p);
  if (p[Slot::mask].given) {
    if (wide) return p.n >= (log ? 13 : 12);
    // Those that fill groups of lanes, with masks that come from memory, by ordinary loads.
    const bool fills = !log && on_vectors && p.n >= 128 && std::has_single_bit(static_cast<std::uint64_t>(p.n));
    return p.n >= 14 && !(p.n == 16 && on_vectors) && !(fills && masks_end_to_end(p));
  }
  if (!cut) return true;  // scales alone
  if (log) return wide ? p.n >= 12 && p.n < 600 : p.n >= 14;
  return p.n >= (wide ? 12 : 14) && p.n < (on_vectors ? 60 : wide ? 900 : 1025);
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= 0x7FFFFFFF) return "more rows than a grid has";
  if (const char* why = refuses_hidden_problem(p)) return why;
  return is_faster(p) ? nullptr : "other kernels are faster";
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() { launch_softmax_hidden_rows<E>(p, stream_of(context)); });
}

}  // namespace

const RowKernel softmax_hidden_rows_kernel{"softmax_hidden_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
