// Whatever stands in a partial file, it is parsed or refused with an Error; what is parsed is written back byte for
// byte, and folds on without harm.
#include "softfold/error.hpp"
#include "softfold/io/partial_file.hpp"

#include <cstdlib>
#include <cstring>

namespace {

using namespace softfold;

void require(bool truth) {
  if (!truth) std::abort();
}

void check(std::span<const std::byte> file) {
  io::PartialFile parsed;
  try {
    parsed = io::parse_partials(file);
  } catch (const Error&) {
    return;
  }
  const auto again = io::format_partials(parsed);
  require(again.size() == file.size() && std::memcmp(again.data(), file.data(), file.size()) == 0);
  const io::PartialSpan span = io::span_of(parsed);
  require(span.rows >= 1 && span.offset >= 0 && span.length >= 0);
  std::visit(
      [](const auto& rows) {
        for (const auto& row : rows) require(!(row.state().m != row.state().m));
      },
      parsed.rows);
  try {
    io::join_partials({{"a", parsed}, {"b", parsed}});
  } catch (const Error&) {
  }
}

std::uint64_t hash_of(const std::vector<std::byte>& bytes, std::size_t end) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (std::size_t i = 0; i < end; ++i) hash = (hash ^ std::to_integer<std::uint64_t>(bytes[i])) * 0x100000001B3U;
  return hash;
}

/// The input as a file of one row whose checksums are true, so that what lies behind them is reached.
std::vector<std::byte> with_true_checksums(std::vector<std::byte> bytes) {
  if (bytes.size() < 80) return bytes;
  for (const std::size_t end : {std::size_t{64}, bytes.size() - 8}) {
    const std::uint64_t sum = hash_of(bytes, end);
    std::memcpy(bytes.data() + end, &sum, sizeof sum);
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* const first = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> file(first, first + size);
  check(file);
  check(with_true_checksums(file));
  return 0;
}
