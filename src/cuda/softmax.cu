// softmax and log_softmax: what each one-read kernel takes, and how it is launched.
#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/softmax_rows.cuh"
#include "cuda/softmax_short.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

Extent memory_of(const RowProblem& p, const Operand& o) {
  const char *begin = o.data, *end = o.data + p.n * static_cast<std::int64_t>(size_of(o.dtype));
  for (int d = 0; d < p.outer_rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    const std::int64_t reach = (p.outer[at] - 1) * o.strides[at];
    (reach < 0 ? begin : end) += reach;
  }
  return {begin, end};
}

ShortRows short_rows(const RowProblem& p) {
  const auto scale = fold::make_scale<float>(p.scale);
  return {p, memory_of(p, p[Slot::x]), scale, lift::Factor(scale.c)};
}

namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 0x7FFFFFFF;
/// Chunks from which on rows fill the device also where a warp has more than one.
constexpr std::int64_t kChunksAtOnce = 4096;

const char* refuses_rung(const RowProblem& p) { return refuses_rung(p.rung, Rung::fused); }

const char* refuses_warp_rows(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p)) return why;
  if (p[Slot::offsets].given) return "ragged rows have no common length";
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= kMostBlocks) return "more rows than a grid has";
  return refuses_vectors(p);
}

template <class E, int kLanes>
void launch_warp_rows(const RowProblem& p, Stream stream) {
  const int per_block = kThreads / kLanes;
  const Grid grid{(p.rows + per_block - 1) / per_block, kThreads};
  using Elements = VectorElements<E, kLanes, lift::kPerLane>;
  constexpr int at_once = sizeof(E) == 4 ? 3 : 4;
  const auto by = [&](auto kernel) { launch("softmax_warp_rows_any", kernel, grid, stream, p); };
  p.op == Op::log_softmax ? by(softmax_warp_rows_any<Elements, true, at_once>)
                          : by(softmax_warp_rows_any<Elements, false, at_once>);
}

template <class E, int kLanes>
void launch_short_rows(const RowProblem& p, Stream stream) {
  using Place = ShortPlace<E, kLanes>;
  constexpr int warps = kThreads / 32;
  const Grid grid{(p.rows + warps * Place::kPlaces - 1) / (warps * Place::kPlaces), kThreads, 1,
                  warps * Place::kPlaces * Place::kBytes};
  launch("softmax_warp_rows_any", softmax_warp_rows_short<E, kLanes>, grid, stream, short_rows(p));
}

void run_warp_rows(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Stream stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (!p[Slot::mask].given) {
      // Groups of lanes have no slots for what begins inside a vector to be rotated to.
      const std::int64_t slots = on_vectors(p, p[Slot::x]) ? p.n : p.n + 16 / static_cast<int>(sizeof(E)) - 1;
      if (slots <= 128) return launch_short_rows<E, 4>(p, stream);
      if (slots <= 256) return launch_short_rows<E, 8>(p, stream);
      if (slots <= 512) return launch_short_rows<E, 16>(p, stream);
      return launch_short_rows<E, 32>(p, stream);
    }
    if (p.n <= 128) return launch_warp_rows<E, 4>(p, stream);
    if (p.n <= 256) return launch_warp_rows<E, 8>(p, stream);
    if (p.n <= 512) return launch_warp_rows<E, 16>(p, stream);
    launch_warp_rows<E, 32>(p, stream);
  });
}

/// Measured: rows with masks that clusters do not stay for. Of 16 bit softmax of many that share masks, and
/// log-probabilities of rows of fours that do not fill chunks.
bool faster_by_elements(const RowProblem& p) {
  if (!p[Slot::mask].given) return false;
  if (p[Slot::x].dtype == DType::float32) return true;
  if (p.n <= lift::kChunk) return false;
  if (p.op == Op::softmax) return p.rows * p.n >= 1 << 22 && shares_mask(p);
  if (p.n <= 2 * lift::kChunk || p.n % 4 != 0 || p.n % lift::kChunk == 0) return false;
  return p[Slot::mask].axis_stride == 1 && on_vectors(p, p[Slot::mask], 4) && on_vectors(p, p[Slot::x], 8) &&
         on_vectors(p, p[Slot::y], 8);
}

const char* refuses_cluster_row(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p)) return why;
  if (p[Slot::offsets].given) return "ragged rows have no common length";
  if (faster_by_elements(p)) return "softmax_any_cluster is faster";
  const char* why = refuses_vectors(p);
  return why != nullptr ? why : refuses_one_cluster(p);
}

/// kCount elements a lane, blocks of up to kThreads; what kMinBlocks of them leave of the registers.
template <class E, bool kLog, int kCount, int kThreads, int kMinBlocks>
void launch_cluster_row(const RowProblem& p, const DeviceTraits& device, Stream stream) {
  constexpr int groups = kCount / lift::kPerLane;  // chunks a warp
  const Grid grid = cluster_grid(p.rows, (lift::chunk_count(p.n) + groups - 1) / groups, device, kThreads / 32);
  using Elements = VectorElements<E, lift::kChunk / kCount, kCount>;
  launch("softmax_cluster_row_any", softmax_cluster_row_any<Elements, kLog, kThreads, kMinBlocks>, grid, stream, p);
}

/// Measured: what a warp does once is done for more elements where a mask asks for more instructions, but rows that
/// begin inside vectors want few elements a lane. Of float32 rows have none: faster_by_elements().
template <class E, bool kLog>
void launch_cluster_row(const RowProblem& p, const DeviceTraits& device, Stream stream) {
  const std::int64_t chunks = lift::chunk_count(p.n);
  if constexpr (sizeof(E) == 2) {
    if (p[Slot::mask].given) {
      const bool many = on_vectors(p, p[Slot::x]) && p.rows * chunks >= kChunksAtOnce;
      if constexpr (!kLog)
        if (many && chunks > 8) return launch_cluster_row<E, kLog, 128, 128, 3>(p, device, stream);
      if (many && chunks > 4) return launch_cluster_row<E, kLog, 64, 512, 1>(p, device, stream);
      return launch_cluster_row<E, kLog, 32, 512, 2>(p, device, stream);
    }
  }
  launch("softmax_cluster_row_any", softmax_cluster_row_short<E, kLog>, cluster_grid(p.rows, chunks, device), stream,
         short_rows(p));
}

void run_cluster_row(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const DeviceTraits& traits = traits_of(device.device());
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.op == Op::log_softmax) return launch_cluster_row<E, true>(p, traits, stream_of(context));
    launch_cluster_row<E, false>(p, traits, stream_of(context));
  });
}

}  // namespace

const RowKernel softmax_warp_rows_any_kernel{"softmax_warp_rows_any", refuses_warp_rows, run_warp_rows, nullptr};
const RowKernel softmax_cluster_row_any_kernel{"softmax_cluster_row_any", refuses_cluster_row, run_cluster_row,
                                               nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
