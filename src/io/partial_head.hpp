// The head of a partial file, and what follows from it: how each row is cut, how many bytes it has.
#pragma once

#include "softfold/io/partial_file.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace softfold {
inline namespace v0 {
namespace io {

struct PartialHead {
  // A transfer that changes line ends breaks it.
  static constexpr char kMagic[8] = {'S', 'F', 'P', 'A', 'R', 'T', '\r', '\n'};

  char magic[8];
  std::uint32_t format, bits_version, digits, chunk;
  double scale;
  std::int64_t offset, length, rows, row_length;
};
static_assert(sizeof(PartialHead) == 64);
/// With its checksum.
inline constexpr std::uint64_t kHeadBytes = sizeof(PartialHead) + sizeof(std::uint64_t);

PartialHead head_of(const PartialSpan& span);
/// Throws Error: Code::file for a head that no file can have, Code::state for another definition of the bits.
void check_head(const PartialHead& head);
[[noreturn]] void refuse_partial(const std::string& got);

/// How a partial of these elements is cut: see Partial.
struct Cut {
  std::int64_t head;
  std::vector<int> levels;  ///< of the nodes
  std::int64_t tail;
};
Cut cut_of(std::int64_t offset, std::int64_t length);

/// Bytes of a row in the file.
std::int64_t row_bytes(const PartialHead& head);
/// Bytes of the whole file; nothing where they do not fit into 63 bits.
std::optional<std::uint64_t> file_bytes(const PartialHead& head);

}  // namespace io
}  // namespace v0
}  // namespace softfold
