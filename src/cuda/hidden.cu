// Rows of which something is hidden: which problems are some.
#include "cuda/hidden.cuh"

#include "cuda/choose.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
std::optional<std::int64_t> one_stride(const RowProblem& p, const Operand& o) {
  std::optional<std::int64_t> stride;
  std::int64_t rows = 1;
  for (int d = p.outer_rank - 1; d >= 0; --d) {
    const auto at = static_cast<std::size_t>(d);
    if (p.outer[at] == 1) continue;
    if (!stride) stride = o.strides[at];
    if (o.strides[at] != rows * *stride) return std::nullopt;
    rows *= p.outer[at];
  }
  return stride.value_or(0);
}

namespace {

/// Of masks for all rows, up to which the L1 cache should have them. Measured.
constexpr std::ptrdiff_t kFewMaskBytes = 8192;

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

std::optional<RowSteps> row_steps(const RowProblem& p, const Operand& o) {
  std::int64_t sizes[2] = {1, 1}, strides[2] = {0, 0};
  int axes = 0;
  for (int d = p.outer_rank - 1; d >= 0 && o.given; --d) {
    const auto at = static_cast<std::size_t>(d);
    if (p.outer[at] == 1) continue;
    if (axes > 0 && o.strides[at] == sizes[axes - 1] * strides[axes - 1]) {
      sizes[axes - 1] *= p.outer[at];
      continue;
    }
    if (axes == 2) return std::nullopt;
    sizes[axes] = p.outer[at], strides[axes] = o.strides[at];
    ++axes;
  }
  return RowSteps{Divisor(sizes[0]), strides[0], strides[1]};
}

bool masks_end_to_end(const RowProblem& p) {
  const Operand& mask = p[Slot::mask];
  return mask.given && one_stride(p, mask) == p.n;
}

bool masks_are_shared(const RowProblem& p) {
  const Operand& mask = p[Slot::mask];
  if (!mask.given) return false;
  int d = p.outer_rank - 1;
  while (d >= 0 && p.outer[static_cast<std::size_t>(d)] == 1) --d;
  if (d < 0) return false;
  const std::int64_t stride = mask.strides[static_cast<std::size_t>(d)];
  const Extent memory = memory_of(p, mask);
  return stride == 0 || (stride == p.n && memory.end - memory.begin <= kFewMaskBytes);
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
