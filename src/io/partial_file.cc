// A partial file: a fixed head, then each row's tree nodes and raw ends; after the head and after each row the checksum
// of all that came before. How many nodes and numbers a row has follows from the offset and the length alone, so the
// file does not say it and cannot lie about it.
#include "softfold/io/partial_file.hpp"

#include "detail.hpp"
#include "partial_head.hpp"

#include "softfold/float_env.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

/// FNV-1a, 64 bits.
class Checksum {
 public:
  Checksum() = default;
  /// One that goes on where another was.
  explicit Checksum(std::uint64_t value) : hash_(value) {}
  void add(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) hash_ = (hash_ ^ std::to_integer<std::uint64_t>(b)) * 0x100000001B3U;
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325U;
};

class Writer {
 public:
  explicit Writer(std::size_t bytes, Checksum before = {}) : checksum_(before) { bytes_.reserve(bytes); }
  template <class T>
  void put(std::span<const T> values) {
    append(std::as_bytes(values));
  }
  void put_checksum() {
    const std::uint64_t sum = checksum_.value();
    append(std::as_bytes(std::span(&sum, 1)));
  }
  std::vector<std::byte> finish() && { return std::move(bytes_); }
  std::uint64_t checksum() const { return checksum_.value(); }

 private:
  void append(std::span<const std::byte> raw) {
    checksum_.add(raw);
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  }
  std::vector<std::byte> bytes_;
  Checksum checksum_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes, Checksum before = {}) : bytes_(bytes), checksum_(before) {}
  template <class T>
  void take(std::span<T> into) {
    if (into.size_bytes() > bytes_.size()) refuse_partial("a partial file that ends too early");
    if (!into.empty()) std::memcpy(into.data(), bytes_.data(), into.size_bytes());
    checksum_.add(bytes_.first(into.size_bytes()));
    bytes_ = bytes_.subspan(into.size_bytes());
  }
  void check_checksum() {
    const std::uint64_t sum = checksum_.value();
    std::uint64_t stored = 0;
    take(std::span(&stored, 1));
    if (stored != sum) refuse_partial("a damaged partial file: its checksum does not match");
  }
  std::uint64_t checksum() const { return checksum_.value(); }

 private:
  std::span<const std::byte> bytes_;
  Checksum checksum_;
};

/// Every state that a fold can produce over 2^level chunks, in the bits that it has.
template <class T>
bool is_state(const lift::PossibleStates<T>& possible, double m, T d, int level) {
  using R = fold::Real<T>;
  const auto elements = std::ldexp(lift::kChunk, level);
  if (!possible.have(m, static_cast<double>(d), elements)) return false;
  return fold::is_nan(d) ? fold::bits_as<typename R::Bits>(d) == R::kCanonicalNaN : !std::signbit(d);
}

/// Checks the next rows; take(m, d, before, after) has each one's nodes and raw elements.
template <class T, class Take>
void take_rows(const PartialHead& head, Reader& reader, std::int64_t count, const Take& take) {
  const Cut cut = cut_of(head.offset, head.length);
  std::vector<T> raw(static_cast<std::size_t>(cut.head + cut.tail)), d(cut.levels.size());
  std::vector<double> m(d.size());
  const lift::PossibleStates<T> possible(fold::make_scale<T>(head.scale));
  const auto before = std::span<const T>(raw).first(static_cast<std::size_t>(cut.head));
  const auto after = std::span<const T>(raw).subspan(before.size());
  for (std::int64_t r = 0; r < count; ++r) {
    reader.take(std::span(m));
    reader.take(std::span(d));
    reader.take(std::span(raw));
    reader.check_checksum();
    for (std::size_t i = 0; i < m.size(); ++i)
      if (!is_state(possible, m[i], d[i], cut.levels[i])) refuse_partial("a partial file with a state that no row has");
    take(m, d, before, after);
  }
}

template <class T>
std::vector<Partial<T>> parse_rows(const PartialHead& head, Reader& reader, std::int64_t count) {
  const Cut cut = cut_of(head.offset, head.length);
  std::vector<Partial<T>> rows;
  rows.reserve(static_cast<std::size_t>(count));
  take_rows<T>(head, reader, count, [&](const auto& m, const auto& d, auto before, auto after) {
    Partial<T>& row = rows.emplace_back(head.scale, head.offset);
    row.append(before);
    for (std::size_t i = 0; i < m.size(); ++i) row.push_node({m[i], d[i]}, cut.levels[i]);
    row.append(after);
  });
  return rows;
}

void check_rows(const PartialHead& head, Reader& reader, std::int64_t count) {
  const auto nothing = [](const auto&...) {};
  if (head.digits == 24) return take_rows<float>(head, reader, count, nothing);
  take_rows<double>(head, reader, count, nothing);
}

PartialRows parse_rows(const PartialHead& head, Reader& reader, std::int64_t count) {
  if (head.digits == 24) return parse_rows<float>(head, reader, count);
  return parse_rows<double>(head, reader, count);
}

void put_head(Writer& writer, const PartialHead& head) {
  writer.put(std::span(&head, 1));
  writer.put_checksum();
}

