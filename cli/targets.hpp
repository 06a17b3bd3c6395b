// The target classes of a loss, one a row.
#pragma once

#include "arguments.hpp"
#include "loaded.hpp"

#include "softfold/error.hpp"
#include "softfold/io/array_file.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <vector>

namespace softfold::cli {

/// The shape of the targets: that of `of` without its last axis. Throws Error{Code::shape}.
inline std::vector<std::int64_t> rows_of_targets(const io::ArrayFile& targets, const io::ArrayFile& of) {
  if (of.shape().empty())
    throw Error(Code::shape, "one number without an axis", "an array (..., n)", "x.reshape(1) in NumPy");
  const auto rows = of.shape().first(of.shape().size() - 1);
  if (!std::ranges::equal(targets.shape(), rows))
    throw Error(Code::shape, fmt::format("TARGETS of shape {}", text_of(targets.shape())),
                fmt::format("one a row: {}", text_of(rows)),
                "targets of that shape, or logits of theirs and one axis more");
  return {rows.begin(), rows.end()};
}

/// How many targets are not the one that is ignored.
inline std::int64_t counted_targets(const View& targets, std::int64_t ignored) {
  std::int64_t counted = 0, rows = 1;
  for (const std::int64_t n : targets.shape) rows *= n;
  for (std::int64_t r = 0; r < rows; ++r) counted += integer_at(targets, r) != ignored ? 1 : 0;
  return counted;
}

/// Refuses a target that is no class, before any work and on any device. Throws Error{Code::data}: --ignore-index is
/// what to try where it helps, with one such target and no other.
inline void check_targets(const View& targets, std::int64_t ignored, std::int64_t classes) {
  std::int64_t rows = 1;
  for (const std::int64_t n : targets.shape) rows *= n;
  const auto is_class = [&](std::int64_t target) { return target >= 0 && target < classes; };
  const auto refused = [&](std::int64_t target) { return target != ignored && !is_class(target); };
  std::int64_t first = 0;
  while (first < rows && !refused(integer_at(targets, first))) ++first;
  if (first == rows) return;
  const std::int64_t target = integer_at(targets, first);
  bool alone = true;
  for (std::int64_t r = 0; r < rows && alone; ++r) {
    const std::int64_t other = integer_at(targets, r);
    alone = other == target || (is_class(other) && other != ignored);  // what is ignored now would count then
  }
  throw Error(Code::data, fmt::format("target {} for row {}", target, first),
              classes == 0 ? fmt::format("--ignore-index {} alone: there are no classes", ignored)
                           : fmt::format("0 .. {}, or --ignore-index {}", classes - 1, ignored),
              alone ? fmt::format("--ignore-index {}, if rows with this target are not to count", target)
                    : fmt::format("{} for every row that is not to count, classes for the others", ignored));
}

}  // namespace softfold::cli
