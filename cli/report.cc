#include "report.hpp"

#include <fmt/format.h>
#include <cmath>
#include <fstream>

namespace softfold::cli {

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(fmt::to_string(value)); }

void print(const Json& object) { fmt::print("{}\n", object.dump(2, ' ', false, Json::error_handler_t::replace)); }

void note(const std::string& text) { fmt::print(stderr, "softfold: note: {}\n", text); }

void note_bfloat16(const std::string& written, DType dtype) {
  if (dtype != DType::bfloat16 || !written.ends_with(".npy")) return;
  note(fmt::format(".npy cannot name bfloat16: read '{}' with --as bfloat16, or write .safetensors", written));
}

std::string counted(std::int64_t count, const std::string& what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::uint64_t peak_memory() {
  // Not getrusage: what it tells begins with the memory of the process that forked this one.
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::uint64_t kib = 0; word == "VmHWM:" && status >> kib) return kib * 1024;
  return 0;
}

}  // namespace softfold::cli
