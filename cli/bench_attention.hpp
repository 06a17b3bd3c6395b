// The ladder of attention, raced: each rung in a process of its own, so that what it needs of memory is measured.
#pragma once

#include "report.hpp"

#include "softfold/options.hpp"

#include <string>
#include <vector>

namespace softfold::cli {

struct AttentionRace {
  std::vector<std::int64_t> lengths;  ///< T, of queries and keys
  std::int64_t heads, d;
  DType dtype;
  bool causal;
  int threads;
  double seconds;
};

/// One record (DESIGN section 5) a rung and length, with "memory_bytes": what it had resident beyond its operands.
std::vector<Json> race_attention(const AttentionRace& race, const std::string& commit);
/// As a table for people.
void tell_attention(const AttentionRace& race, const std::vector<Json>& records);

}  // namespace softfold::cli
