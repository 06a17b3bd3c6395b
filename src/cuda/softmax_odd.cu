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

/// Vectors of each lane, of which groups of 1, 2, 4 and so on take a row: the fewer lanes, the faster. The ninth is for
/// what is in a row's first and last vector beside it.
template <class E, Leaves kLeaves, int kLanes>
constexpr int kMostVectors = sizeof(E) == 2 && kLeaves == Leaves::softmax&& kLanes <= 8 ? 9 : 8;

/// Whether rows begin and end with vectors, as plain_rows() gives them.
bool on_vectors(const PlainRows& p, int size) { return p.joined && p.n * size % 16 == 0; }

/// Whether rows lie side by side without a gap, and results too: then a warp's rows are one copy.
bool end_to_end(const PlainRows& p, int size) { return p.x_stride == p.n * size && p.y_stride == p.x_stride; }

/// Vectors that a row lies in at most, but for what wraps around.
int vectors_of(const PlainRows& p, int size) {
  const int width = 16 / size, n = static_cast<int>(p.n);
  return on_vectors(p, size) ? n / width : std::min<int>(n + 2 * (width - 1), lift::kChunk) / width;
}

const char* refuses(const RowProblem& p, const Context&) {
  if (p.rung != Rung::automatic && p.rung != Rung::fused) return "another rung is asked for";
  if (p.n == 0) return "rows of no elements";
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= 0x7FFFFFFF) return "more rows than a grid has";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (const char* why = refuses_plain(p)) return why;
  const int size = static_cast<int>(size_of(p[Slot::x].dtype));
  const PlainRows rows = plain_rows(p);
  const int vectors = vectors_of(rows, size);
  const auto lanes_hold = static_cast<int>(std::bit_ceil(static_cast<unsigned>(vectors)));
  if (p.n >= 128 && on_vectors(rows, size) && vectors == lanes_hold) return "a row fills its lanes";
  // Measured.
  const std::int64_t bytes = p.n * size;
  if (!end_to_end(rows, size) && bytes > 128 && bytes <= (size == 4 ? 512 : 256))
    return "so short rows with gaps between them are faster by more lanes";
  if (size == 4 && p.n >= 256 && 8 * vectors > 7 * lanes_hold) return "a row of float32 nearly fills its lanes";
  return nullptr;
}

template <class E, int kLanes, int kVectors, int kFull, Leaves kLeaves>
void launch_tiles(PlainRows p, Stream stream) {
  using Place = OddPlace<E, 32 / kLanes>;
  constexpr std::int64_t rows = 32 / kLanes * kOddWarps * kOddRuns;
  p.joined = end_to_end(p, sizeof(E));
  p.pitch = Place::pitch(p);
  const Grid grid{(p.rows + rows - 1) / rows, 32 * kOddWarps, 1, kOddWarps * kOddRuns * Place::bytes(p)};
  launch("softmax_odd_rows", softmax_odd_rows<E, kLanes, kVectors, kFull, kLeaves>, grid, stream, p);
}

/// With the fewest lanes, and the fewest vectors of each.
template <class E, Leaves kLeaves, int kLanes = 1>
void launch_rows(const PlainRows& p, Stream stream) {
  const int vectors = vectors_of(p, static_cast<int>(sizeof(E)));
  constexpr int most = kMostVectors<E, kLeaves, kLanes>;
  if constexpr (kLanes * 8 * 16 / static_cast<int>(sizeof(E)) < lift::kChunk)
    if (vectors > kLanes * most) return launch_rows<E, kLeaves, 2 * kLanes>(p, stream);
  const int each = (vectors + kLanes - 1) / kLanes;
  if constexpr (kLanes == 1) {
    if (each <= 2) return launch_tiles<E, kLanes, 2, 0, kLeaves>(p, stream);
    if (each <= 4) return launch_tiles<E, kLanes, 4, 1, kLeaves>(p, stream);
  }
  if constexpr (most > 8)
    if (each == 9) return launch_tiles<E, kLanes, 9, 7, kLeaves>(p, stream);
  // More kernels are made where they are asked for most.
  if constexpr (kLeaves == Leaves::softmax) {
    if (each == 5) return launch_tiles<E, kLanes, 5, 3, kLeaves>(p, stream);
    if (each == 6) return launch_tiles<E, kLanes, 6, 4, kLeaves>(p, stream);
    if (each == 7) return launch_tiles<E, kLanes, 7, 5, kLeaves>(p, stream);
    launch_tiles<E, kLanes, 8, 6, kLeaves>(p, stream);
  } else {
    if (each <= 6) return launch_tiles<E, kLanes, 6, 3, kLeaves>(p, stream);
    launch_tiles<E, kLanes, 8, 5, kLeaves>(p, stream);
  }
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
