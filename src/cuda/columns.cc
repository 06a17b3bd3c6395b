#include "cuda/columns.hpp"

#include "cuda/across_tiles.hpp"
#include "softfold/lift/chunks.hpp"

#include <algorithm>
#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {

bool lies_in_words(const RowProblem& p, int rows) {
  const auto last = static_cast<std::size_t>(p.outer_rank - 1);
  if (p.outer[last] % rows != 0) return false;
  for (const Slot slot : {Slot::x, Slot::y, Slot::dy}) {
    const Operand& o = p[slot];
    if (!o.given) continue;
    const auto word = rows * static_cast<std::int64_t>(size_of(o.dtype));
    if (reinterpret_cast<std::uintptr_t>(o.data) % static_cast<std::uintptr_t>(word) != 0) return false;
    if (o.axis_stride % word != 0) return false;
    for (std::size_t d = 0; d < last; ++d)
      if (o.strides[d] % word != 0) return false;
  }
  return true;
}

namespace {

/// How rows that lie side by side divide into words, and chunks into runs of up to `held` elements of a lane.
struct Words {
  unsigned longest;  ///< elements of a chunk
  int residue_bits;  ///< elements of a run lie 1 << residue_bits apart
  unsigned across, all;
};
Words words_of(const RowProblem& p, int rows, int held) {
  const auto longest = static_cast<unsigned>(std::min<std::int64_t>(p.n, lift::kChunk));
  const unsigned across = static_cast<unsigned>(inner_of(p)) / static_cast<unsigned>(rows);
  return {longest, std::countr_zero(std::bit_ceil((longest - 1) / static_cast<unsigned>(held) + 1)), across,
          across * static_cast<unsigned>(outer_of(p))};
}

}  // namespace

ColumnCut cut_columns(const RowProblem& p, int rows, int held, int warps) {
  const Words words = words_of(p, rows, held);
  const int class_bits = std::min(words.residue_bits, std::countr_zero(static_cast<unsigned>(warps)));
  const int part_bits = words.residue_bits - class_bits;
  // More chunks than a cluster has blocks are too many, however many.
  const std::int64_t chunks = std::min<std::int64_t>(lift::chunk_count(p.n), kColumnBlocks + 1);
  return {.rows = rows,
          .warps = warps,
          .blocks = static_cast<int>(chunks << part_bits),
          .slots = static_cast<int>((words.longest - 1) >> words.residue_bits) + 1,
          .share = {.n = static_cast<int>(std::min<std::int64_t>(p.n, kColumnBlocks * lift::kChunk)),
                    .across = words.across,
                    .words = words.all,
                    .class_bits = class_bits,
                    .part_bits = part_bits}};
}

namespace {

/// Bytes of the wider of x's and the results' elements.
int widest(const RowProblem& p) {
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  return static_cast<int>(y.given ? std::max(size_of(x.dtype), size_of(y.dtype)) : size_of(x.dtype));
}

}  // namespace

int rows_of_word(const RowProblem& p) {
  if (widest(p) == 2 && lies_in_words(p, 4)) return 4;
  return lies_in_words(p, 2) ? 2 : 1;
}

ColumnCut softmax_cut(const RowProblem& p) {
  const int most = most_column_blocks(p);
  for (int rows = 8 / widest(p); rows >= 1; rows /= 2) {
    if (!lies_in_words(p, rows)) continue;
    const ColumnCut cut = cut_columns(p, rows, terms_of_lane(rows) / rows, kSoftmaxColumnWarps);
    if (cut.blocks <= most) return cut;
  }
  return {};
}

ColumnCut gradient_cut(const RowProblem& p) {
  const int size = static_cast<int>(size_of(p[Slot::x].dtype)), most = most_column_blocks(p);
  for (int bytes = 8; bytes >= size; bytes /= 2) {
    const int rows = bytes / size;
    if (rows * widest(p) > 8 || !lies_in_words(p, rows) || (bytes == 2 && lies_in_words(p, 2))) continue;
    for (const int warps : {4, 8}) {
      if (bytes < 8 && warps == 4) continue;
      const ColumnCut cut = cut_columns(p, rows, kGradientBytes / bytes, warps);
      if (cut.blocks <= most) return cut;
    }
  }
  return {};
}

ColumnItems column_items(const RowProblem& p, int rows, int run, int warps, int processors) {
  const Words words = words_of(p, rows, run);
  const unsigned tiles = (words.all + 31) / 32;
  const auto chunks = static_cast<int>(lift::chunk_count(p.n));
  const unsigned items = tiles * static_cast<unsigned>(chunks);
  // As few warps to an item as leave no processor idle.
  const std::int64_t wanted = std::int64_t{processors} * 64;
  const int most = std::min(words.residue_bits, std::countr_zero(static_cast<unsigned>(warps)));
  int class_bits = 0;
  while (class_bits < most && std::int64_t{items} << class_bits < wanted) ++class_bits;
  return {.n = p.n,
          .across = words.across,
          .words = words.all,
          .tiles = tiles,
          .items = items,
          .chunks = chunks,
          .residue_bits = words.residue_bits,
          .class_bits = class_bits};
}

std::int64_t blocks_of(const ColumnCut& cut) {
  const std::int64_t words = 32 * (cut.warps >> cut.share.class_bits);
  return (cut.share.words + words - 1) / words * cut.blocks;
}

std::int64_t blocks_of(const ColumnItems& share, int warps) {
  return ((std::int64_t{share.items} << share.class_bits) + warps - 1) / warps;
}

std::int64_t span_blocks(const ColumnItems& share, int warps) {
  return (share.tiles * ((share.n + kColumnSpan - 1) / kColumnSpan) + warps - 1) / warps;
}

int most_column_blocks(const RowProblem& p) {
  return std::min(traits_of(DeviceOf(p[Slot::x].data).device()).largest_cluster, kColumnBlocks);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
