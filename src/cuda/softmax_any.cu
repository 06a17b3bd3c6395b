// softmax and log_softmax of rows that no kernel takes by vectors: with masks, lengths, scales of their own or several
// outer axes, to another dtype, otherwise aligned, or with elements that lie apart.
#include "cuda/any_elements.cuh"
#include "cuda/kernels.hpp"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Whether the vectors of eight that 16-bit rows lie in, wherever they begin, are more than the power of two of them
/// that holds the rows.
bool spills(std::int64_t n) {
  const auto power = [](std::int64_t a) { return std::bit_ceil(static_cast<std::uint64_t>(a)); };
  return n < lift::kChunk && power((n + 2 * 7) / 8) * 8 > power(n);
}

/// Measured, of 16-bit elements to float32: rows of a few elements, or that miss a few of a power of two; from float32
/// to 16 bit: of a few, or of a small power of two.
bool faster_converted(const RowProblem& p) {
  const std::size_t from = size_of(p[Slot::x].dtype), to = size_of(p[Slot::y].dtype);
  const auto missing = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(p.n))) - p.n;
  if (from < to) return p.n < 8 || missing == 4 || (p.n > 64 && missing > 0 && missing <= 6);
  return from > to && (p.n <= 8 || (missing == 0 && p.n <= 64));
}

/// Measured: results that lie otherwise than elements of their dtype. Of 16 bit they are parked one at a time, and
/// where rows are a multiple of lines long those of all lanes meet in a bank.
const char* refuses_apart_rows(const RowProblem& p) {
  if (faster_converted(p)) return nullptr;
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  const bool few = p.n % 128 == 0 || p.n <= 16 || spills(p.n);
  const bool faster = x.dtype == y.dtype && (x.dtype == DType::float32 || few);
  return faster ? nullptr : "results that are parked are faster";
}

/// Measured: rows with masks or lengths that vectors serve too.
const char* refuses_hidden_rows(const RowProblem& p) {
  const bool masked = p[Slot::mask].given;
  if (!hides(p)) return "no element is hidden";
  if (const char* why = refuses_vectors(p)) return why;
  if (!masked && p.n > 16 && p.op == Op::softmax && on_whole_vectors(p))
    return "rows on vectors that are cut short are faster by these";
  if (p.n > lift::kChunk / 2) return "rows of more than 512 elements are faster by vectors";
  if (fills_groups(p.n) && on_whole_vectors(p)) return "rows that fill groups of lanes are faster by vectors";
  // Of a few more elements than 64 half of the lanes would have none.
  const bool on_lanes = p.n > 64 && p.n <= 176 && on_whole_vectors(p) && masks_fit_vectors(p);
  const bool few = p.n <= 64 || (masked ? is_of_fours(p) && !on_lanes : spills(p.n));
  const bool faster = p[Slot::x].dtype == DType::float32 || few;
  return faster ? nullptr : "16-bit elements one at a time are slower than vectors";
}

/// Of the rows that other kernels take too, which are faster by these.
const char* refuses_short(const RowProblem& p, const Context& context) {
  if (const char* why = refuses_any_rows(p, context)) return why;
  return refuses_apart(p) == nullptr ? refuses_apart_rows(p) : refuses_hidden_rows(p);
}

void run_rows(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_any_rows(p, [&]<class Elements>() {
    const Grid grid = grid_of_rows<Elements>(p);
    const auto by = [&](auto kernel) { launch("softmax_any_rows", kernel, grid, stream_of(context), p); };
    p.op == Op::log_softmax ? by(softmax_warp_rows_any<Elements, true, 4>)
                            : by(softmax_warp_rows_any<Elements, false, 4>);
  });
}

void run_cluster(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Grid grid = cluster_grid(p.rows, lift::chunk_count(p.n), traits_of(device.device()));
  with_any_chunks(p, [&]<class Elements>() {
    const auto by = [&](auto kernel) { launch("softmax_any_cluster", kernel, grid, stream_of(context), p); };
    p.op == Op::log_softmax ? by(softmax_cluster_row_any<Elements, true, 512, 2>)
                            : by(softmax_cluster_row_any<Elements, false, 512, 2>);
  });
}

void run_few(const RowProblem& p, const Context& context) {
  p.n <= lift::kChunk ? run_rows(p, context) : run_cluster(p, context);
}

}  // namespace

const RowKernel softmax_any_short_kernel{"softmax_any_short", refuses_short, run_rows, nullptr};
const RowKernel softmax_any_rows_kernel{"softmax_any_rows", refuses_any_rows, run_rows, nullptr};
const RowKernel softmax_any_cluster_kernel{"softmax_any_cluster", refuses_any_cluster, run_cluster, nullptr};
const RowKernel softmax_any_few_kernel{"softmax_any_few", refuses_any_few, run_few, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
