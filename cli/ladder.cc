#include "ladder.hpp"

#include <utility>

namespace softfold::cli {
namespace {

/// Reads of x before the write, and the read that belongs to the write (none where the row stays on chip).
constexpr std::pair<std::string_view, std::pair<int, int>> kReads[] = {
    {"_naive", {1, 1}}, {"_safe", {2, 1}}, {"_online", {1, 1}}, {"_tiled", {1, 1}}, {"_fused", {1, 0}}};

}  // namespace

std::optional<Traffic> traffic_of(Op op, std::string_view kernel, std::size_t in_bytes, std::size_t out_bytes) {
  for (const auto& [suffix, reads] : kReads) {
    if (!kernel.ends_with(suffix)) continue;
    Traffic t{};
    switch (op) {
      case Op::softmax:
      case Op::log_softmax: t = {reads.first + reads.second, 1, 0}; break;
      case Op::logsumexp:
      case Op::state: t = {reads.first, 0, 0}; break;
      case Op::finish_softmax:
      case Op::finish_log_softmax: t = {1, 1, 0}; break;
      default: return std::nullopt;
    }
    t.bytes_per_element = t.reads * static_cast<int>(in_bytes) + t.writes * static_cast<int>(out_bytes);
    return t;
  }
  return std::nullopt;
}

}  // namespace softfold::cli
