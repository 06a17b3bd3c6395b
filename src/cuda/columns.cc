#include "cuda/columns.hpp"

#include "cuda/across_tiles.hpp"
#include "cuda/launch.hpp"
#include "softfold/lift/chunks.hpp"

#include <algorithm>
#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {

ColumnCut cut_columns(const RowProblem& p, int rows, int held, int warps) {
  const auto longest = static_cast<unsigned>(std::min<std::int64_t>(p.n, lift::kChunk));
  const int residue_bits = std::countr_zero(std::bit_ceil((longest - 1) / static_cast<unsigned>(held) + 1));
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
