// softmax_small_rows, and what it and backward_small_rows take.
#include "cuda/small_rows.hpp"

#include "cuda/across_tiles.hpp"
#include "cuda/any_elements.cuh"
#include "cuda/kernels.hpp"
#include "cuda/narrow_launch.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured, of rows of up to 7 elements that backward_narrow_rows or softmax_narrow_rows take, in halves of 2^20.
std::int64_t most_beside_narrow(const RowProblem& p) {
  if (p[Slot::dy].given) return size_of(p[Slot::x].dtype) == 4 && p.n != 2 && p.n != 5 ? 8 : 2;
  if (p.n <= 4 && p.op == Op::log_softmax) return 8;
  return p.n == 3 || p.n == 4 ? 3 : 2;
}

/// Measured: elements up to which these are faster than others, which want rows enough for all processors, or rows of
/// more than a few elements.
std::int64_t most_elements(const RowProblem& p) {
  constexpr std::int64_t any = std::int64_t{1} << 62, some = 1 << 19;
  if (p.n < 8 && takes_narrow(p)) return most_beside_narrow(p) * some;
  const bool backward = p[Slot::dy].given, wide = size_of(p[Slot::x].dtype) == 4;
  const bool long_leaves = backward && (wide || p.op == Op::log_softmax_backward);
  if (is_across(p)) {
    if (p.n <= 16) return p.n <= 8 ? any : some / 2;
    if (backward) return p.n > lift::kChunk ? some / 8 : some / 16;
    if (p.n > 256 && refuses_across(p) == nullptr) return p.n > lift::kChunk ? some / 32 : some / 8;
    return p.n > lift::kChunk ? some / 8 : some / 4;
  }
  if (p.n > lift::kChunk) return p.n * (backward ? 256 : 128) / (p.n > 2 * lift::kChunk ? 2 : 1);
  if (is_plain_small(p)) {
    if (p.n < 8 && !(wide && (p.n == 4 || p.n == 5))) return any;
    if (p.n <= 32) return backward ? 2 * some : some;
    return long_leaves ? 4 * some : 2 * some;
  }
  if (p.n < 8) return any;
  if (hides(p) || p.n > 64) return some;
  const bool widens = !wide && size_of(p[Slot::y].dtype) == 4;
  return widens && p[Slot::x].axis_stride == 2 && p[Slot::y].axis_stride == 4 ? 2 * some : any;
}

void run(const RowProblem& p, const Context& context) {
  const auto by = [&](const char* name, const Grid& grid, auto softmax, auto log_softmax) {
    launch(name, p.op == Op::log_softmax ? log_softmax : softmax, grid, stream_of(context), small_rows(p));
  };
  launch_small<lift::kPerLane>(
      p,
      [&]<class Access, int kLanes, int kCount>(const Grid& grid) {
        by("softmax_small_rows", grid, softmax_small_rows<Access, kLanes, kCount, false>,
           softmax_small_rows<Access, kLanes, kCount, true>);
      },
      [&]<class Access, int kChunks>(const Grid& grid) {
        by("softmax_small_blocks", grid, softmax_small_blocks<Access, kChunks, false>,
           softmax_small_blocks<Access, kChunks, true>);
      });
}

}  // namespace

const char* refuses_small(const RowProblem& p, const Context&) {
  if (const char* why = refuses_tiles(p, Rung::fused)) return why;
  if (p[Slot::scales].given) return "rows have scales of their own";
  if (p.n == 0 || p.n > 4 * lift::kChunk) return "a row is empty, or longer than a small block holds (4096)";
  if (p.outer_rank > 2) return "rows lie along more than two axes";
  if (p.rows >= 0x7FFFFFFF / 32) return "more rows than a grid has";
  return p.rows * p.n <= most_elements(p) ? nullptr : "so many rows are faster by other kernels";
}

bool is_plain_small(const RowProblem& p) {
  const DType t = p[Slot::x].dtype;
  const auto is_plain = [&](Slot slot) {
    const Operand& o = p[slot];
    // A lone element has no stride.
    return !o.given || (o.dtype == t && (p.n == 1 || o.axis_stride == static_cast<std::int64_t>(size_of(t))));
  };
  return p.outer_rank <= 1 && !hides(p) && is_plain(Slot::x) && is_plain(Slot::y) && is_plain(Slot::dy);
}

const char* refuses_plain_small(const RowProblem& p) {
  if (p.n == 0) return "rows of no elements";
  if (p.rows >= 0x7FFFFFFF / 32) return "more rows than a grid has";
  if (const char* why = refuses_plain_rows(p)) return why;
  if (p.is_double()) return "float64 has no small rows";
  return is_plain_small(p) ? nullptr : "what is read and written lies differently";
}

SmallRows small_rows(const RowProblem& p) {
  const auto of = [&](Slot slot) -> SmallOperand {
    const Operand& o = p[slot];
    const auto stride = [&](int axis) { return axis < 0 ? 0 : o.strides[static_cast<std::size_t>(axis)]; };
    if (!o.given) return {nullptr, 0, 0, 0, DType::float32};
    return {o.data, stride(p.outer_rank - 2), stride(p.outer_rank - 1), o.axis_stride, o.dtype};
  };
  const auto scale = fold::make_scale<float>(p.scale);
  const std::int64_t inner = p.outer_rank == 0 ? 1 : p.outer[static_cast<std::size_t>(p.outer_rank - 1)];
  return {static_cast<int>(p.rows),
          static_cast<int>(p.n),
          Divisor(std::max<std::int64_t>(inner, 1)),
          p.causal,
          p.empty,
          lift::Factor(scale.c),
          fold::LogNormaliser<float>::two_kappa_of(scale),
          static_cast<float>(p.scale),
          of(Slot::x),
          of(Slot::y),
          of(Slot::dy),
          of(Slot::mask),
          of(Slot::length),
          scale};
}

const RowKernel softmax_small_rows_kernel{"softmax_small_rows", refuses_small, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
