// Rows of which something is hidden: which problems are some.
#include "cuda/hidden.cuh"

#include "cuda/choose.hpp"

#include <array>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Of masks for all rows, up to which the L1 cache should have them. Measured.
constexpr std::ptrdiff_t kFewMaskBytes = 8192;

/// The outer axes of one operand, from the last on, with those of one step as one, and those of one row left out.
struct MergedAxes {
  int count = 0;
  std::array<std::int64_t, kMaxRank> sizes{1}, strides{};

  MergedAxes(const RowProblem& p, const Operand& o) {
    for (int d = p.outer_rank - 1; d >= 0; --d) {
      const std::int64_t size = p.outer[static_cast<std::size_t>(d)], stride = o.strides[static_cast<std::size_t>(d)];
      const auto next = static_cast<std::size_t>(count);
      if (size == 1) continue;
      if (count > 0 && stride == sizes[next - 1] * strides[next - 1]) {
        sizes[next - 1] *= size;
      } else {
        sizes[next] = size, strides[next] = stride;
        ++count;
      }
    }
  }
};

PlainRows rows_of(const RowProblem& p, const Operand& from) {
  PlainRows rows = plain_rows(p);
  const Extent memory = memory_of(p, from);
  rows.x = from.data, rows.x_begin = memory.begin, rows.x_end = memory.end;
  rows.x_stride = *one_stride(p, from), rows.y_stride = *one_stride(p, p[Slot::y]);
  return rows;
}

}  // namespace

HiddenProblem hidden_problem(const RowProblem& p) {
  // Without dy x in its place, which lies as x does.
  const Operand &mask = p[Slot::mask], &dy = p[p[Slot::dy].given ? Slot::dy : Slot::x];
  return {rows_of(p, p[Slot::x]), rows_of(p, dy), p, mask.given ? memory_of(p, mask) : Extent{}};
}

std::optional<std::int64_t> one_stride(const RowProblem& p, const Operand& o) {
  const MergedAxes axes(p, o);
  if (axes.count > 1) return std::nullopt;
  return axes.strides[0];
}

std::optional<RowSteps> row_steps(const RowProblem& p, const Operand& o) {
  const MergedAxes axes(p, o);
  if (axes.count > 2) return std::nullopt;
  return RowSteps{Divisor(axes.sizes[0]), axes.strides[0], axes.strides[1]};
}

bool masks_end_to_end(const RowProblem& p) {
  const Operand& mask = p[Slot::mask];
  return mask.given && one_stride(p, mask) == p.n;
}

bool masks_are_shared(const RowProblem& p) {
  const Operand& mask = p[Slot::mask];
  const MergedAxes axes(p, mask);
  if (!mask.given || axes.count == 0) return false;
  const Extent memory = memory_of(p, mask);
  return axes.strides[0] == 0 || (axes.strides[0] == p.n && memory.end - memory.begin <= kFewMaskBytes);
}

const char* refuses_hidden_problem(const RowProblem& p) {
  if (p.n == 0) return "rows of no elements";
  if (!p[Slot::mask].given && !p[Slot::scales].given && refuses_uncut(p) != nullptr) return "nothing is hidden";
  if (p[Slot::offsets].given) return "ragged rows have no common length";
  if (const char* why = refuses_vectors(p)) return why;
  if (p[Slot::dy].given)
    if (const char* why = refuses_other_vectors(p, Slot::dy, "dy lies differently from y")) return why;
  if (p[Slot::mask].given && p[Slot::mask].axis_stride != 1 && p.n > 1) return "a mask's bytes lie apart";
  const std::int64_t bytes = p.n * static_cast<std::int64_t>(size_of(p[Slot::x].dtype));
  for (const Slot slot : {Slot::x, Slot::y, Slot::dy}) {
    if (!p[slot].given) continue;
    const std::optional<std::int64_t> stride = one_stride(p, p[slot]);
    if (!stride) return "rows are not one stride apart";
    if (p.rows > 1 && *stride < bytes) return "rows overlap or run backwards";
  }
  return nullptr;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
