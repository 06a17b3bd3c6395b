#include "arguments.hpp"

#include "softfold/io/nearest.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <span>

namespace softfold::cli {
namespace {

template <class Value>
using Names = std::span<const std::pair<std::string_view, Value>>;

/// Looks `text` up; a refusal lists the names and suggests the nearest. `shown` names come first, aliases after.
template <class Value>
Value look_up(const std::string& text, const char* what, Names<Value> names, std::size_t shown,
              Code code = Code::option) {
  std::vector<std::string_view> known;
  for (const auto& [name, value] : names) {
    if (name == text) return value;
    known.push_back(name);
  }
  const std::string_view near = suggestion(text, known);
  throw Error(code, fmt::format("the {} '{}'", what, text),
              fmt::format("{}", fmt::join(std::span(known).first(shown), ", ")),
              std::string(near.empty() ? known[0] : near));
}

/// The whole of `text` as a number, or nothing.
std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

const char* names_of(Elements wanted) {
  if (wanted == Elements::whole) return "int32, int64";
  return wanted == Elements::not_double ? "float32, float16, bfloat16" : "float32, float64, float16, bfloat16";
}

bool has(Elements wanted, DType dtype) {
  if (wanted == Elements::any) return true;
  if (wanted == Elements::whole) return dtype == DType::int32 || dtype == DType::int64;
  return is_floating(dtype) && (wanted == Elements::floating || dtype != DType::float64);
}

/// Refuses other elements than are wanted.
io::ArrayFile only(Elements wanted, io::ArrayFile file) {
  if (has(wanted, file.dtype())) return file;
  throw Error(Code::dtype, fmt::format("'{}': an array of {}", file.file().path(), name_of(file.dtype())),
              names_of(wanted),
              fmt::format("x.astype(numpy.{}) in NumPy", wanted == Elements::whole ? "int64" : "float32"));
}

/// Whether what is suggested is the name of a tensor; of a missing file it is that of another.
bool names_tensor(const Error& error) { return error.code == Code::option && error.fix.starts_with('\''); }

/// A file's refusal, which does not know what is wanted of its elements. as_option: what names them where the file
/// cannot; empty: nothing does.
Error refusal_for(Elements wanted, const Error& error, const std::string& as_option) {
  if (error.code != Code::dtype || !error.got.starts_with('\'')) return error;  // --as itself, not the file
  std::string fix = error.fix;
  if (fix.starts_with("--as ")) {
    if (wanted == Elements::whole)
      fix = "x.astype(numpy.int64) in NumPy";
    else if (as_option.empty())
      fix = "store it as .safetensors, which names its dtype";
    else
      fix.replace(0, 4, as_option);
  }
  if (wanted == Elements::any) return Error(error.code, error.got, error.allowed, fix);
  if (fix.starts_with("x.astype(numpy.")) fix = "x.astype(numpy.float32) in NumPy";  // or int64, if it holds indices
  const std::size_t at = wanted == Elements::whole ? fix.find("float32") : std::string::npos;
  if (at != std::string::npos) fix.replace(at, 7, "int64");
  return Error(error.code, error.got, names_of(wanted), fix);
}

/// Read and taken apart, a .safetensors header takes five times its bytes. Less memory than this is refused later.
constexpr std::uint64_t kHeadersPart = 16, kLeastMemory = std::uint64_t{32} << 20;

/// Bytes of a .safetensors file's header, or 0 where it begins as none does: what that is, opening it says.
std::uint64_t header_bytes(const io::InputFile& file) {
  std::array<std::byte, io::kSafetensorsPreambleBytes + 1> head{};
  if (file.size() < head.size()) return 0;
  file.read(0, head);
  if (head.back() != std::byte{'{'}) return 0;
  const auto preamble = std::span(head).first<io::kSafetensorsPreambleBytes>();
  try {
    return io::safetensors_header_bytes(preamble, file.size());
  } catch (const Error&) {
    return 0;
  }
}

/// Refuses a header that would take more than its part of `memory` (UINT64_MAX: any), before it is read.
void check_header(const std::string& path, std::uint64_t memory) {
  if (memory == UINT64_MAX || path.ends_with(".npy")) return;
  const std::uint64_t header = header_bytes(io::InputFile(path)), most = std::max(memory, kLeastMemory) / kHeadersPart;
  if (header <= most) return;
  throw Error(Code::option, fmt::format("'{}': a header of {} bytes", path, header),
              fmt::format("at most {} bytes: a sixteenth of --memory", most),
              fmt::format("--memory {}M, or fewer tensors in a file", (header * kHeadersPart + (1 << 20) - 1) >> 20));
}

/// float32 for float23, but no narrower or wider type than was meant: not float64 for fp8.
bool same_digits(std::string_view a, std::string_view b) {
  const auto digits = [](std::string_view text) {
    std::string found;
    for (const char c : text)
      if (c >= '0' && c <= '9') found += c;
    std::ranges::sort(found);
    return found;
  };
  return digits(a).empty() || digits(a) == digits(b);
}

}  // namespace

std::string_view suggestion(std::string_view word, std::span<const std::string_view> candidates) {
  constexpr std::pair<std::string_view, std::string_view> elsewhere[] = {{"lse", "logsumexp"},
                                                                         {"gpu", "cuda"},
                                                                         {"hf", "hugging-face"},
                                                                         {"kl", "kl-divergence"},
                                                                         {"kldiv", "kl-divergence"},
                                                                         {"kldiv", "kl_divergence"},
                                                                         {"kl_div", "kl-divergence"},
                                                                         {"--ax", "--axis"},
                                                                         {"--dim", "--axis"},
                                                                         {"--kv-lengths", "--lengths"},
                                                                         {"--seqused-k", "--lengths"},
                                                                         {"--kv-starts", "--starts"},
                                                                         {"--leftpad-k", "--starts"},
                                                                         {"--kv-index", "--index"},
                                                                         {"--cache-batch-idx", "--index"},
                                                                         {"--alibi-slopes", "--slopes"},
                                                                         {"--cu-seqlens-q", "--q-offsets"},
                                                                         {"--cu-seqlens-k", "--kv-offsets"}};
  for (const auto& [there, here] : elsewhere)
    if (word == there && std::ranges::find(candidates, here) != candidates.end()) return here;
  return io::nearest(word, candidates);
}

std::optional<std::int64_t> parse_count(std::string_view text) {
  const int shift = text.ends_with('K') || text.ends_with('k')   ? 10
                    : text.ends_with('M') || text.ends_with('m') ? 20
                                                                 : 0;
  if (shift > 0) text.remove_suffix(1);
  const auto count = whole_number(text);
  if (!count || *count < 0 || *count > INT64_MAX >> shift) return std::nullopt;
  return *count << shift;
}

std::size_t parse_word(const std::string& text, const char* what, std::span<const std::string_view> names) {
  std::vector<std::pair<std::string_view, std::size_t>> indexed;
  for (const std::string_view name : names) indexed.emplace_back(name, indexed.size());
  return look_up<std::size_t>(text, what, indexed, names.size());
}

std::uint64_t parse_bytes(const std::string& text) {
  const auto refuse = [&]() -> std::uint64_t {
    throw Error(Code::option, fmt::format("the size '{}'", text),
                "a whole number of bytes below 2^63, or with K, M, G or T, also KB or KiB, behind it (powers of 1024)",
                "256M");
  };
  std::string_view digits = text;
  for (const std::string_view unit : {"iB", "B"})
    if (digits.ends_with(unit)) digits.remove_suffix(unit.size());
  int shift = 0;
  constexpr std::string_view units = "KMGT";
  if (!digits.empty() && units.find(digits.back()) != std::string_view::npos) {
    shift = 10 * (static_cast<int>(units.find(digits.back())) + 1);
    digits.remove_suffix(1);
  }
  const auto value = whole_number(digits);
  if (!value || *value < 0 || *value > INT64_MAX >> shift) return refuse();
  return static_cast<std::uint64_t>(*value) << shift;
}

std::vector<std::int64_t> parse_shape(const std::string& text) {
  std::vector<std::int64_t> shape;
  std::string_view rest = text;
  for (;;) {
    const std::size_t at = rest.find('x');
    const auto size = whole_number(rest.substr(0, at));
    if (!size || *size < 0)
      throw Error(Code::option, fmt::format("the shape '{}'", text), "sizes >= 0 joined by x", "4096x128256");
    shape.push_back(*size);
    if (at == std::string_view::npos) return shape;
    rest.remove_prefix(at + 1);
  }
}

DType parse_dtype(const std::string& text) {
  static constexpr std::pair<std::string_view, DType> names[] = {
      {"float32", DType::float32},   {"float64", DType::float64}, {"float16", DType::float16},
      {"bfloat16", DType::bfloat16}, {"f32", DType::float32},     {"fp32", DType::float32},
      {"f64", DType::float64},       {"fp64", DType::float64},    {"f16", DType::float16},
      {"fp16", DType::float16},      {"bf16", DType::bfloat16},   {"half", DType::float16}};
  try {
    return look_up<DType>(text, "dtype", names, 4, Code::dtype);
  } catch (const Error& error) {
    if (same_digits(text, error.fix)) throw;
    throw Error(error.code, error.got, error.allowed, "float32, which holds every narrower one");
  }
}

Empty parse_empty(const std::string& text) {
  static constexpr std::pair<std::string_view, Empty> names[] = {{"zero", Empty::zero}, {"nan", Empty::nan}};
  return look_up<Empty>(text, "value of --empty", names, 2);
}

Rung parse_rung(const std::string& text, bool of_attention) {
  static constexpr std::pair<std::string_view, Rung> names[] = {
      {"automatic", Rung::automatic}, {"naive", Rung::naive}, {"safe", Rung::safe},    {"online", Rung::online},
      {"tiled", Rung::tiled},         {"fused", Rung::fused}, {"merged", Rung::merged}};
  const Names<Rung> known = Names<Rung>(names).first(of_attention ? 7 : 6);
  return look_up<Rung>(text, "rung", known, known.size());
}

DeviceKind parse_backend(const std::string& text) {
  static constexpr std::pair<std::string_view, DeviceKind> names[] = {{"cpu", DeviceKind::cpu},
                                                                      {"cuda", DeviceKind::cuda}};
  return look_up<DeviceKind>(text, "backend", names, 2);
}

Op parse_op(const std::string& text, std::span<const Op> among) {
  std::string name = text;
  for (char& c : name)
    if (c == '-') c = '_';
  std::vector<std::pair<std::string_view, Op>> names;
  for (const Op op : among) names.emplace_back(name_of(op), op);
  if (among.empty())
    for (int i = 0; i <= static_cast<int>(kLastOp); ++i)
      names.emplace_back(name_of(static_cast<Op>(i)), static_cast<Op>(i));
  return look_up<Op>(name, "operation", names, names.size());
}

Range parse_range(const std::string& text, std::int64_t length) {
  const std::string_view all = text;
  const std::size_t colon = all.find(':');
  std::optional<std::int64_t> begin, end;
  if (colon != std::string_view::npos) {
    begin = colon == 0 ? 0 : whole_number(all.substr(0, colon));
    end = colon + 1 == all.size() ? length : whole_number(all.substr(colon + 1));
  }
  if (!begin || !end || *begin < 0 || *end > length || *begin > *end)
    throw Error(Code::shape, fmt::format("the range '{}'", text), fmt::format("A:B with 0 <= A <= B <= {}", length),
                fmt::format("0:{}", length));
  return {*begin, *end};
}

std::string text_of(std::span<const std::int64_t> shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "x"));
}

