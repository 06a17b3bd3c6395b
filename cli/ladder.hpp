// What a kernel reads and writes: stated, as docs/ladder.md derives it, to stand beside what is measured.
#pragma once

#include "softfold/options.hpp"

#include <optional>
#include <string_view>

namespace softfold::cli {

struct Traffic {
  int reads, writes;      ///< passes over the input, and over the output of the input's size
  int bytes_per_element;  ///< of the input, for rows that do not stay in the cache
};

/// Nothing for kernels that are not a rung of the ladder.
std::optional<Traffic> traffic_of(Op op, std::string_view kernel, std::size_t in_bytes, std::size_t out_bytes);

}  // namespace softfold::cli
