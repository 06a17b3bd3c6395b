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

std::int64_t stride_of_dy(const RowProblem& p) { return p.outer_rank == 0 ? 0 : p[Slot::dy].strides[0]; }

const char* refuses(const RowProblem& p) {
  if (p.rung != Rung::automatic) return "a gradient has no rungs";
  if (p.n == 0) return "rows of no elements";
  if (p.rows / 8 >= 0x7FFFFFFF) return "more rows than a grid has";
  if (const char* why = refuses_plain(p)) return why;
  if (p.outer_rank == 1 && p.rows > 1 && stride_of_dy(p) < p.n * static_cast<std::int64_t>(size_of(p[Slot::x].dtype)))
    return "rows of dy overlap or run backwards";
  return refuses_other_vectors(p, Slot::dy, "dy lies differently from y");
}

const char* refuses_lane(const RowProblem& p, const Context&) {
  if (const char* why = refuses(p)) return why;
  const auto bytes = p.n * static_cast<std::int64_t>(size_of(p[Slot::x].dtype));
  if (bytes > kLaneVectors * 16) return "a row is longer than a lane holds (128 bytes)";
  const PlainRows rows = plain_rows(p);
  const bool end_to_end = rows.x_stride == bytes && rows.y_stride == bytes && stride_of_dy(p) == bytes;
  return bytes % 16 == 0 && rows.joined && end_to_end ? nullptr : "rows do not lie end to end on 16-byte boundaries";
}

const char* refuses_odd(const RowProblem& p, const Context&) {
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (const char* why = refuses(p)) return why;
  const int size = static_cast<int>(size_of(p[Slot::x].dtype));
  const PlainRows rows = plain_rows(p);
  const int vectors = vectors_of(rows, size);
  if (p.n >= 128 && on_vectors(rows, size) &&
      vectors == static_cast<int>(std::bit_ceil(static_cast<unsigned>(vectors))))
    return "a row fills its lanes";
  return nullptr;
}

template <class E, template <class> class Gradient>
void launch_lane(const RowProblem& p, Stream stream) {
  const DeviceOf device(p[Slot::x].data);
  launch_lane_rows<2>(plain_rows(p), traits_of(device.device()), [&]<int kVectors>(LaneRows rows, const Grid& grid) {
    rows.dy = p[Slot::dy].data, rows.scale = static_cast<float>(p.scale);
    launch("backward_lane_rows", backward_lane_rows<E, kVectors, Gradient>, grid, stream, rows);
  });
}

template <class E, template <class> class Gradient>
void launch_odd(const RowProblem& p, Stream stream) {
  const DeviceOf device(p[Slot::x].data);
  const PlainRows y = plain_rows(p);
  with_odd_shape<E, false>(y, [&]<int kLanes, int kVectors, int kFull>() {
    using Place = OddPlace<E, 32 / kLanes>;
    constexpr std::int64_t rows = 32 / kLanes * kOddWarps * kOddRuns;
    OddGradientRows to{y, y, static_cast<float>(p.scale)};
    to.dy.x = to.dy.x_begin = p[Slot::dy].data;
    to.dy.x_stride = stride_of_dy(p);
    to.dy.x_end = to.dy.x + (p.rows - 1) * to.dy.x_stride + p.n * static_cast<std::int64_t>(sizeof(E));
    to.y.joined = to.dy.joined = end_to_end(to.y, sizeof(E)) && end_to_end(to.dy, sizeof(E));
    to.y.pitch = to.dy.pitch = Place::pitch(to.y);
    const Grid grid{(p.rows + rows - 1) / rows, 32 * kOddWarps, 1, 2 * kOddWarps * kOddRuns * Place::bytes(to.y)};
    launch("backward_odd_rows", backward_odd_rows<E, kLanes, kVectors, kFull, Gradient>, grid, stream, to);
  });
}

void run_lane(const RowProblem& p, const Context& context) {
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.op == Op::softmax_backward) return launch_lane<E, fold::SoftmaxGradient>(p, stream_of(context));
    launch_lane<E, fold::LogSoftmaxGradient>(p, stream_of(context));
  });
}

void run_odd(const RowProblem& p, const Context& context) {
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.op == Op::softmax_backward) return launch_odd<E, fold::SoftmaxGradient>(p, stream_of(context));
    launch_odd<E, fold::LogSoftmaxGradient>(p, stream_of(context));
  });
}

}  // namespace

const RowKernel backward_lane_rows_kernel{"backward_lane_rows", refuses_lane, run_lane, nullptr};
const RowKernel backward_odd_rows_kernel{"backward_odd_rows", refuses_odd, run_odd, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