std::string human_bytes(double bytes) {
  constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 999.5 && unit + 1 < std::size(units); bytes /= 1000) ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.3g} {}", bytes, units[unit]);
}

void InputOptions::declare(Command& command, const std::string& prefix, bool may_be_floating) {
  const std::string whose = prefix.empty() ? "the input's" : "the " + prefix + (prefix.ends_with('s') ? "'" : "'s");
  if (!prefix.empty()) tensor_option = "--" + prefix + "-tensor";
  command.option(tensor_option, tensor, whose + " tensor in a .safetensors file (needed where there are several)");
  if (!prefix.empty()) as_option = "--" + prefix + "-as";
  if (may_be_floating) command.option(as_option, as, whose + " dtype, where the file cannot say it: bfloat16 in .npy");
}

io::ArrayFile InputOptions::open(const std::string& path, std::uint64_t memory, Elements wanted) const {
  const auto dtype = as.empty() ? std::nullopt : std::optional(parse_dtype(as));
  check_header(path, memory);
  const auto opened = [&] {
    try {
      return io::open_array(path, tensor, dtype);
    } catch (const Error& error) {
      if (!names_tensor(error)) throw refusal_for(wanted, error, as_option);
      throw Error(error.code, error.got, error.allowed,  // a tensor's name
                  fmt::format("{} {}", tensor_option, error.fix.substr(1, error.fix.size() - 2)));
    }
  };
  return only(wanted, opened());
}

