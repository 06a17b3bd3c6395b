// The header of an .npy file: a magic number, a version, a length, and a Python dict literal with three keys.
#include "detail.hpp"
#include "softfold/error.hpp"
#include "softfold/io/header.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

constexpr std::string_view kNpyMagic{"\x93NUMPY", 6};
constexpr std::size_t kMaxNpyHeader = std::size_t{1} << 20;

constexpr std::pair<std::string_view, DType> kDescrs[] = {
    {"<f4", DType::float32}, {"<f8", DType::float64}, {"<f2", DType::float16}, {"|b1", DType::boolean},
    {"<i4", DType::int32},   {"<i8", DType::int64},   {"<V2", DType::bfloat16}};

[[noreturn]] void refuse_npy(std::string got) {
  throw Error(Code::file, std::move(got), "an .npy file as numpy.save writes it", "write it again with numpy.save");
}

[[noreturn]] void refuse_dtype(std::string got, std::string fix) {
  throw Error(Code::dtype, std::move(got), "float32, float64, float16, bfloat16, bool, int32, int64, little-endian",
              std::move(fix));
}

/// What the dict says, before any judgement.
struct Dict {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

/// The subset of Python literals that numpy.save writes for arrays of plain numbers.
class DictParser {
 public:
  explicit DictParser(std::string_view text) : text_(text) {}

  Dict parse() {
    Dict dict;
    std::array<bool, 3> seen{};
    expect('{');
    while (!next_is('}')) {
      const std::string key = string();
      const std::size_t which = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : 3;
      if (which == 3) refuse_npy("an .npy header with the unknown key " + in_quotes(key));
      if (std::exchange(seen[which], true)) refuse_npy("an .npy header with the key " + in_quotes(key) + " twice");
      expect(':');
      if (which == 0) dict.descr = descr();
      if (which == 1) dict.fortran_order = boolean();
      if (which == 2) dict.shape = tuple();
      if (!next_is(',')) break;
      ++at_;
    }
    expect('}');
    skip_space();
    if (at_ != text_.size()) unreadable();
    if (seen != std::array{true, true, true})
      refuse_npy("an .npy header without all of descr, fortran_order and shape");
    return dict;
  }

