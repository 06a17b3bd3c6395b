#include "attention_arguments.hpp"

#include "softfold/error.hpp"
#include "softfold/shown.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace softfold::cli {
namespace {

/// An operand that one view of AttentionOptions holds.
struct Operand {
  const char* name;
  std::string AttentionArguments::*text;
  View AttentionOptions::*view;
  std::optional<DType> list;  ///< of numbers among the words; none: a file alone
  const char* help;
};

constexpr Operand kOperands[] = {
    {"--sink", &AttentionArguments::sink, &AttentionOptions::sink, DType::float64,
     "[H]: one more key a head, of this score and of value 0"},
    {"--bias", &AttentionArguments::bias, &AttentionOptions::bias, std::nullopt,
     "broadcasts to (B, H, T, S): added to the scores; -inf hides a key"},
    {"--mask", &AttentionArguments::mask, &AttentionOptions::mask, std::nullopt,
     "bool, broadcasts to (B, H, T, S): true where a key exists"},
    {"--slopes", &AttentionArguments::slopes, &AttentionOptions::slopes, DType::float32,
     "ALiBi: [H] or [B, H]: score -= slope |i + S - T - j|"},
    {"--lengths", &AttentionArguments::lengths, &AttentionOptions::kv_lengths, DType::int64,
     "[B]: only the first keys of each sequence exist"},
    {"--starts", &AttentionArguments::starts, &AttentionOptions::kv_starts, DType::int64,
     "[B]: keys before it do not exist (padding on the left)"},
    {"--index", &AttentionArguments::index, &AttentionOptions::kv_index, DType::int64,
     "[B]: sequence b's keys are K[index[b]] of a cache"},
};

/// The whole of `text` as a number.
template <class Number>
bool parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

/// A list is what begins with a number: a file of such a name is ./3,5.
bool is_list(std::string_view text) {
  double first = 0;
  return parse(text.substr(0, text.find(',')), first);
}

template <class Number>
Loaded list_of(const char* name, const std::string& text, DType dtype) {
  std::vector<Number> numbers;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    if (!parse(rest.substr(0, comma), numbers.emplace_back()))
      throw Error(Code::option, fmt::format("'{}' in {} {}", rest.substr(0, comma), name, text),
                  fmt::format("{} with commas between them, or a file",
                              std::is_integral_v<Number> ? "whole numbers" : "numbers"),
                  fmt::format("{} {}", name, std::is_integral_v<Number> ? "5,3" : "0.5,0.25"));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  Loaded list(dtype, {std::ssize(numbers)});
  std::memcpy(list.bytes.data(), numbers.data(), list.all().size());
  return list;
}

Loaded list_of(const char* name, const std::string& text, DType dtype) {
  if (dtype == DType::int64) return list_of<std::int64_t>(name, text, dtype);
  return dtype == DType::float32 ? list_of<float>(name, text, dtype) : list_of<double>(name, text, dtype);
}

bool is_shape(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789x") == std::string_view::npos;
}

bool is_integer(const View& v) { return v.rank() == 1 && (v.dtype == DType::int32 || v.dtype == DType::int64); }

/// The tokens of the longest sequence. Offsets that do not ascend are refused where a plan is made.
std::int64_t longest(const View& offsets) {
  std::int64_t most = 0;
  if (!is_integer(offsets)) return most;
  for (std::int64_t i = 1; i < offsets.shape[0]; ++i) {
    std::int64_t tokens = 0;
    if (!__builtin_sub_overflow(integer_at(offsets, i), integer_at(offsets, i - 1), &tokens))
      most = std::max(most, tokens);
  }
  return most;
}

}  // namespace

void AttentionArguments::declare(Command& command, const std::string& whose) {
  const auto help = [&](const char* text) { return whose + text; };
  command.option("--layout", layout, help("bhtd (default), or bthd for (B, T, H, D)"));
  command.option("--scale", scale, "of the scores; default 1/sqrt(D)" + std::string(whose.empty() ? "" : ", else 1"));
  command.flag("--causal", causal, "the last query sees all keys, the one before all but the last, ...");
  command.option("--left", left, help("keys that a query sees before its own position; default all"), Among{-1});
  command.option("--right", right, help("keys that it sees behind it; default all"), Among{-1});
  command.option("--softcap", softcap, help("scores become softcap tanh(score / softcap)"));
  for (const Operand& o : kOperands) command.option(o.name, this->*o.text, help(o.help));
  command.option("--q-offsets", q_offsets,
                 help("[B + 1]: packed sequences of (H, total T, D), in bthd (total T, H, D): where each begins"));
  command.option("--kv-offsets", kv_offsets, help("[B + 1]: the same of K and V"));
  command.option("--rung", rung, "the algorithm: automatic, naive, safe, merged, online, tiled, fused");
}

