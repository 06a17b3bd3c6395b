// softmax_odd_rows: what it takes, and how it is launched.
#include "cuda/softmax_odd.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

#include <bit>

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
  const int size = static_cast<int>(size_of(p[Slot::x].dtype));
  const PlainRows rows = plain_rows(p);
  const int vectors = vectors_of(rows, size);
  const auto lanes_hold = static_cast<int>(std::bit_ceil(static_cast<unsigned>(vectors)));
  if (fills_lanes(rows, size)) return "a row fills its lanes";
  // Measured.
  const std::int64_t bytes = p.n * size;
  if (!end_to_end(rows, size) && bytes > (size == 4 ? 128 : 112) && bytes <= (size == 4 ? 512 : 256))
    return "so short rows with gaps between them are faster by more lanes";
  if (size == 4 && p.n >= 256 && 8 * vectors > 7 * lanes_hold) return "a row of float32 nearly fills its lanes";
  return nullptr;
}

template <class E, Leaves kLeaves>
void launch_rows(const PlainRows& p, Stream stream) {
  // More kernels are made where they are asked for most.
  with_odd_shape<E, kLeaves == Leaves::softmax, kLeaves == Leaves::softmax && sizeof(E) == 2>(
      p, [&]<int kLanes, int kVectors, int kFull>() {
        using Place = OddPlace<E>;
        constexpr std::int64_t rows = 32 / kLanes * kOddWarps * kOddRuns;
        PlainRows to = p;
        to.joined = end_to_end(p, sizeof(E));
        to.pitch = Place::pitch(to);
        const Grid grid{(p.rows + rows - 1) / rows, 32 * kOddWarps, 1,
                        kOddWarps * kOddRuns * Place::bytes(to, 32 / kLanes)};
        launch("softmax_odd_rows", softmax_odd_rows<E, kLanes, kVectors, kFull, kLeaves>, grid, stream, to);
      });
}

template <Leaves kLeaves>
void launch_leaves(const PlainRows& p, DType dtype, Stream stream) {
  with_element(dtype, [&]<class E>() { launch_rows<E, kLeaves>(p, stream); });
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const DType dtype = p[Slot::x].dtype;
  if (p.op == Op::log_softmax) return launch_leaves<Leaves::log_softmax>(plain_rows(p), dtype, stream_of(context));
  launch_leaves<Leaves::softmax>(plain_rows(p), dtype, stream_of(context));
}

}  // namespace

bool is_odd_for_gradient(const RowProblem& p) { return refuses(p, {}) == nullptr; }
void launch_odd_gradient(const PlainRows& rows, DType dtype, Stream stream) {
  launch_leaves<Leaves::gradient>(rows, dtype, stream);
}

const RowKernel softmax_odd_rows_kernel{"softmax_odd_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