 private:
  [[noreturn]] void unreadable() const {
    refuse_npy("an .npy header that cannot be read at " + in_quotes(text_.substr(std::min(at_, text_.size()), 24)));
  }
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool next_is(char c) {
    skip_space();
    return at_ < text_.size() && text_[at_] == c;
  }
  void expect(char c) {
    if (!next_is(c)) unreadable();
    ++at_;
  }
  bool take(std::string_view word) {
    skip_space();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  std::string string() {
    if (!next_is('\'') && !next_is('"')) unreadable();
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) unreadable();
    const std::string_view value = text_.substr(at_ + 1, end - at_ - 1);
    if (value.find('\\') != std::string_view::npos) unreadable();
    at_ = end + 1;
    return std::string(value);
  }
  std::string descr() {
    if (next_is('[') || next_is('('))
      refuse_dtype("an .npy file with a structured dtype", "numpy.save of one field: x['field']");
    return string();
  }
  bool boolean() {
    if (take("True")) return true;
    if (take("False")) return false;
    unreadable();
  }
  std::int64_t size() {
    skip_space();
    if (next_is('-')) refuse_npy("an .npy header with a negative size in its shape");
    std::int64_t value = 0;
    const char* const first = text_.data() + at_;
    const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) refuse_npy("an .npy header with a size beyond 2^63 - 1 in its shape");
    if (error != std::errc{} || (*first == '0' && end - first > 1)) unreadable();
    at_ += static_cast<std::size_t>(end - first);
    take("L");  // Python 2's numpy wrote 3L
    return value;
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> sizes;
    bool comma = true;
    expect('(');
    while (!next_is(')')) {
      if (!comma) unreadable();
      sizes.push_back(size());
      comma = next_is(',');
      if (comma) ++at_;
    }
    if (sizes.size() == 1 && !comma) unreadable();  // (3) is a number in Python, not a tuple
    expect(')');
    return sizes;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

DType dtype_of(const std::string& descr, std::optional<DType> as) {
  if (descr == "<V2" || descr == "|V2" || descr == "<u2") {
    if (as == DType::bfloat16) return DType::bfloat16;
    refuse_dtype("an .npy file of dtype " + in_quotes(descr) + ", which may be bfloat16 or any other 2 bytes",
                 "--as bfloat16 if it is, or store it as .safetensors, which names its dtype");
  }
  const auto* const known = std::ranges::find(kDescrs, descr, [](const auto& entry) { return entry.first; });
  if (known != std::end(kDescrs)) {
    if (!as || *as == known->second) return known->second;
    refuse_dtype(
        "an .npy file of dtype " + std::string(name_of(known->second)) + " opened as " + std::string(name_of(*as)),
        "leave the dtype out, or x.astype in NumPy");
  }
  if (descr.size() > 1 && descr[1] == 'c')
    refuse_dtype("an .npy file of complex dtype " + in_quotes(descr), "x.real or numpy.abs(x) in NumPy");
  if (descr.starts_with('>'))
    refuse_dtype("an .npy file of big-endian dtype " + in_quotes(descr),
                 "x.astype(x.dtype.newbyteorder('<')) in NumPy");
  if (descr.starts_with("|O"))
    refuse_dtype("an .npy file of pickled Python objects, which are never loaded", "x.astype(numpy.float32) in NumPy");
  const bool whole = descr.size() > 1 && (descr[1] == 'u' || descr[1] == 'i');
  refuse_dtype("an .npy file of dtype " + in_quotes(descr),
               whole ? "x.astype(numpy.int64) in NumPy, if it holds indices or targets; else numpy.float32"
                     : "x.astype(numpy.float32) in NumPy");
}

/// Fortran order differs from C order only where two axes have more than one element.
bool order_matters(const std::vector<std::int64_t>& shape) {
  return std::ranges::find(shape, 0) == shape.end() &&
         std::ranges::count_if(shape, [](std::int64_t size) { return size > 1; }) > 1;
}

}  // namespace

std::size_t npy_header_bytes(std::span<const std::byte> preamble) {
  const auto byte = [&](std::size_t i) { return std::to_integer<std::size_t>(preamble[i]); };
  const std::string_view text(reinterpret_cast<const char*>(preamble.data()), preamble.size());
  if (!text.starts_with(kNpyMagic)) refuse_npy("a file that does not begin as .npy files do");
  if (preamble.size() < 10) refuse_npy("an .npy file that ends inside its header");
  const std::size_t version = byte(6);
  if (version < 1 || version > 3 || byte(7) != 0)
    refuse_npy("an .npy file of format version " + std::to_string(version) + "." + std::to_string(byte(7)));
  if (version == 1) return 10 + byte(8) + (byte(9) << 8);
  if (preamble.size() < 12) refuse_npy("an .npy file that ends inside its header");
  const std::size_t length = byte(8) + (byte(9) << 8) + (byte(10) << 16) + (byte(11) << 24);
  if (length > kMaxNpyHeader)
    refuse_npy("an .npy header said to have " + std::to_string(length) + " bytes (1 MiB at most)");
  return 12 + length;
}

ArrayHeader parse_npy_header(std::span<const std::byte> head, std::uint64_t file_size, std::optional<DType> as) {
  const std::size_t offset = npy_header_bytes(head.first(std::min(head.size(), kNpyPreambleBytes)));
  if (offset > file_size || offset > head.size()) refuse_npy("an .npy file that ends inside its header");
  const std::size_t start = std::to_integer<int>(head[6]) == 1 ? 10 : 12;
  Dict dict = DictParser({reinterpret_cast<const char*>(head.data()) + start, offset - start}).parse();

  ArrayHeader header;
  header.dtype = dtype_of(dict.descr, as);
  header.shape = std::move(dict.shape);
  header.offset = offset;
  const auto bytes = bytes_of(header.dtype, header.shape);
  if (!bytes)
    refuse_npy("an .npy header with the shape " + in_quotes(text_of(header.shape)) + ", larger than any file");
  header.bytes = *bytes;
  if (header.shape.size() > kMaxRank)
    throw Error(Code::shape, "an array of " + std::to_string(header.shape.size()) + " axes", "at most 8 axes",
                "x.reshape in NumPy, merging neighbouring axes");
  const std::uint64_t present = file_size - offset;
  if (present != header.bytes)
    refuse_npy("an .npy file " + std::string(present < header.bytes ? "cut short: " : "with bytes after its data: ") +
               std::to_string(present) + " bytes of data where its header says " + std::to_string(header.bytes));
  if (dict.fortran_order && order_matters(header.shape))
    throw Error(Code::strides, "an .npy file in Fortran order", "C order", "numpy.save of numpy.ascontiguousarray(x)");
  return header;
}

std::string format_npy_header(DType dtype, std::span<const std::int64_t> shape) {
  constexpr std::size_t kAlign = 64;
  const auto* const descr = std::ranges::find(kDescrs, dtype, [](const auto& entry) { return entry.second; });
  std::string dict = "{'descr': '" + std::string(descr->first) + "', 'fortran_order': False, 'shape': (";
  for (std::size_t i = 0; i < shape.size(); ++i) dict += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  dict += shape.size() == 1 ? ",), }" : "), }";
  // NumPy also leaves room to lengthen the first axis; with at most 8 axes that never changes the length, 128 bytes.
  dict.append(kAlign - (10 + dict.size() + 1) % kAlign, ' ');
  dict += '\n';
  std::string header(kNpyMagic);
  header += {'\x01', '\0', static_cast<char>(dict.size() & 0xff), static_cast<char>(dict.size() >> 8)};
  return header + dict;
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