std::string_view AttentionArguments::first_given() const {
  const std::pair<bool, std::string_view> own[] = {
      {!layout.empty(), "--layout"},      {left.has_value(), "--left"},        {right.has_value(), "--right"},
      {softcap.has_value(), "--softcap"}, {!q_offsets.empty(), "--q-offsets"}, {!kv_offsets.empty(), "--kv-offsets"}};
  for (const auto& [given, name] : own)
    if (given) return name;
  for (const Operand& o : kOperands)
    if (!(this->*o.text).empty()) return o.name;
  return {};
}

AttentionOperands::AttentionOperands(const AttentionArguments& a, Fabricated* fabricated) {
  static constexpr std::string_view layouts[] = {"bhtd", "bthd"};
  if (!a.layout.empty()) options.layout = static_cast<Layout>(parse_word(a.layout, "layout", layouts));
  if (a.scale && std::isnan(*a.scale))  // which stands for the default in the library
    throw Error(Code::option, "scale " + detail::shown(*a.scale), "a finite number", "leave out --scale");
  if (a.scale) options.scale = *a.scale;
  options.causal = a.causal;
  options.window = {a.left.value_or(-1), a.right.value_or(-1)};
  const double softcap = a.softcap.value_or(0);
  options.softcap = static_cast<float>(softcap);
  if (softcap != 0 && options.softcap == 0)
    throw Error(Code::option, fmt::format("--softcap {}", softcap), "0 (none), or 8.67e-19 (2^-60) to 1.15e18 (2^60)",
                "--softcap 30");
  options.rung = parse_rung(a.rung, true);
  if (a.q_offsets.empty() != a.kv_offsets.empty())
    throw Error(Code::option,
                a.q_offsets.empty() ? "--kv-offsets without --q-offsets" : "--q-offsets without --kv-offsets",
                "both of them, or neither", "give where each sequence begins in Q, and where in K");
  for (const Operand& o : kOperands)
    if (!(a.*o.text).empty()) options.*o.view = read(o.name, a.*o.text, o.list, o.list ? nullptr : fabricated);
  if (a.q_offsets.empty()) return;
  Varlen packed{read("--q-offsets", a.q_offsets, DType::int64, nullptr),
                read("--kv-offsets", a.kv_offsets, DType::int64, nullptr)};
  packed.max_q = longest(packed.q_offsets);  // a device cannot be asked for them
  packed.max_kv = longest(packed.kv_offsets);
  options.kv = packed;
}

std::int64_t AttentionOperands::cache_size(std::int64_t otherwise) const {
  const View& v = options.kv_index;
  if (!v.given() || !is_integer(v)) return otherwise;
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < v.shape[0]; ++i) most = std::max(most, integer_at(v, i));
  return most < std::numeric_limits<std::int64_t>::max() ? most + 1 : most;
}

void AttentionOperands::move_to(Device device) {
  for (const Operand& o : kOperands) (options.*o.view).device = device;
  auto* packed = std::get_if<Varlen>(&options.kv);
  if (packed != nullptr) packed->q_offsets.device = packed->kv_offsets.device = device;
}

View AttentionOperands::read(const char* name, const std::string& text, std::optional<DType> list,
                             Fabricated* fabricated) {
  if (fabricated != nullptr && is_shape(text))
    return fabricated->add(std::strcmp(name, "--mask") == 0 ? DType::boolean : DType::float32, parse_shape(text));
  if (list && is_list(text)) return arrays_.emplace_back(list_of(name, text, *list)).view();
  return arrays_
      .emplace_back(files.emplace_back(open_operand(text, list == DType::int64 ? Elements::whole : Elements::any)))
      .view();
}

}  // namespace softfold::cli
