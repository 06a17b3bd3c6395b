// softmax, log_softmax or logsumexp of an array in a file, whatever its size.
#pragma once

#include "blocks.hpp"
#include "compute.hpp"
#include "progress.hpp"

#include "softfold/options.hpp"

#include <functional>
#include <string>

namespace softfold::cli {

struct Job {
  Op op;               ///< softmax, log_softmax, logsumexp
  RowOptions options;  ///< axis, scale, empty, rung
  DType output;
  std::uint64_t memory;  ///< bytes
  const Compute& compute;
  bool in_turn = false;      ///< one block at a time: its input is still there when its result is consumed
  std::uint64_t beside = 0;  ///< bytes that consuming results takes
};

/// What a job will do, decided before any work.
struct Outline {
  Geometry geometry;
  Schedule schedule;
  std::string kernel;
  std::uint64_t bytes_read, bytes_written;
  int passes;  ///< over the file
};
/// Refuses everything that can be refused: plans on the array's shape, without touching any data.
Outline outline_of(const io::ArrayFile& input, const Job& job);

/// Takes the result `y` of a box of the input `x`, both contiguous. logsumexp has one number a row, given once a row
/// (streamed: with a box of no columns).
using Consume = std::function<void(const Box&, const std::byte* x, const std::byte* y)>;

void transform(const io::ArrayFile& input, const Job& job, const Outline& outline, Progress& progress,
               const Consume& consume);

}  // namespace softfold::cli
