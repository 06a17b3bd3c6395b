#include "cuda/columns.hpp"

#include "cuda/across_tiles.hpp"
#include "cuda/launch.hpp"
#include "softfold/fold/logsumexp.hpp"
#include "softfold/lift/chunks.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace softfold {
inline namespace v0 {
namespace cuda {

bool lies_in_words(const RowProblem& p, int rows) {
  if (p[Slot::mask].given || p[Slot::length].given || p.causal || p[Slot::scales].given) return false;
  if (const float c = fold::make_scale<float>(p.scale).c; c == 0.F || !std::isfinite(c)) return false;
  const auto last = static_cast<std::size_t>(p.outer_rank - 1);
  if (p.outer[last] % rows != 0) return false;
  const auto word = rows * static_cast<std::int64_t>(size_of(p[Slot::x].dtype));
  for (const Slot slot : {Slot::x, Slot::y, Slot::dy}) {
    const Operand& o = p[slot];
    if (!o.given) continue;
    if (reinterpret_cast<std::uintptr_t>(o.data) % static_cast<std::uintptr_t>(word) != 0) return false;
    if (o.axis_stride % word != 0) return false;
    for (std::size_t d = 0; d < last; ++d)
      if (o.strides[d] % word != 0) return false;
  }
  return true;
}

int residue_bits_of(const RowProblem& p, int held) {
  const auto longest = static_cast<unsigned>(std::min<std::int64_t>(p.n, lift::kChunk));
  return std::countr_zero(std::bit_ceil((longest - 1) / static_cast<unsigned>(held) + 1));
}

ColumnCut cut_columns(const RowProblem& p, int rows, int held, int warps) {
  const auto longest = static_cast<unsigned>(std::min<std::int64_t>(p.n, lift::kChunk));
  const int residue_bits = residue_bits_of(p, held);
  const int class_bits = std::min(residue_bits, std::countr_zero(static_cast<unsigned>(warps)));
  const int part_bits = residue_bits - class_bits;
  // More chunks than a cluster has blocks are too many, however many.
  const std::int64_t chunks = std::min<std::int64_t>(lift::chunk_count(p.n), kColumnBlocks + 1);
  const unsigned across = static_cast<unsigned>(inner_of(p)) / static_cast<unsigned>(rows);
  return {.rows = rows,
          .warps = warps,
          .blocks = static_cast<int>(chunks << part_bits),
          .slots = static_cast<int>((longest - 1) >> residue_bits) + 1,
          .share = {.n = static_cast<int>(std::min<std::int64_t>(p.n, kColumnBlocks * lift::kChunk)),
                    .across = across,
                    .words = across * static_cast<unsigned>(outer_of(p)),
                    .class_bits = class_bits,
                    .part_bits = part_bits}};
}

std::int64_t blocks_of(const ColumnCut& cut) {
  const std::int64_t words = 32 * (cut.warps >> cut.share.class_bits);
  return (cut.share.words + words - 1) / words * cut.blocks;
}

int most_column_blocks(const RowProblem& p) {
  return std::min(traits_of(DeviceOf(p[Slot::x].data).device()).largest_cluster, kColumnBlocks);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
