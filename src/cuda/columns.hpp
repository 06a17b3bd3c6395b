// How the warps, blocks and clusters of kernels by columns share rows that lie side by side.
#pragma once

#include "cuda/launch.hpp"
#include "front/problem.hpp"
#include "softfold/fold/logsumexp.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kColumnBlocks = 16;       ///< of a cluster, at most
inline constexpr int kSoftmaxColumnWarps = 8;  ///< of a block of softmax
inline constexpr int kGradientBytes = 128;     ///< of y that a lane has in gradients, at most
inline constexpr int kColumnSpan = 64;         ///< elements of a tile that a warp writes, where rows' sums are known

/// That a lane of softmax has in registers. Measured: of four rows 64, so that what is done once for each is less; else
/// 32.
constexpr int terms_of_lane(int rows) { return rows == 4 ? 64 : 32; }

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
/// How warps share rows straight from memory. A tile is 32 words of neighbouring rows, an item a chunk of a tile. A run
/// is the elements i, i + residues, i + 2 residues, ... of a chunk: the tree's first strides. `1 << class_bits` warps
/// share an item, of which each has the runs i = class, class + classes, ...: the strides between them are the last
/// ones.
struct ColumnItems {
  std::int64_t n;
  unsigned across, words;  ///< words side by side, and in all
  unsigned tiles, items;
  int chunks;  ///< of a row
  int residue_bits, class_bits;
};
/// Whether every `rows` neighbours, 1, 2 or 4, of rows that lie side by side (refuses_side_by_side) lie in a word, of
/// each operand's own elements.
bool lies_in_words(const RowProblem& p, int rows);
/// With `rows` neighbouring rows a lane, up to `held` elements of each, and so many warps a block.
ColumnCut cut_columns(const RowProblem& p, int rows, int held, int warps);
/// For softmax: as many neighbouring rows a lane as lie in words of up to 8 bytes, of x and of y, and let a cluster
/// hold a row; none if none does.
ColumnCut softmax_cut(const RowProblem& p);
/// For gradients: the widest words by which a cluster holds a row: of 8 bytes, by the smaller blocks if it can, or of
/// 4; of 2 where neighbours do not lie in wider ones (longer rows that do are better read twice). No rows if there are
/// none.
ColumnCut gradient_cut(const RowProblem& p);
/// Neighbouring rows of a lane, as many as lie in a word of up to 8 bytes, of x and of y.
int rows_of_word(const RowProblem& p);
/// With `rows` neighbouring rows a lane and runs of so many elements, by blocks of so many warps of a device with so
/// many processors.
ColumnItems column_items(const RowProblem& p, int rows, int run, int warps, int processors);
/// Blocks in all.
std::int64_t blocks_of(const ColumnCut& cut);
std::int64_t blocks_of(const ColumnItems& share, int warps);
/// Of a pass over rows whose sums are known.
std::int64_t span_blocks(const ColumnItems& share, int warps);
/// Null if rows are plain, lie side by side (refuses_across) and their chunks are not too many to count, else why not.
const char* refuses_columns(const RowProblem& p);
/// The roots of the trees of p's rows, as refuses_columns takes them, in `memory`, where there is room for
/// state_bytes().
const fold::LogSumExp<float>::State* fold_columns(const RowProblem& p, char* memory, int processors, Stream stream);
/// The same of rows of which something may be hidden, with scales of their own.
const char* refuses_hidden_columns(const RowProblem& p);
const fold::LogSumExp<float>::State* fold_hidden_columns(const RowProblem& p, char* memory, int processors,
                                                         Stream stream);
/// Blocks of a cluster that the problem's device has, up to kColumnBlocks.
int most_column_blocks(const RowProblem& p);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
