// Problems of few elements, tried before those kernels that want rows enough for all processors: which other kernel is
// faster. All of it is measured, by timing what a plan takes beside what it passes over (bench/gpu_choice.py).
#include "cuda/across_tiles.hpp"
#include "cuda/choose.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/plain_gradient.hpp"
#include "front/choice.hpp"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using Of = const RowKernel*;  ///< null: the kernels behind this one are as fast

constexpr std::int64_t operator""_M(unsigned long long millions) { return static_cast<std::int64_t>(millions << 20); }

std::int64_t elements_of(const RowProblem& p) { return p.rows * p.n; }

/// Clusters that have a row each, instead of blocks and clusters that stay for many.
Of softmax_of_few_cut(const RowProblem& p) {
  const bool wide = size_of(p[Slot::x].dtype) == 4;
  const std::int64_t chunks = lift::chunk_count(p.n), fewest = !wide          ? 96
                                                               : chunks <= 16 ? 400
                                                               : chunks <= 32 ? 256
                                                                              : 64;
  return are_fewer_chunks(p, fewest) ? &softmax_cluster_row_any_kernel : nullptr;
}

Of softmax_of_few_across(const RowProblem& p) {
  if (p.n <= 4 * lift::kChunk)
    return !hides(p) && p.n > 32 && elements_of(p) <= 4_M ? &softmax_across_columns_kernel : nullptr;
  const std::int64_t hidden = p[Slot::mask].given ? 1_M : 2_M;
  const std::int64_t most = p.n >= 32 * lift::kChunk ? 0 : p.n < 16 * lift::kChunk && hides(p) ? hidden : 1_M / 2;
  return elements_of(p) <= most ? &softmax_across_rows_kernel : nullptr;
}

Of softmax_of_few(const RowProblem& p) {
  if (is_across(p)) return softmax_of_few_across(p);
  const bool scales = p[Slot::scales].given, hidden = hides(p);
  if (p.n <= lift::kChunk) {
    if (scales && (p.n <= 16 || elements_of(p) <= 2_M)) return &softmax_any_rows_kernel;
    if (size_of(p[Slot::x].dtype) == 2 && p.n >= 128 && shares_mask(p))
      return elements_of(p) <= 2_M ? &softmax_warp_rows_any_kernel : nullptr;
    return hidden && elements_of(p) <= 1_M ? &softmax_any_rows_kernel : nullptr;
  }
  if (is_cut(p) && !p[Slot::mask].given) return softmax_of_few_cut(p);
  const bool clusters = size_of(p[Slot::x].dtype) == 2 && p.n > 128 * lift::kChunk && p.n <= 256 * lift::kChunk;
  return clusters && !hidden && elements_of(p) < 1_M ? &softmax_cluster_row_kernel : nullptr;
}

Of fold_of_few(const RowProblem& p) {
  if (is_across(p, Slot::x)) {
    // Words of neighbours are too few, and chunks are folded faster an element at a time.
    const bool wide = size_of(p[Slot::x].dtype) == 4;
    const std::int64_t most = p.n >= 16 * lift::kChunk ? 32 : p.n > 8 * lift::kChunk ? 128 : wide ? 192 : 512;
    return p.n >= 512 && p.rows <= most && !folds_few_together(p) ? &fold_across_rows_kernel : nullptr;
  }
  if (p[Slot::mask].given) {
    const bool is_short = p.n < (size_of(p[Slot::x].dtype) == 2 ? 512 : 64);
    return is_short && !shares_mask(p) && elements_of(p) <= 1_M / 4 ? &fold_any_rows_kernel : nullptr;
  }
  if (is_cut(p))
    return elements_of(p) <= (p.n < 64 || p.n > 4 * lift::kChunk ? 2_M : 1_M) ? &fold_any_rows_kernel : nullptr;
  const bool fills_lanes = p.n >= 128 && p.n <= 512 && std::has_single_bit(static_cast<std::uint64_t>(p.n));
  if (refuses_plain(p) != nullptr) return nullptr;
  if (p.n < 32 && p.n % (16 / static_cast<std::int64_t>(size_of(p[Slot::x].dtype))) != 0)
    return elements_of(p) <= 1_M / 4 ? &fold_any_rows_kernel : nullptr;
  if (!fills_lanes || !on_vectors(p, p[Slot::x])) return nullptr;
  return elements_of(p) <= (size_of(p[Slot::x].dtype) == 2 ? 8_M : 4_M) ? &fold_any_rows_kernel : nullptr;
}

Of gradient_of_few(const RowProblem& p) {
  if (is_across(p)) return nullptr;
  const bool wide = size_of(p[Slot::x].dtype) == 4;
  if (hides(p) || p[Slot::scales].given) {
    const std::int64_t most = hides(p) && wide && p.n < 64 ? 4_M : 1_M;
    return p.n <= 16 || (p.n <= 128 && elements_of(p) <= most) ? &backward_any_rows_kernel : nullptr;
  }
  // Clusters that have a row each.
  const bool fills_chunks = p.n % lift::kChunk == 0;
  if (!wide || fills_chunks || p.n <= 8 * lift::kChunk || p.n > 64 * lift::kChunk) return nullptr;
  return are_fewer_chunks(p, fewest_to_stay(p)) ? &backward_any_cluster_kernel : nullptr;
}

/// A cluster a row instead of a warp.
Of double_of_few(const RowProblem& p) {
  if (p.n <= lift::kChunk / 2 || p.n > lift::kChunk || p.rows < 4 || p.rows > 512 || is_across(p)) return nullptr;
  if (p[Slot::dy].given) return &backward_double_cluster_kernel;
  return p[Slot::y].given ? &softmax_double_cluster_kernel : nullptr;
}

Of kernel_of(const RowProblem& p) {
  if (p.rows == 0 || p.n == 0 || p.rung != Rung::automatic || p[Slot::offsets].given) return nullptr;
  if (p.is_double()) return double_of_few(p);
  if (p[Slot::dy].given) return gradient_of_few(p);
  return p[Slot::y].given && (p.op == Op::softmax || p.op == Op::log_softmax) ? softmax_of_few(p) : fold_of_few(p);
}

const char* refuses(const RowProblem& p, const Context& context) {
  const Of kernel = kernel_of(p);
  return kernel == nullptr ? "other kernels are as fast" : why_not(*kernel, p, context);
}

/// Of a problem that refuses() let pass: where its memory is a device's as it was then.
const RowKernel& planned(const RowProblem& p) {
  const Of kernel = kernel_of(p);
  if (kernel == nullptr)
    throw Error(Code::device, "a plan of another device than the current one", "the device it was made for",
                "make it current, or plan again");
  return *kernel;
}

std::size_t workspace(const RowProblem& p, const Context& context) {
  const RowKernel& kernel = planned(p);
  return kernel.workspace == nullptr ? 0 : kernel.workspace(p, context);
}

void run(const RowProblem& p, const Context& context) { planned(p).run(p, context); }

}  // namespace

const RowKernel few_elements_kernel{"few_elements", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
