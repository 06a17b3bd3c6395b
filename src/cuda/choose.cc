#include "cuda/choose.hpp"

#include "softfold/fold/logsumexp.hpp"
#include "softfold/lift/chunks.hpp"

#include <algorithm>
#include <cmath>

namespace softfold {
inline namespace v0 {
namespace cuda {

namespace {

/// Whether an operand is as far from a 16-byte boundary as x, in every row.
bool fits_vectors(const RowProblem& p, const Operand& o) {
  const Operand& x = p[Slot::x];
  const auto misfit = [](std::int64_t a, std::int64_t b) { return (a - b) % 16 != 0; };
  bool fits = !misfit(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x.data) % 16),
                      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(o.data) % 16));
  for (int d = 0; d < p.outer_rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    fits = fits && (p.outer[at] == 1 || !misfit(x.strides[at], o.strides[at]));
  }
  return fits;
}

}  // namespace

bool on_vectors(const RowProblem& p, const Operand& o, int bytes) {
  bool on = reinterpret_cast<std::uintptr_t>(o.data) % static_cast<unsigned>(bytes) == 0;
  for (int d = 0; d < p.outer_rank; ++d) on = on && o.strides[static_cast<std::size_t>(d)] % bytes == 0;
  return on;
}

bool on_whole_vectors(const RowProblem& p) {
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  return p.n * static_cast<std::int64_t>(size_of(x.dtype)) % 16 == 0 && on_vectors(p, x) &&
         (!y.given || on_vectors(p, y));
}

const char* refuses_vectors(const RowProblem& p) {
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  if (p.is_double()) return "float64 has no vector tiles";
  if (x.axis_stride != size && p.n > 1) return "the elements of a row do not lie side by side";
  if (!y.given) return nullptr;
  if (y.dtype != x.dtype) return "x and y have different dtypes";
  if (y.axis_stride != size && p.n > 1) return "the results of a row do not lie side by side";
  return fits_vectors(p, y) ? nullptr : "x and y lie differently to 16-byte boundaries";
}

const char* refuses_other_vectors(const RowProblem& p, Slot slot, const char* why) {
  const Operand &x = p[Slot::x], &o = p[slot];
  const bool same = o.dtype == x.dtype && (o.axis_stride == x.axis_stride || p.n <= 1);
  return same && fits_vectors(p, o) ? nullptr : why;
}

const char* refuses_plain_rows(const RowProblem& p) {
  if (hides(p)) return "some elements are hidden";
  if (p[Slot::scales].given) return "rows have scales of their own";
  if (p[Slot::offsets].given) return "rows are ragged";
  if (p.outer_rank > 1) return "rows are not one stride apart";
  if (p.outer_rank == 1 && p.rows > 1 &&
      p[Slot::x].strides[0] < p.n * static_cast<std::int64_t>(size_of(p[Slot::x].dtype)))
    return "rows overlap or run backwards";
  return nullptr;
}

const char* refuses_plain(const RowProblem& p) {
  const char* why = refuses_plain_rows(p);
  return why != nullptr ? why : refuses_vectors(p);
}

const char* refuses_apart(const RowProblem& p) {
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  const auto is_float = [](const Operand& o) { return o.dtype == DType::float32; };
  const auto apart = [&](const Operand& o) {
    return o.axis_stride != static_cast<std::int64_t>(size_of(o.dtype)) && p.n > 1;
  };
  if (x.dtype == DType::float64 || y.dtype == DType::float64) return "float64 has no vector tiles";
  if (x.dtype != y.dtype && is_float(x) == is_float(y)) return "x and y have different 16-bit dtypes";
  if (x.dtype == y.dtype && fits_vectors(p, y)) return "y lies to 16-byte boundaries as x does";
  if (apart(x)) return "the elements of a row do not lie side by side";
  if (apart(y)) return "the results of a row do not lie side by side";
  if (const char* why = refuses_plain_rows(p)) return why;
  // Measured: a cluster a row, which keeps elements, is up to a sixth faster where logarithms become 16 bit.
  const bool narrowed = p.op == Op::log_softmax && is_float(x) && x.dtype != y.dtype && on_whole_vectors(p);
  const bool faster =
      narrowed && p.rung == Rung::automatic && p.n >= 4096 && p.n <= 40000 && refuses_one_cluster(p) == nullptr;
  return faster ? "results that are not parked are faster" : nullptr;
}

