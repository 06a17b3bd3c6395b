// The sizes at which schedules change. They decide speed, never bits; tests set them so that every schedule runs on
// small problems.
#pragma once

#include "softfold/config.hpp"

#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cpu {

struct Tuning {
  /// Elements that the calling thread does itself: waking another would take about as long.
  std::int64_t inline_elements = std::int64_t{1} << 15;
  /// What a task of rows does at least, about: some tens of microseconds.
  std::int64_t task_elements = std::int64_t{1} << 16;
  /// The part of a long row that one task does: a power of two of chunks, so that it is a node of the tree.
  std::int64_t block_elements = std::int64_t{1} << 16;
  /// Rows that threads share are at least twice as long.
  std::int64_t shared_row_elements = std::int64_t{1} << 16;
  /// The longest row whose terms are kept between its sum and its write, in a core's own cache. Beyond, reading the
  /// elements again is as fast.
  std::int64_t fused_elements = std::int64_t{1} << 17;
  /// The same for float16 and bfloat16, where memory is further from being the limit than another exp2 is.
  std::int64_t fused_half_elements = std::int64_t{1} << 18;
  /// Tensors larger than this do not stay in a core's own cache: they are asked for ahead of time.
  std::int64_t far_bytes = std::int64_t{1} << 22;
  /// x and y larger than this together leave the cache before anyone can read them there again: y is written past it.
  std::int64_t stream_bytes = std::int64_t{1} << 25;

  /// Gradients. What one task does, about, in bytes of a row's operands.
  std::int64_t gradient_task_bytes = std::int64_t{1} << 16;
  /// A row with more bytes than this does not stay in a core's cache between its two reads: all threads share it.
  std::int64_t gradient_row_bytes = std::int64_t{3} << 20;
  /// The least chunks of a shared row that one task does.
  std::int64_t gradient_run_chunks = 8;
  /// Gradients, and results of merges, of more bytes than this leave past the cache.
  std::int64_t result_stream_bytes = std::int64_t{1} << 23;

  /// Merges. What one task does, about.
  std::int64_t merge_task_bytes = std::int64_t{1} << 15;
  /// A row of values longer than this is cut into pieces of as much, which then run in parallel.
  std::int64_t merge_piece_elements = std::int64_t{1} << 14;
};

/// The process's. Not changed while operations run.
SOFTFOLD_API Tuning& tuning();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