template <class T>
void put_rows(Writer& writer, const PartialHead& head, const std::vector<Partial<T>>& rows) {
  std::vector<double> m;
  std::vector<T> d;
  for (const Partial<T>& row : rows) {
    if (row.scale() != head.scale || row.offset() != head.offset || row.length() != head.length ||
        fold::Real<T>::kDigits != static_cast<int>(head.digits))
      throw Error(Code::shape, "rows cut at different places in one partial file", "one cut for all rows");
    m.clear();
    d.clear();
    for (const auto& node : row.nodes()) {
      m.push_back(node.state.m);
      d.push_back(node.state.d);
    }
    writer.put(std::span<const double>(m));
    writer.put(std::span<const T>(d));
    writer.put(row.head());
    writer.put(row.tail());
    writer.put_checksum();
  }
}

void put_rows(Writer& writer, const PartialHead& head, const PartialRows& rows) {
  std::visit([&](const auto& some) { put_rows(writer, head, some); }, rows);
}

/// The head of a partial file of `size` bytes, which begins as one.
PartialHead take_head(Reader& reader, std::uint64_t size) {
  PartialHead head{};
  reader.take(std::span(&head, 1));
  check_head(head);
  reader.check_checksum();
  if (file_bytes(head) != size)
    refuse_partial("a partial file of " + std::to_string(size) + " bytes, which its head contradicts");
  return head;
}

/// As many bytes as a head and its checksum take, if the file has them.
std::vector<std::byte> first_bytes(const InputFile& file) {
  std::vector<std::byte> bytes(std::min<std::uint64_t>(file.size(), kHeadBytes));
  file.read(0, bytes);
  return bytes;
}

bool begins_as_partials(std::span<const std::byte> first) {
  return first.size() >= sizeof PartialHead::kMagic &&
         std::memcmp(first.data(), PartialHead::kMagic, sizeof PartialHead::kMagic) == 0;
}

/// Looks at bytes that were read of the file; a refusal names it, as one of InputFile's does by itself.
template <class Do>
auto naming(const InputFile& file, const Do& look) {
  const FloatEnv environment;
  try {
    return look();
  } catch (const Error& error) {
    throw Error(error.code, in_quotes(file.path()) + ": " + error.got, error.allowed, error.fix);
  }
}

OutputFile create_partials(const std::string& destination, std::uint64_t bytes, std::span<const FileId> inputs) {
  OutputFile output(destination, bytes, inputs);  // says first what no output can be
  const auto refuse_output = [&](const char* what) {
    throw Error(Code::option, "the output " + in_quotes(destination) + ", " + what,
                "a new file, or a partial to replace",
                std::filesystem::path(destination).replace_extension(".part").string());
  };
  if (destination.ends_with(".npy") || destination.ends_with(".safetensors"))
    refuse_output("a name of arrays for a partial file");
  std::error_code none;
  const bool exists = std::filesystem::exists(output.path(), none);
  if (!exists) return output;
  const InputFile before(output.path());
  if (before.size() > 0 && !begins_as_partials(first_bytes(before))) refuse_output("which is there and is no partial");
  return output;
}

}  // namespace

PartialReader::PartialReader(const InputFile& file) {
  const auto first = first_bytes(file);
  naming(file, [&] {
    if (!begins_as_partials(first)) refuse_partial("a file that does not begin as partial files do");
    Reader reader(first);
    const PartialHead head = take_head(reader, file.size());
    span_ = {static_cast<int>(head.digits), head.scale, head.offset, head.length, head.rows, head.row_length};
    checksum_ = reader.checksum();
  });
}

void PartialReader::advance(const InputFile& file, std::int64_t rows, PartialRows* into) {
  const PartialHead head = head_of(span_);
  const std::int64_t count = std::min(rows, left()), row = row_bytes(head);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * row));
  file.read(kHeadBytes + static_cast<std::uint64_t>(done_ * row), bytes);
  naming(file, [&] {
    Reader reader(bytes, Checksum(checksum_));
    if (into != nullptr) {
      *into = parse_rows(head, reader, count);
    } else {
      check_rows(head, reader, count);
    }
    checksum_ = reader.checksum();
    done_ += count;
  });
}

PartialRows PartialReader::read(const InputFile& file, std::int64_t rows) {
  PartialRows next;
  advance(file, rows, &next);
  return next;
}

PartialOutput::PartialOutput(const std::string& destination, const PartialSpan& span, std::span<const FileId> inputs)
    : span_(span), file_(create_partials(destination, bytes_of(span), inputs)) {
  Writer writer(kHeadBytes);
  put_head(writer, head_of(span));
  checksum_ = writer.checksum();
  append(std::move(writer).finish());
}

void PartialOutput::write(const PartialRows& rows) {
  const FloatEnv environment;
  const PartialHead head = head_of(span_);
  const auto count = std::visit([](const auto& some) { return some.size(); }, rows);
  Writer writer(count * static_cast<std::size_t>(row_bytes(head)), Checksum(checksum_));
  put_rows(writer, head, rows);
  checksum_ = writer.checksum();
  append(std::move(writer).finish());
}

void PartialOutput::append(const std::vector<std::byte>& bytes) {
  file_.write(written_, bytes);
  written_ += bytes.size();
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
