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

/// Null if the copy engine can read the operand's tiles, else why not.
const char* refuses_boxes(const RowProblem& p, const Operand& o) {
  if (reinterpret_cast<std::uintptr_t>(o.data) % 16 != 0) return "x or y is not aligned to 16 bytes";
  for (const std::int64_t stride : {o.axis_stride, p.outer_rank == 2 && p.outer[0] > 1 ? o.strides[0] : 16})
    if (stride <= 0 || stride % 16 != 0 || stride >= std::int64_t{1} << 39)
      return "a stride is not positive, a multiple of 16 bytes and below 2^39";
  if (o.axis_stride < inner_of(p) * static_cast<std::int64_t>(size_of(o.dtype))) return "rows overlap";
  return o.axis_stride >= std::int64_t{1} << 25 ? "the elements of a row lie far apart" : nullptr;
}

int blocks_of(const AcrossTiles& t) { return t.chunks << t.part_bits; }
int groups_of(const AcrossTiles& t) { return kTileWarps / t.warps; }

/// Threads read whole blocks of 8 words, which may end beyond the last stage.
int slack_of(const AcrossTiles& t) {
  const std::int64_t longest = std::min<std::int64_t>(t.n, lift::kChunk) >> t.part_bits;
  const auto most = static_cast<int>(ceil_of(longest, t.classes));
  return std::max(0, (most + 7) / 8 * 8 * t.warps * 128 - t.stage_bytes);
}

/// Groups of a block of a cluster, or 0.
int cluster_groups_of(const AcrossTiles& t) { return blocks_of(t) > 1 ? groups_of(t) : 0; }

/// Calls f<E, kLog, kGroups>() for the kernel that folds the problem's tiles. Only 16-bit softmax has two groups.
template <class F>
auto with_kernel(const RowProblem& p, const AcrossTiles& t, F&& f) {
  return with_element(p[Slot::x].dtype, [&]<class E>() {
    const int groups = cluster_groups_of(t);
    if (p.op == Op::log_softmax)
      return groups > 0 ? f.template operator()<E, true, 1>() : f.template operator()<E, true, 0>();
    if constexpr (sizeof(E) == 2)
      if (groups == 2) return f.template operator()<E, false, 2>();
    return groups > 0 ? f.template operator()<E, false, 1>() : f.template operator()<E, false, 0>();
  });
}

/// Of a block, beside its ring.
int mail_bytes(const RowProblem& p, const AcrossTiles& t) {
  return with_kernel(p, t, [&]<class E, bool kLog, int kGroups>() {
    return static_cast<int>(sizeof(typename AcrossGroup<E, kLog, kGroups>::Mail));
  });
}

/// How a tile's rows and a chunk's elements are shared.
struct AcrossCut {
  int part_bits, words;
};
/// With so many groups a block: as many blocks to a chunk as let a row of a tile be 256 bytes wide, if that divides the
/// elements, and clusters stay small and have room for their mail.
AcrossCut cut_of(const RowProblem& p, const DeviceTraits& traits, int groups, int most_bits) {
  const std::int64_t chunk = std::min<std::int64_t>(p.n, lift::kChunk), chunks = lift::chunk_count(p.n);
  const std::int64_t size = static_cast<std::int64_t>(size_of(p[Slot::x].dtype)), bytes = inner_of(p) * size;
  const std::int64_t part = p.op == Op::log_softmax && size == 2 ? 16 : 8, most = kTileWarps * 32 * 32 / groups;
  const auto words_of = [&](int bits) {
    int words = kTileWords;
    while ((chunk >> bits) * words > most) words /= 2;
    return words;
  };
  const auto fits = [&](int bits) {
    const std::int64_t blocks = chunks << bits;
    return p.n % (1 << bits) == 0 && blocks <= std::min(traits.largest_cluster, kTileBest) && bytes % 16 == 0 &&
           bytes >= (32 << bits) && blocks * words_of(bits) * part * groups <= kTileMail;
  };
  int bits = 0;
  while (bits < most_bits && words_of(bits) < kTileWords) ++bits;
  while (bits > 0 && !fits(bits)) --bits;
  return {bits, words_of(bits)};
}
/// Measured. 16-bit rows are bound by instructions: where they fill all threads, two groups, of which one folds while
/// the other's blocks wait for each other; else small clusters.
AcrossCut cut_of(const RowProblem& p, const DeviceTraits& traits) {
  const bool narrow = size_of(p[Slot::x].dtype) == 2;
  if (narrow && p.op == Op::softmax && (p.n == lift::kChunk / 2 || p.n == lift::kChunk)) {
    const AcrossCut cut = cut_of(p, traits, 2, 3);
    if (cut.words == kTileWords) return cut;
  }
  return cut_of(p, traits, 1, narrow && p.op == Op::softmax ? 1 : 2);
}

