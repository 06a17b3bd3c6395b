// fold_odd_rows: what it takes, and how it is launched.
#include "cuda/fold_odd.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  if (p.n == 0) return "rows of no elements";
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= 0x7FFFFFFF) return "more rows than a grid has";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (const char* why = refuses_plain(p)) return why;
  return fills_lanes(plain_rows(p), static_cast<int>(size_of(p[Slot::x].dtype))) ? "a row fills its lanes" : nullptr;
}

void launch_rows(const RowProblem& p, const RowResults& to, Stream stream) {
  const DeviceOf device(p[Slot::x].data);
  PlainRows rows = plain_rows(p);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_odd_shape<E, true, true>(rows, [&]<int kLanes, int kVectors, int kFull>() {
      using Place = OddPlace<E>;
      constexpr std::int64_t at_once = 32 / kLanes * kOddWarps * kOddRuns;
      rows.joined = rows.x_stride == p.n * static_cast<std::int64_t>(sizeof(E));
      rows.pitch = Place::pitch(rows);
      const Grid grid{(p.rows + at_once - 1) / at_once, 32 * kOddWarps, 1,
                      kOddWarps * kOddRuns * Place::bytes(rows, 32 / kLanes)};
      launch("fold_odd_rows", fold_odd_rows<E, kLanes, kVectors, kFull>, grid, stream, rows, to);
    });
  });
}

void run(const RowProblem& p, const Context& context) { launch_rows(p, RowResults(p), stream_of(context)); }

}  // namespace

bool fold_odd_rows_to(const RowProblem& p, const RowResults& to, Stream stream) {
  if (refuses(p, {}) != nullptr) return false;
  launch_rows(p, to, stream);
  return true;
}

const RowKernel fold_odd_rows_kernel{"fold_odd_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
