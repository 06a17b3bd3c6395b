#include "report.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

namespace softfold::cli {

void print(const Json& object) { fmt::print("{}\n", object.dump(2, ' ', false, Json::error_handler_t::replace)); }

std::uint64_t peak_memory() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;  // Linux counts it in KiB
}

}  // namespace softfold::cli