/// How tiles are cut.
AcrossTiles tiles_of(const RowProblem& p, const DeviceTraits& traits) {
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  const bool single = outer_of(p) == 1;
  AcrossTiles t{x.data, y.data, single ? 16 : x.strides[0], y.axis_stride, single ? 16 : y.strides[0], p.n};
  const std::int64_t inner = inner_of(p);
  t.inner = static_cast<int>(inner);
  t.chunks = static_cast<int>(lift::chunk_count(p.n));
  const AcrossCut cut = cut_of(p, traits);
  t.part_bits = cut.part_bits, t.words = cut.words;
  const std::int64_t chunk = std::min<std::int64_t>(p.n, lift::kChunk), longest = chunk >> t.part_bits;
  t.classes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(ceil_of(longest, 32))));
  t.warps = t.classes * t.words / 32;
  // Boxes begin at multiples of 128 bytes.
  const auto height_of = [](std::int64_t rows) {
    return static_cast<int>(ceil_of(ceil_of(rows, ceil_of(rows, 256)), 2) * 2);
  };
  t.height = height_of(longest);
  t.far_height = static_cast<int>(ceil_of(height_of(chunk), 4) * 4);
  t.boxes = static_cast<int>(ceil_of(longest, t.height));
  t.last_boxes = static_cast<int>(ceil_of((p.n - (t.chunks - 1) * lift::kChunk) >> t.part_bits, t.height));
  t.stage_bytes = t.boxes * t.height * t.words * 4;
  const int room = traits.shared_bytes - mail_bytes(p, t) - slack_of(t);
  // Few additions to the word that tiles are drawn by: one takes 2.6 ns.
  t.run =
      blocks_of(t) == 1 && t.stage_bytes < 16384 ? std::bit_floor(32768U / static_cast<unsigned>(t.stage_bytes)) : 1;
  t.stages = std::min(kTileStages, room / (groups_of(t) * t.stage_bytes));
  t.across = Divisor(ceil_of(inner * static_cast<std::int64_t>(size_of(x.dtype)), t.words * 4));
  t.tiles = t.across.value * static_cast<unsigned>(outer_of(p));
  t.empty = p.empty;
  t.scale = fold::make_scale<float>(p.scale);
  t.two_kappa = fold::LogNormaliser<float>::two_kappa_of(t.scale);
  return t;
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_across(p)) return why;
  for (const Slot slot : {Slot::x, Slot::y})
    if (const char* why = refuses_boxes(p, p[slot])) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (lift::chunk_count(p.n) > std::min(traits.largest_cluster, kTileBlocks)) return "a row is longer than a cluster";
  if (traits.largest_cluster == 1) return "the device has no copy engine";
  if (lift::chunk_count(p.n) > 1) {
    if (inner_of(p) * static_cast<std::int64_t>(size_of(p[Slot::x].dtype)) % 16 != 0)
      return "tiles end inside 16 bytes";
    // A thread without an element would take one that is not there for its row's largest.
    if (p.n % lift::kChunk != 0 && p.n % lift::kChunk < 32)
      return "the last chunk has fewer elements than threads share it";
  }
  return tiles_of(p, traits).stages < 2 ? "shared memory has no room for two tiles" : nullptr;
}

