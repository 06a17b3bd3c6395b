// A partial file: a fixed head, then each row's tree nodes and raw ends; after the head and after each row the checksum
// of all that came before. How many nodes and numbers a row has follows from the offset and the length alone, so the
// file does not say it and cannot lie about it.
#include "softfold/io/partial_file.hpp"

#include "detail.hpp"

#include "softfold/float_env.hpp"
#include "softfold/shown.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <tuple>

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

constexpr std::int64_t kChunk = lift::kChunk;
constexpr char kPartialMagic[8] = {'S', 'F', 'P',  'A',
                                   'R', 'T', '\r', '\n'};  // a transfer that changes line ends breaks it
constexpr std::uint32_t kFormat = 1;

struct Head {
  char magic[8];
  std::uint32_t format, bits_version, digits, chunk;
  double scale;
  std::int64_t offset, length, rows, row_length;
};
static_assert(sizeof(Head) == 64);

/// How a partial of these elements is cut: see Partial.
struct Cut {
  std::int64_t head;
  std::vector<int> levels;  ///< of the nodes
  std::int64_t tail;
};

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

/// FNV-1a, 64 bits.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) hash_ = (hash_ ^ std::to_integer<std::uint64_t>(b)) * 0x100000001B3U;
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325U;
};

[[noreturn]] void refuse_partial(const std::string& got) {
  throw Error(Code::file, got, "a partial file as `softfold state` writes it", "run `softfold state` again");
}

/// Bytes of the whole file; nothing where they do not fit into 63 bits.
std::optional<std::uint64_t> file_bytes(const Head& head) {
  const Cut cut = cut_of(head.offset, head.length);
  const std::int64_t element = head.digits == 24 ? 4 : 8;
  const std::int64_t row = (cut.head + cut.tail) * element + std::ssize(cut.levels) * (8 + element) + 8;
  std::int64_t all = 0;
  if (__builtin_mul_overflow(row, head.rows, &all) || __builtin_add_overflow(all, 72, &all)) return std::nullopt;
  return static_cast<std::uint64_t>(all);
}

class Writer {
 public:
  explicit Writer(std::size_t bytes) { bytes_.reserve(bytes); }
  template <class T>
  void put(std::span<const T> values) {
    append(std::as_bytes(values));
  }
  void put_checksum() {
    const std::uint64_t sum = checksum_.value();
    append(std::as_bytes(std::span(&sum, 1)));
  }
  std::vector<std::byte> finish() && { return std::move(bytes_); }

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
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
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

 private:
  std::span<const std::byte> bytes_;
  Checksum checksum_;
};

/// Every state that a fold can produce over 2^level chunks, in the bits that it has.
template <class T>
bool is_state(const lift::PossibleStates<T>& possible, double m, T d, int level) {
  using R = fold::Real<T>;
  const auto elements = static_cast<double>(kChunk << level);
  if (!possible.have(m, static_cast<double>(d), elements)) return false;
  return fold::is_nan(d) ? fold::bits_as<typename R::Bits>(d) == R::kCanonicalNaN : !std::signbit(d);
}

template <class T>
std::vector<Partial<T>> parse_rows(const Head& head, Reader& reader) {
  const Cut cut = cut_of(head.offset, head.length);
  std::vector<T> raw(static_cast<std::size_t>(cut.head + cut.tail)), d(cut.levels.size());
  std::vector<double> m(d.size());
  const lift::PossibleStates<T> possible(fold::make_scale<T>(head.scale));
  const auto before = std::span<const T>(raw).first(static_cast<std::size_t>(cut.head));
  const auto after = std::span<const T>(raw).subspan(before.size());
  std::vector<Partial<T>> rows;
  for (std::int64_t r = 0; r < head.rows; ++r) {
    reader.take(std::span(m));
    reader.take(std::span(d));
    reader.take(std::span(raw));
    reader.check_checksum();
    Partial<T>& row = rows.emplace_back(head.scale, head.offset);
    row.append(before);
    for (std::size_t i = 0; i < m.size(); ++i) {
      if (!is_state(possible, m[i], d[i], cut.levels[i])) refuse_partial("a partial file with a state that no row has");
      row.push_node({m[i], d[i]}, cut.levels[i]);
    }
    row.append(after);
  }
  return rows;
}