io::ArrayFile open_operand(const std::string& text, Elements wanted) {
  constexpr std::string_view ending = ".safetensors:";
  const std::size_t at = text.find(ending);
  std::error_code unreachable;  // it is refused when it is opened
  const bool plain = at == std::string::npos || std::filesystem::exists(text, unreachable);
  const std::string file = plain ? text : text.substr(0, at + ending.size() - 1);
  const auto opened = [&] {
    try {
      return io::open_array(file, plain ? "" : text.substr(at + ending.size()));
    } catch (const Error& error) {
      if (!names_tensor(error)) throw refusal_for(wanted, error, {});
      throw Error(error.code, error.got, error.allowed,  // a tensor's name
                  fmt::format("{}:{}", file, error.fix.substr(1, error.fix.size() - 2)));
    }
  };
  return only(wanted, opened());
}

void check_unchanged(std::span<const io::ArrayFile> files) {
  for (const io::ArrayFile& file : files) file.file().check_unchanged();
}

std::vector<io::FileId> ids_of(std::span<const io::ArrayFile> files) {
  std::vector<io::FileId> ids;
  for (const io::ArrayFile& file : files) ids.push_back(file.file().id());
  return ids;
}

void declare_threads(Command& command, int& threads) {
  command.option("--threads", threads, "threads that compute; 0: all of the machine", Among{0, kMostThreads});
}