const char* refuses_uncut(const RowProblem& p) {
  if (p[Slot::mask].given) return "rows have a mask";
  return is_cut(p) ? nullptr : "no row is cut short";
}

const char* refuses_scales(const RowProblem& p) {
  if (p[Slot::offsets].given) return "ragged rows have no common length";
  if (p[Slot::scales].given) return "rows have scales of their own";
  const float c = fold::make_scale<float>(p.scale).c;
  if (c == 0.F || !std::isfinite(c)) return "a scale of 0, or one that is not finite";
  return refuses_vectors(p);
}

const char* refuses_hidden(const RowProblem& p) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  if (p.empty != Empty::zero) return "rows without elements are to become NaN";
  return refuses_scales(p);
}

const char* refuses_cut(const RowProblem& p) {
  const char* why = refuses_uncut(p);
  return why != nullptr ? why : refuses_hidden(p);
}

const char* refuses_cut_rows(const RowProblem& p) {
  if (const char* why = refuses_cut(p)) return why;
  return on_whole_vectors(p) ? nullptr : "rows begin or end inside vectors";
}

bool are_fewer_chunks(const RowProblem& p, std::int64_t of_processor) {
  return p.rows * lift::chunk_count(p.n) < of_processor * traits_of(DeviceOf(p[Slot::x].data).device()).processors;
}

bool shares_mask(const RowProblem& p) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(p.outer_rank); ++i)
    if (p[Slot::mask].given && p.outer[i] > 1 && p[Slot::mask].strides[i] == 0) return true;
  return false;
}

bool masks_fit_vectors(const RowProblem& p) {
  const Operand &x = p[Slot::x], &mask = p[Slot::mask];
  const auto size = static_cast<std::int64_t>(size_of(x.dtype)), width = 16 / size;
  const auto misfit = [&](std::int64_t bytes, std::int64_t of_mask) { return (bytes / size - of_mask) % width != 0; };
  const auto low = [](const char* at) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(at) % 16); };
  if (mask.axis_stride != 1 || misfit(low(x.data), low(mask.data))) return false;
  for (int d = 0; d < p.outer_rank; ++d)
    if (const auto at = static_cast<std::size_t>(d); p.outer[at] > 1 && misfit(x.strides[at], mask.strides[at]))
      return false;
  return true;
}

RowProblem without_mask(RowProblem p) {
  p[Slot::mask] = {};
  return p;
}

const char* refuses_masked_plain(const RowProblem& p) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  if (!p[Slot::mask].given) return "rows have no mask";
  if (const char* why = refuses_plain(without_mask(p))) return why;
  const bool backwards = p.outer_rank > 0 && p[Slot::mask].strides[0] < 0;
  return p[Slot::mask].axis_stride != 1 || backwards ? "masks run backwards, or their bytes lie apart" : nullptr;
}

const char* refuses_one_cluster(const RowProblem& p) {
  if (p.n > 256 * lift::kChunk) return "a row is longer than a cluster holds (262144)";
  if (p.rows >= 0x7FFFFFFF / 16) return "more rows than a grid has";
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  const std::int64_t held = std::int64_t{kWarpsPerBlock} * std::max(traits.largest_cluster, 1);
  return lift::chunk_count(p.n) > held ? "a row is longer than the device's clusters hold" : nullptr;
}

Grid cluster_grid(std::int64_t rows, std::int64_t chunks, const DeviceTraits& device, int warps) {
  const auto ceil = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  std::int64_t blocks = ceil(chunks, warps);
  const std::int64_t wanted = std::min<std::int64_t>(ceil(device.processors, std::max<std::int64_t>(rows, 1)), chunks);
  blocks = std::min<std::int64_t>(std::max(blocks, wanted), std::max(device.largest_cluster, 1));
  return {rows * blocks, 32 * static_cast<int>(ceil(chunks, blocks)), static_cast<int>(blocks)};
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
