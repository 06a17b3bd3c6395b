// What this machine is, for `doctor` and for the records of `bench`.
#pragma once

#include <cstdint>
#include <string>

namespace softfold::cli {

struct Machine {
  std::string cpu;                                ///< its name
  std::string system;                             ///< kernel and release
  int processors = 0;                             ///< that this process may run on
  std::int64_t l1 = 0, l2 = 0, l3 = 0;            ///< data caches, bytes; 0: not known
  std::int64_t memory = 0, available_memory = 0;  ///< bytes

  /// What stays near all its processors between two reads.
  std::int64_t cache() const { return l3 > 0 ? l3 : l2 * processors; }
};
Machine machine();

}  // namespace softfold::cli