void RunOptions::declare(Command& command, bool with_memory) {
  declare_threads(command, threads);
  if (with_memory) command.option("--memory", memory, "resident memory that may be used, as 256M; default 1G");
  command.option("--backend", backend, "where it is computed: cpu or cuda; default cpu");
  command.flag("--json", json, "print the summary as JSON");
}

void commit_all(std::span<io::ArrayOutput> outputs) {
  std::vector<io::ArrayOutput*> all;
  for (io::ArrayOutput& output : outputs) all.push_back(&output);
  io::commit_all(all);
}

void require_apart(std::initializer_list<std::string_view> outputs) {
  std::vector<std::filesystem::path> seen;
  for (const std::string_view output : outputs) {
    if (output.empty()) continue;
    std::error_code unreachable;  // it is refused when it is opened
    // Absolute first: a relative name of what does not exist yet would stay as it is written.
    const auto path = std::filesystem::weakly_canonical(std::filesystem::absolute(output, unreachable), unreachable);
    if (std::ranges::find(seen, path) != seen.end())
      throw Error(Code::option, fmt::format("{} for two outputs", output), "a file for each", "another name for one");
    seen.push_back(path);
  }
}

Workers::Workers(int threads) : executor_(nullptr) {
  if (threads == 0) {
    executor_ = &default_executor();
  } else if (threads == 1) {
    executor_ = &serial_executor();
  } else {
    owned_ = make_thread_executor(threads);
    executor_ = owned_.get();
  }
}

}  // namespace softfold::cli
