// Which problems a kernel can do, and how its work is cut. Bits do not depend on any of it.
#pragma once

#include "cuda/launch.hpp"
#include "front/problem.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Null if rows lie so that tiles of 16-byte vectors can move them: float32 or 16 bit, one dtype, elements side by
/// side, x and y equally far from a 16-byte boundary in every row. Else why not.
const char* refuses_vectors(const RowProblem& p);

/// Whether every row of an operand begins on a boundary of 16 bytes, or of so many.
bool on_vectors(const RowProblem& p, const Operand& o, int bytes = 16);

/// Whether every row of x, and of y where it is given, begins and ends with a vector.
bool on_whole_vectors(const RowProblem& p);

/// Null if another operand of x's shape lies as x does, so that the same tiles move it; else `why`.
const char* refuses_other_vectors(const RowProblem& p, Slot slot, const char* why);

/// Null if all rows are alike: one stride between rows, one scale, nothing hidden. Else why not.
const char* refuses_plain_rows(const RowProblem& p);
/// Null if vectors can move them, too.
const char* refuses_plain(const RowProblem& p);
/// Null if rows are plain but for where results go: from 16 bit to float32, or back, or to where y lies to 16-byte
/// boundaries otherwise than x. Else why not.
const char* refuses_apart(const RowProblem& p);

/// Whether rows are cut short, by lengths or a causal limit.
inline bool is_cut(const RowProblem& p) { return p[Slot::length].given || p.causal; }
/// Whether some elements are hidden, by these or a mask.
inline bool hides(const RowProblem& p) { return p[Slot::mask].given || is_cut(p); }
/// Whether all rows are fewer chunks than so many for each processor of x's device.
bool are_fewer_chunks(const RowProblem& p, std::int64_t of_processor);

/// Null if rows are cut short, by lengths or a causal limit alone, else why not.
const char* refuses_uncut(const RowProblem& p);
/// Null if tiles of vectors can move rows, of one scale, else why not.
const char* refuses_scales(const RowProblem& p);
/// Null if, further, softmax of rows without elements is to be zeros.
const char* refuses_hidden(const RowProblem& p);
/// Null if all of these agree.
const char* refuses_cut(const RowProblem& p);
/// Null if they also begin and end with vectors.
const char* refuses_cut_rows(const RowProblem& p);

/// Whether the bytes of each vector's elements lie together in the mask: on as many bytes.
bool masks_fit_vectors(const RowProblem& p);
/// Whether some rows have one mask.
bool shares_mask(const RowProblem& p);
RowProblem without_mask(RowProblem p);
/// Null if rows are plain but for a mask, whose bytes lie side by side, and which does not run backwards. Else why not.
const char* refuses_masked_plain(const RowProblem& p);

inline constexpr int kWarpsPerBlock = 16;

/// Null if a cluster of the device holds any row, a chunk a warp, and a grid has one for each. Else why not.
const char* refuses_one_cluster(const RowProblem& p);

/// A cluster a row: the fewest blocks of up to `warps` warps that hold a row's chunks, a chunk a warp, evenly filled;
/// more of them while rows * blocks leave processors idle.
Grid cluster_grid(std::int64_t rows, std::int64_t chunks, const DeviceTraits& device, int warps = kWarpsPerBlock);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
