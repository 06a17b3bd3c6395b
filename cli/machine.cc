#include "machine.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>

namespace softfold::cli {
namespace {

/// The value after `key` in a file of "key: value" lines; empty if there is none.
std::string value_in(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t at = line.find_first_not_of(" \t", line.find(':') + 1);
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

std::int64_t kibibytes_in(const char* path, const std::string& key) {
  const std::string value = value_in(path, key);
  return value.empty() ? 0 : std::atoll(value.c_str()) * 1024;
}

}  // namespace

Machine machine() {
  Machine m;
  struct utsname name {};
  ::uname(&name);
  m.cpu = value_in("/proc/cpuinfo", "model name");
  if (m.cpu.empty()) m.cpu = name.machine;
  m.system = fmt::format("{} {}", name.sysname, name.release);
  cpu_set_t allowed;
  m.processors = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0
                     ? CPU_COUNT(&allowed)
                     : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  m.l1 = std::max(0L, ::sysconf(_SC_LEVEL1_DCACHE_SIZE));
  m.l2 = std::max(0L, ::sysconf(_SC_LEVEL2_CACHE_SIZE));
  m.l3 = std::max(0L, ::sysconf(_SC_LEVEL3_CACHE_SIZE));
  m.memory = kibibytes_in("/proc/meminfo", "MemTotal");
  m.available_memory = kibibytes_in("/proc/meminfo", "MemAvailable");
  return m;
}

}  // namespace softfold::cli
