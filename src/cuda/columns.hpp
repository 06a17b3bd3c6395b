// How the warps, blocks and clusters of kernels by columns share rows that lie side by side.
#pragma once

#include "front/problem.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kColumnBlocks = 16;  ///< of a cluster, at most

/// A tile is 32 words of neighbouring rows; `1 << class_bits` warps of a block share one, and in a cluster
/// `1 << part_bits` blocks each of its chunks.
struct ColumnShare {
  int n;
  unsigned across, words;  ///< words side by side, and in all
  int class_bits, part_bits;
};
struct ColumnCut {
  int rows, warps;  ///< of a lane, of a block
  int blocks;       ///< of a cluster
  int slots;        ///< elements of a row that a lane has, at most
  ColumnShare share;
};
/// Whether all rows are whole and alike, and every `rows` neighbours, 1, 2 or 4, lie in a word.
bool lies_in_words(const RowProblem& p, int rows);
/// How many elements of a chunk apart those lie that a lane has, of which it holds up to `held`: a power of two.
int residue_bits_of(const RowProblem& p, int held);
/// With `rows` neighbouring rows a lane, up to `held` elements of each, and so many warps a block.
ColumnCut cut_columns(const RowProblem& p, int rows, int held, int warps);
/// Blocks in all.
std::int64_t blocks_of(const ColumnCut& cut);
/// Blocks of a cluster that the problem's device has, up to kColumnBlocks.
int most_column_blocks(const RowProblem& p);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