bool is_scale(double scale, std::uint32_t digits) {
  return digits == 24 ? fold::make_scale<float>(scale).is_regular() : fold::make_scale<double>(scale).is_regular();
}

void check_head(const Head& head) {
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

Head head_of(const PartialSpan& span) {
  Head head{};
  std::memcpy(head.magic, kPartialMagic, sizeof kPartialMagic);
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

template <class T>
PartialSpan span_of_rows(const std::vector<Partial<T>>& rows, std::int64_t row_length) {
  if (rows.empty()) throw Error(Code::shape, "a partial file of no rows", "at least one row");
  return {fold::Real<T>::kDigits, rows[0].scale(), rows[0].offset(), rows[0].length(), std::ssize(rows), row_length};
}

template <class T>
std::vector<std::byte> format_rows(const std::vector<Partial<T>>& rows, std::int64_t row_length) {
  const PartialSpan span = span_of_rows(rows, row_length);
  const Head head = head_of(span);
  Writer writer(static_cast<std::size_t>(bytes_of(span)));
  writer.put(std::span(&head, 1));
  writer.put_checksum();
  std::vector<double> m;
  std::vector<T> d;
  for (const Partial<T>& row : rows) {
    if (row.scale() != head.scale || row.offset() != head.offset || row.length() != head.length)
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
  return std::move(writer).finish();
}

[[noreturn]] void refuse_join(const std::string& got, const std::string& allowed, const std::string& fix) {
  throw Error(Code::state, got, allowed, fix);
}

/// That `next`, which begins where `first` has come to, belongs to the same rows.
void check_joins(const NamedPartial& first, std::int64_t end, const NamedPartial& next) {
  const PartialSpan a = span_of(first.partial), b = span_of(next.partial);
  const std::string names = in_quotes(first.name) + " and " + in_quotes(next.name);
  if (a.digits != b.digits)
    refuse_join(names + ": one folded in float32, one in float64", "one precision for all shards of a row",
                "convert the shards to one dtype and fold again");
  if (a.scale != b.scale)
    refuse_join(names + ": of scale " + detail::shown(a.scale) + " and " + detail::shown(b.scale),
                "one scale for all shards of a row", "fold them again with one --scale");
  if (a.rows != b.rows)
    refuse_join(names + ": of " + std::to_string(a.rows) + " and " + std::to_string(b.rows) + " rows",
                "the same rows in every shard", "cut along the folded axis only");
  if (a.row_length >= 0 && b.row_length >= 0 && a.row_length != b.row_length)
    refuse_join(names + ": of rows of " + std::to_string(a.row_length) + " and " + std::to_string(b.row_length),
                "shards of one row", "give every shard the same --row-length");
  if (b.offset > end)
    refuse_join(in_quotes(next.name) + ", which begins at element " + std::to_string(b.offset),
                "one that begins at element " + std::to_string(end),
                "add the partial of elements " + std::to_string(end) + ":" + std::to_string(b.offset));
  if (b.offset < end)
    refuse_join(in_quotes(next.name) + ", whose elements from " + std::to_string(b.offset) + " on are there already",
                "one that begins at element " + std::to_string(end),
                "was `softfold state --offset " + std::to_string(end) +
                    "` meant for it? Leave one of the overlapping "
                    "partials out only if both hold the same elements");
}

}  // namespace

PartialSpan span_of(const PartialFile& file) {
  return std::visit([&](const auto& rows) { return span_of_rows(rows, file.row_length); }, file.rows);
}

std::uint64_t bytes_of(const PartialSpan& span) {
  const Head head = head_of(span);
  check_head(head);
  const auto bytes = file_bytes(head);
  if (!bytes) refuse_partial("a partial file of " + std::to_string(span.rows) + " rows, of more than 2^63 bytes");
  return *bytes;
}

std::vector<std::byte> format_partials(const PartialFile& file) {
  const FloatEnv environment;
  return std::visit([&](const auto& rows) { return format_rows(rows, file.row_length); }, file.rows);
}

namespace {

/// The head of a partial file of `size` bytes.
Head take_head(Reader& reader, std::uint64_t size) {
  Head head{};
  reader.take(std::span(&head, 1));
  if (std::memcmp(head.magic, kPartialMagic, sizeof kPartialMagic) != 0)
    refuse_partial("a file that does not begin as partial files do");
  check_head(head);
  reader.check_checksum();
  if (file_bytes(head) != size)
    refuse_partial("a partial file of " + std::to_string(size) + " bytes, which its head contradicts");
  return head;
}

}  // namespace

PartialFile parse_partials(std::span<const std::byte> bytes) {
  const FloatEnv environment;
  Reader reader(bytes);
  const Head head = take_head(reader, bytes.size());
  if (head.digits == 24) return {parse_rows<float>(head, reader), head.row_length};
  return {parse_rows<double>(head, reader), head.row_length};
}

namespace {

/// As many bytes as a head and its checksum take, if the file has them.
std::vector<std::byte> first_bytes(const InputFile& file) {
  std::vector<std::byte> bytes(std::min<std::uint64_t>(file.size(), sizeof(Head) + sizeof(std::uint64_t)));
  file.read(0, bytes);
  return bytes;
}

bool begins_as_partials(std::span<const std::byte> first) {
  return first.size() >= sizeof kPartialMagic && std::memcmp(first.data(), kPartialMagic, sizeof kPartialMagic) == 0;
}

}  // namespace

PartialFile read_partials(const InputFile& file) {
  const FloatEnv environment;
  try {
    // Its head first: a file that lies about itself costs no memory.
    const auto first = first_bytes(file);
    if (!begins_as_partials(first)) refuse_partial("a file that does not begin as partial files do");
    Reader reader(first);
    take_head(reader, file.size());
    std::vector<std::byte> bytes(static_cast<std::size_t>(file.size()));
    file.read(0, bytes);
    return parse_partials(bytes);
  } catch (const Error& error) {
    if (error.code == Code::io) throw;
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

void write_partials(const std::string& destination, const PartialFile& file, std::span<const FileId> inputs) {
  const auto bytes = format_partials(file);
  OutputFile output = create_partials(destination, bytes.size(), inputs);
  output.write(0, bytes);
  output.commit();
}

PartialFile join_partials(std::vector<NamedPartial> parts) {
  if (parts.empty()) throw Error(Code::state, "no partials", "one or more to join");
  // Two that begin at one element overlap unless the first is empty; by name, the advice is about the likelier one.
  std::ranges::stable_sort(parts, {}, [](const NamedPartial& p) {
    const PartialSpan s = span_of(p.partial);
    return std::tuple(s.offset, s.length > 0, p.name);
  });
  const FloatEnv environment;
  NamedPartial& first = parts[0];
  for (NamedPartial& next : std::span(parts).subspan(1)) {
    const PartialSpan so_far = span_of(first.partial);
    check_joins(first, so_far.offset + so_far.length, next);
    std::visit(
        [&](auto& rows) {
          const auto& more = std::get<std::remove_cvref_t<decltype(rows)>>(next.partial.rows);
          for (std::size_t r = 0; r < rows.size(); ++r) rows[r].join(more[r]);
        },
        first.partial.rows);
    first.partial.row_length = std::max(first.partial.row_length, next.partial.row_length);
  }
  const PartialSpan joined = span_of(first.partial);
  if (joined.row_length >= 0 && joined.offset + joined.length > joined.row_length)
    refuse_join("partials up to element " + std::to_string(joined.offset + joined.length),
                "rows of " + std::to_string(joined.row_length), "give every shard the same --row-length");
  return std::move(first.partial);
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
