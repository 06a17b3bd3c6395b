// softmax_lane_rows and fold_lane_rows: what they take, and how they are launched.
#include "cuda/lane_rows.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/lane_launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses_rows(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  const auto bytes = p.n * static_cast<std::int64_t>(size_of(p[Slot::x].dtype));
  if (p.n == 0 || bytes % 16 != 0) return "rows do not fill vectors of 16 bytes";
  if (bytes > kLaneVectors * 16) return "a row is longer than a lane holds (128 bytes)";
  if (p.rows / 32 >= 0x7FFFFFFF) return "more rows than a grid has";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (const char* why = refuses_plain(p)) return why;
  const PlainRows rows = plain_rows(p);
  return rows.joined && rows.x_stride == bytes ? nullptr : "rows do not lie end to end on 16-byte boundaries";
}

const char* refuses(const RowProblem& p, const Context& context) {
  if (const char* why = refuses_rows(p, context)) return why;
  const PlainRows rows = plain_rows(p);
  const bool on_boundary = reinterpret_cast<std::uintptr_t>(rows.y) % 16 == 0;
  return on_boundary && rows.y_stride == rows.x_stride ? nullptr
                                                       : "results do not lie end to end on 16-byte boundaries";
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const PlainRows plain = plain_rows(p);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_lane_vectors(plain, [&]<int kVectors>() {
      const auto go = [&](const LaneRows& rows, const Grid& grid) {
        const auto by = [&](auto kernel) { launch("softmax_lane_rows", kernel, grid, stream_of(context), rows); };
        p.op == Op::log_softmax ? by(softmax_lane_rows<E, kVectors, true>) : by(softmax_lane_rows<E, kVectors, false>);
      };
      launch_lane_rows<kVectors, 1>(plain, traits_of(device.device()), go);
    });
  });
}

void launch_fold(const RowProblem& p, const RowResults& to, Stream stream) {
  const DeviceOf device(p[Slot::x].data);
  const PlainRows plain = plain_rows(p);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_lane_vectors(plain, [&]<int kVectors>() {
      const auto go = [&](const LaneRows& rows, const Grid& grid) {
        launch("fold_lane_rows", fold_lane_rows<E, kVectors>, grid, stream, rows, to);
      };
      launch_lane_rows<kVectors, 1>(plain, traits_of(device.device()), go);
    });
  });
}

void run_fold(const RowProblem& p, const Context& context) { launch_fold(p, RowResults(p), stream_of(context)); }

}  // namespace

bool fold_lane_rows_to(const RowProblem& p, const RowResults& to, Stream stream) {
  if (refuses_rows(p, {}) != nullptr) return false;
  launch_fold(p, to, stream);
  return true;
}

const RowKernel softmax_lane_rows_kernel{"softmax_lane_rows", refuses, run, nullptr};
const RowKernel fold_lane_rows_kernel{"fold_lane_rows", refuses_rows, run_fold, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
