// softmax_across_tiles: what it takes, and how it is launched.
#include "cuda/softmax_across_tiles.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/sm90/tensor_map.hpp"
#include "cuda/stay.hpp"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr std::int64_t ceil_of(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// How many rows lie side by side, and how many such runs there are.
std::int64_t inner_of(const RowProblem& p) { return p.outer[static_cast<std::size_t>(p.outer_rank - 1)]; }
std::int64_t outer_of(const RowProblem& p) { return p.outer_rank == 2 ? p.outer[0] : 1; }

/// Null if the copy engine can read the operand's tiles, else why not.
const char* refuses_boxes(const RowProblem& p, const Operand& o) {
  if (o.strides[static_cast<std::size_t>(p.outer_rank - 1)] != static_cast<std::int64_t>(size_of(o.dtype)))
    return "rows do not lie side by side";
  if (reinterpret_cast<std::uintptr_t>(o.data) % 16 != 0) return "x or y is not aligned to 16 bytes";
  for (const std::int64_t stride : {o.axis_stride, p.outer_rank == 2 && p.outer[0] > 1 ? o.strides[0] : 16})
    if (stride <= 0 || stride % 16 != 0 || stride >= std::int64_t{1} << 39)
      return "a stride is not positive, a multiple of 16 bytes and below 2^39";
  if (o.axis_stride < inner_of(p) * static_cast<std::int64_t>(size_of(o.dtype))) return "rows overlap";
  return o.axis_stride >= std::int64_t{1} << 25 ? "the elements of a row lie far apart" : nullptr;
}

AcrossTiles tiles_of(const RowProblem& p, int shared_bytes);

const char* refuses(const RowProblem& p, const Context&) {
  if (p.rung != Rung::automatic) return "another rung is asked for";
  if (p.is_double()) return "float64 has no tiles";
  if (p[Slot::offsets].given) return "rows are ragged";
  if (p[Slot::mask].given || p[Slot::length].given || p.causal) return "some elements are hidden";
  if (p[Slot::scales].given) return "rows have scales of their own";
  if (p[Slot::y].dtype != p[Slot::x].dtype) return "x and y have different dtypes";
  if (p.outer_rank < 1 || p.outer_rank > 2 || p.n < 2) return "rows are not of a tensor of three axes";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  for (const Slot slot : {Slot::x, Slot::y})
    if (const char* why = refuses_boxes(p, p[slot])) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (lift::chunk_count(p.n) > std::min(traits.largest_cluster, kTileBlocks)) return "a row is longer than a cluster";
  if (traits.largest_cluster == 1) return "the device has no copy engine";
  if (p.rows >= std::int64_t{1} << 31) return "more rows than tiles are counted";
  if (lift::chunk_count(p.n) > 1) {
    if (inner_of(p) * static_cast<std::int64_t>(size_of(p[Slot::x].dtype)) % 16 != 0)
      return "tiles end inside 16 bytes";
    // A thread without an element would take one that is not there for its row's largest.
    if (p.n % lift::kChunk != 0 && p.n % lift::kChunk < 32)
      return "the last chunk has fewer elements than threads share it";
  }
  const int mail = static_cast<int>(sizeof(AcrossMail<2, true>));  // the largest
  return tiles_of(p, traits.shared_bytes - mail).stages < 2 ? "shared memory has no room for two tiles" : nullptr;
}

int groups_of(const AcrossTiles& t) { return kTileWarps / t.warps; }

/// Threads read whole blocks of words, which may end beyond the last stage.
int slack_of(const AcrossTiles& t) {
  const int longest = static_cast<int>(std::min<std::int64_t>(t.n, lift::kChunk));
  const int least = longest / t.classes;
  return least == 32 ? 0 : std::max(0, (least / 8 + 1) * 8 * t.warps * 128 - t.stage_bytes);
}

/// How tiles are cut, for kernels with so much dynamic shared memory.
AcrossTiles tiles_of(const RowProblem& p, int shared_bytes) {
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  const bool single = outer_of(p) == 1;
  AcrossTiles t{x.data, y.data, single ? 16 : x.strides[0], y.axis_stride, single ? 16 : y.strides[0], p.n};
  const std::int64_t longest = std::min<std::int64_t>(p.n, lift::kChunk), inner = inner_of(p);
  t.inner = static_cast<int>(inner);
  // Tiles are as wide as the registers of 16 warps allow, up to 256 bytes.
  t.words = longest <= lift::kChunk / 4 ? 64 : longest <= lift::kChunk / 2 ? 32 : kTileColumns;
  t.classes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(ceil_of(longest, 32))));
  t.warps = t.classes * t.words / 32;
  t.boxes = static_cast<int>(ceil_of(longest, 256));
  t.height = static_cast<int>(ceil_of(ceil_of(longest, t.boxes), 2) * 2);  // boxes begin at multiples of 128 bytes
  t.stage_bytes = t.boxes * t.height * t.words * 4;
  t.stages = std::min(kTileStages, (shared_bytes - slack_of(t)) / (groups_of(t) * t.stage_bytes));
  t.across = static_cast<unsigned>(ceil_of(inner * static_cast<std::int64_t>(size_of(x.dtype)), t.words * 4));
  t.tiles = t.across * static_cast<unsigned>(outer_of(p));
  t.empty = p.empty;
  t.scale = fold::make_scale<float>(p.scale);
  t.two_kappa = fold::LogNormaliser<float>(fold::LogSumExp<float>::identity(), t.scale).two_kappa;
  return t;
}

template <class E, bool kLog, bool kCluster>
void launch_tiles(const RowProblem& p, const DeviceTraits& traits, Stream stream) {
  constexpr const char* kName = "softmax_across_tiles";
  const auto kernel = softmax_across_tiles<E, kLog, kCluster>;
  const AcrossTiles t =
      tiles_of(p, traits.shared_bytes - static_cast<int>(sizeof(typename AcrossGroup<E, kLog, kCluster>::Mail)));
  const auto map_of = [&](const Operand& o, std::int64_t outer) {
    return box_map(o, {inner_of(p), p.n, outer_of(p)}, {o.axis_stride, outer},
                   t.words * 4 / static_cast<int>(sizeof(E)), t.height);
  };
  const int blocks = static_cast<int>(lift::chunk_count(p.n)), groups = groups_of(t);
  Grid grid{blocks, kTileWarps * 32, blocks, groups * t.stages * t.stage_bytes + slack_of(t)};
  const std::int64_t most = blocks == 1 ? traits.processors : clusters_at_once(kName, kernel, grid);
  // Blocks that stay, or more where a group would have more than kTileRun tiles.
  grid.blocks = blocks * std::max(std::min(most, ceil_of(t.tiles, groups)), ceil_of(t.tiles, groups * kTileRun));
  launch(kName, kernel, grid, stream, map_of(p[Slot::x], t.x_outer), map_of(p[Slot::y], t.y_outer), t);
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const DeviceTraits& traits = traits_of(device.device());
  const bool is_log = p.op == Op::log_softmax, is_long = lift::chunk_count(p.n) > 1;
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const auto launch_as = is_log    ? is_long ? launch_tiles<E, true, true> : launch_tiles<E, true, false>
                              : is_long ? launch_tiles<E, false, true>
                                     : launch_tiles<E, false, false>;
    launch_as(p, traits, stream_of(context));
  });
}

}  // namespace

const RowKernel softmax_across_tiles_kernel{"softmax_across_tiles", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