/// Boxes of the operand's tiles; of elements 1 << part_bits apart.
CUtensorMap map_of(const RowProblem& p, const Operand& o, const AcrossTiles& t, int part_bits, int words, int height) {
  const std::int64_t parts = std::int64_t{1} << part_bits;
  const std::int64_t outer = outer_of(p) == 1 ? 16 : o.strides[0];
  const int columns = words * 4 / static_cast<int>(size_of(o.dtype));
  return box_map(o, {inner_of(p), parts, p.n / parts, outer_of(p)}, {o.axis_stride, o.axis_stride * parts, outer},
                 columns, height, words == kTileWords ? 0 : 128);
}

std::size_t workspace_of(const AcrossTiles& t) {
  return (1 + static_cast<std::size_t>(t.tiles) * static_cast<unsigned>(blocks_of(t))) * sizeof(unsigned);
}
std::size_t workspace(const RowProblem& p, const Context&) {
  return workspace_of(tiles_of(p, traits_of(DeviceOf(p[Slot::x].data).device())));
}

/// The counter at `at`, set to 0.
unsigned* cleared_counter(const char* name, char* at, Stream stream) {
  check(cudaMemsetAsync(at, 0, sizeof(unsigned), stream), name);
  return reinterpret_cast<unsigned*>(at);
}

template <class E, bool kLog, int kGroups>
void launch_tiles(const RowProblem& p, const AcrossTiles& t, const DeviceTraits& traits, Stream stream) {
  constexpr const char* kName = "softmax_across_tiles";
  const auto kernel = softmax_across_tiles<E, kLog, kGroups>;
  const int blocks = blocks_of(t), groups = groups_of(t);
  Grid grid{blocks, kTileWarps * 32, blocks, groups * t.stages * t.stage_bytes + slack_of(t)};
  const std::int64_t most = blocks == 1 ? traits.processors : clusters_at_once(kName, kernel, grid);
  grid.blocks = blocks * std::min(most, ceil_of(t.tiles, groups * static_cast<int>(t.run)));
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  launch(kName, kernel, grid, stream, map_of(p, x, t, t.part_bits, t.words, t.height),
         map_of(p, y, t, t.part_bits, t.words, t.height), map_of(p, x, t, 0, t.words >> t.part_bits, t.far_height), t);
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const DeviceTraits& traits = traits_of(device.device());
  AcrossTiles t = tiles_of(p, traits);
  const Scratch scratch(workspace_of(t), context);
  const Stream stream = stream_of(context);
  t.taken = cleared_counter("softmax_across_tiles", scratch.data(), stream);
  t.next = t.taken + 1;
  with_kernel(p, t, [&]<class E, bool kLog, int kGroups>() { launch_tiles<E, kLog, kGroups>(p, t, traits, stream); });
}

}  // namespace

const char* refuses_side_by_side(const RowProblem& p) {
  if (const char* why = refuses_rung(p.rung)) return why;
  if (p.is_double()) return "float64 has no tiles";
  if (p[Slot::offsets].given) return "rows are ragged";
  if (p.outer_rank < 1 || p.outer_rank > 2 || p.n < 2) return "rows are not of a tensor of three axes";
  if (p.rows >= std::int64_t{1} << 31) return "more rows than tiles are counted";
  for (const Slot slot : {Slot::x, Slot::y, Slot::dy})
    if (p[slot].given && p[slot].strides[static_cast<std::size_t>(p.outer_rank - 1)] !=
                             static_cast<std::int64_t>(size_of(p[slot].dtype)))
      return "rows do not lie side by side";
  return nullptr;
}

const char* refuses_across(const RowProblem& p) {
  if (hides(p)) return "some elements are hidden";
  if (p[Slot::scales].given) return "rows have scales of their own";
  if (p[Slot::y].given && p[Slot::y].dtype != p[Slot::x].dtype) return "x and y have different dtypes";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  return refuses_side_by_side(p);
}

const RowKernel softmax_across_tiles_kernel{"softmax_across_tiles", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
