// softmax_lane_rows: what it takes, and how it is launched.
#include "cuda/softmax_lane.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (p.rung != Rung::automatic && p.rung != Rung::fused) return "another rung is asked for";
  const auto bytes = p.n * static_cast<std::int64_t>(size_of(p[Slot::x].dtype));
  if (p.n == 0 || bytes % 16 != 0) return "rows do not fill vectors of 16 bytes";
  if (bytes > kLaneVectors * 16) return "a row is longer than a lane holds (128 bytes)";
  if (p.rows / 32 >= 0x7FFFFFFF) return "more rows than a grid has";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (const char* why = refuses_plain(p)) return why;
  const PlainRows rows = plain_rows(p);
  if (!rows.joined || rows.x_stride != bytes || rows.y_stride != bytes ||
      reinterpret_cast<std::uintptr_t>(rows.y) % 16 != 0)
    return "rows do not lie end to end on 16-byte boundaries";
  return nullptr;
}

template <class E, bool kLog, int kVectors = 1>
void launch_rows(const PlainRows& p, Stream stream) {
  if constexpr (kVectors < kLaneVectors)
    if (p.x_stride > kVectors * 16) return launch_rows<E, kLog, kVectors + 1>(p, stream);
  constexpr int rows = 32 * (kLaneVectors / kVectors), runs = kLaneWarps * kLaneRuns;
  const Grid grid{(p.rows + runs * rows - 1) / (runs * rows), 32 * kLaneWarps, 1,
                  runs * room_in_sectors(rows * kVectors * 16)};
  launch("softmax_lane_rows", softmax_lane_rows<E, kVectors, kLog>, grid, stream, p);
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Stream stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.op == Op::log_softmax) return launch_rows<E, true>(plain_rows(p), stream);
    launch_rows<E, false>(plain_rows(p), stream);
  });
}

}  // namespace

const RowKernel softmax_lane_rows_kernel{"softmax_lane_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
