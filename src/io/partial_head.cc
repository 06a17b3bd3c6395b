#include "partial_head.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

constexpr std::int64_t kChunk = lift::kChunk;
constexpr std::uint32_t kFormat = 1;

bool is_scale(double scale, std::uint32_t digits) {
  return digits == 24 ? fold::make_scale<float>(scale).is_regular() : fold::make_scale<double>(scale).is_regular();
}

}  // namespace

Cut cut_of(std::int64_t offset, std::int64_t length) {
  const std::int64_t head = std::min(length, (kChunk - offset % kChunk) % kChunk);
  Cut cut{head, {}, (length - head) % kChunk};
  std::int64_t chunk = (offset + head) / kChunk;
  for (std::int64_t left = (length - head) / kChunk; left > 0; left -= std::int64_t{1} << cut.levels.back()) {
    int level = 63 - std::countl_zero(static_cast<std::uint64_t>(left));
    if (chunk != 0) level = std::min(level, std::countr_zero(static_cast<std::uint64_t>(chunk)));
    cut.levels.push_back(level);
    chunk += std::int64_t{1} << level;
  }
  return cut;
}

[[noreturn]] void refuse_partial(const std::string& got) {
  throw Error(Code::file, got, "a partial file as `softfold state` writes it", "run `softfold state` again");
}

std::int64_t row_bytes(const PartialHead& head) {
  const Cut cut = cut_of(head.offset, head.length);
  const std::int64_t element = head.digits == 24 ? 4 : 8;
  return (cut.head + cut.tail) * element + std::ssize(cut.levels) * (8 + element) + 8;
}

std::optional<std::uint64_t> file_bytes(const PartialHead& head) {
  std::int64_t all = 0;
  if (__builtin_mul_overflow(row_bytes(head), head.rows, &all) ||
      __builtin_add_overflow(all, std::int64_t{kHeadBytes}, &all))
    return std::nullopt;
  return static_cast<std::uint64_t>(all);
}

void check_head(const PartialHead& head) {
  if (head.format != kFormat) refuse_partial("a partial file of format " + std::to_string(head.format));
  if (head.bits_version != SOFTFOLD_BITS_VERSION)
    throw Error(Code::state, "a partial file of bits version " + std::to_string(head.bits_version),
                "version " + std::to_string(SOFTFOLD_BITS_VERSION),
                "fold all shards of a row with one version of softfold");
  constexpr std::int64_t most = Partial<float>::kLargestOffset;
  if ((head.digits != 24 && head.digits != 53) || head.chunk != kChunk || head.rows < 1 || head.offset < 0 ||
      head.length < 0 || head.offset > most || head.length > most - head.offset || head.row_length < -1 ||
      head.row_length > most || (head.row_length >= 0 && head.row_length < head.offset + head.length) ||
      !is_scale(head.scale, head.digits))
    refuse_partial("a partial file whose head contradicts itself");
}

PartialHead head_of(const PartialSpan& span) {
  PartialHead head{};
  std::memcpy(head.magic, PartialHead::kMagic, sizeof PartialHead::kMagic);
  head.format = kFormat;
  head.bits_version = SOFTFOLD_BITS_VERSION;
  head.digits = static_cast<std::uint32_t>(span.digits);
  head.chunk = kChunk;
  head.scale = span.scale;
  head.offset = span.offset;
  head.length = span.length;
  head.rows = span.rows;
  head.row_length = span.row_length;
  return head;
}

std::uint64_t bytes_of(const PartialSpan& span) {
  const PartialHead head = head_of(span);
  check_head(head);
  const auto bytes = file_bytes(head);
  if (!bytes) refuse_partial("a partial file of " + std::to_string(span.rows) + " rows, of more than 2^63 bytes");
  return *bytes;
}

std::uint64_t row_memory(const PartialSpan& span) {
  // A vector has up to twice its elements' room; of nodes, four times their bytes in the file. A row's bytes are there
  // too while it is read or written.
  return sizeof(Partial<double>) + 128 + 8 * static_cast<std::uint64_t>(row_bytes(head_of(span)));
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
