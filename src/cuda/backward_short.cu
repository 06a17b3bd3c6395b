// backward_lane_rows and backward_odd_rows: what they take, and how they are launched.
#include "cuda/backward_short.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/lane_launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses_lane(const RowProblem& p, const Context&) {
  if (const char* why = refuses_plain_gradient(p)) return why;
  const auto bytes = p.n * static_cast<std::int64_t>(size_of(p[Slot::x].dtype));
  if (bytes > kLaneVectors * 16) return "a row is longer than a lane holds (128 bytes)";
  const PlainGradient g = plain_gradient(p);
  const bool side_by_side = g.y.x_stride == bytes && g.y.y_stride == bytes && g.dy.x_stride == bytes;
  return bytes % 16 == 0 && g.y.joined && side_by_side ? nullptr : "rows do not lie end to end on 16-byte boundaries";
}

const char* refuses_odd(const RowProblem& p, const Context&) {
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (const char* why = refuses_plain_gradient(p)) return why;
  if (p.rows / 8 >= 0x7FFFFFFF) return "more rows than a grid has";
  const int size = static_cast<int>(size_of(p[Slot::x].dtype));
  // Measured: 16-bit log-probabilities cost backward_warp_rows a conversion each.
  const bool elsewhere = p.op == Op::softmax_backward || size == 4;
  return elsewhere && fills_lanes(plain_rows(p), size) ? "a row fills its lanes" : nullptr;
}

template <class E, template <class> class Gradient>
void launch_lane(const RowProblem& p, Stream stream) {
  const DeviceOf device(p[Slot::x].data);
  const PlainGradient g = plain_gradient(p);
  with_lane_vectors(g.y, [&]<int kVectors>() {
    const auto go = [&](LaneRows rows, const Grid& grid) {
      rows.dy = g.dy.x, rows.scale = g.scale;
      launch("backward_lane_rows", backward_lane_rows<E, kVectors, Gradient>, grid, stream, rows);
    };
    launch_lane_rows<kVectors, 2>(g.y, traits_of(device.device()), go);
  });
}

template <class E, template <class> class Gradient>
void launch_odd(const RowProblem& p, Stream stream) {
  const DeviceOf device(p[Slot::x].data);
  PlainGradient g = plain_gradient(p);
  with_odd_shape<E, false, true>(g.y, [&]<int kLanes, int kVectors, int kFull>() {
    using Place = OddPlace<E>;
    constexpr std::int64_t rows = 32 / kLanes * kOddWarps * kOddRuns;
    g.y.joined = g.dy.joined = end_to_end(g.y, sizeof(E)) && end_to_end(g.dy, sizeof(E));
    g.y.pitch = g.dy.pitch = Place::pitch(g.y);
    const Grid grid{(p.rows + rows - 1) / rows, 32 * kOddWarps, 1,
                    2 * kOddWarps * kOddRuns * Place::bytes(g.y, 32 / kLanes)};
    launch("backward_odd_rows", backward_odd_rows<E, kLanes, kVectors, kFull, Gradient>, grid, stream, g);
  });
}

void run_lane(const RowProblem& p, const Context& context) {
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() { launch_lane<E, Gradient>(p, stream_of(context)); });
  });
}

void run_odd(const RowProblem& p, const Context& context) {
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() { launch_odd<E, Gradient>(p, stream_of(context)); });
  });
}

}  // namespace

const RowKernel backward_lane_rows_kernel{"backward_lane_rows", refuses_lane, run_lane, nullptr};
const RowKernel backward_odd_rows_kernel{"backward_odd_rows", refuses_odd, run_odd, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
