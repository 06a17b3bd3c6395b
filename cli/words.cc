#include "words.hpp"

#include "arguments.hpp"

#include "softfold/error.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace softfold::cli {
namespace {

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

[[noreturn]] void refuse_word(const std::string& kind, std::string_view word, const std::vector<std::string>& known,
                              const std::string& otherwise) {
  const std::vector<std::string_view> candidates(known.begin(), known.end());
  const std::string_view near = suggestion(word, candidates);
  throw Error(Code::usage, fmt::format("the {} '{}'", kind, word), joined(known),
              near.empty() ? otherwise : std::string(near));
}

/// Where the output is an argument of its own, nothing that looks like -o is meant.
void refuse_output_option(std::string_view verb, const std::string& name) {
  constexpr std::pair<std::string_view, std::string_view> usages[] = {
      {"softmax", "IN OUT"},          {"log-softmax", "IN OUT"},
      {"logsumexp", "IN OUT"},        {"cross-entropy", "LOGITS TARGETS OUT"},
      {"entropy", "LOGITS OUT"},      {"kl-divergence", "P Q OUT"},
      {"topk", "IN VALUES INDICES"},  {"sample", "IN TOKENS"},
      {"attention", "Q K V OUT"},     {"state", "IN PARTIAL"},
      {"finish", "SHARD PARTIAL OUT"}};
  for (const auto& [known, usage] : usages)
    if (verb == known)
      throw Error(Code::usage, fmt::format("the option '{}'", name), "outputs as the last arguments, without option",
                  fmt::format("softfold {} {}", verb, usage));
}

/// A verb that takes the last axis has no --axis, and --as would be the nearest option.
void refuse_axis(std::string_view verb, const std::string& name, const std::vector<std::string>& known) {
  constexpr std::string_view verbs[] = {
      "cross-entropy", "linear-cross-entropy", "entropy", "kl-divergence", "topk", "sample", "state", "finish", "bench",
      "hash"};
  if (std::ranges::find(verbs, verb) == std::end(verbs)) return;
  std::vector<std::string_view> candidates(known.begin(), known.end());
  candidates.push_back("--axis");
  if (suggestion(name, candidates) != candidates.back()) return;
  if (verb == "hash")
    throw Error(Code::usage, fmt::format("the option '{}'", name), "all elements in the file's order, without option",
                "leave it out, or numpy.moveaxis(x, axis, -1) in NumPy for another order");
  throw Error(Code::usage, fmt::format("the option '{}'", name), "the last axis, without option",
              "numpy.moveaxis(x, axis, -1) in NumPy, or leave it out for the last axis");
}

/// What has another name here, or is given as its inverse: with the value, which would not do as it stands.
void refuse_foreign(std::string_view verb, const std::string& name, std::string_view value,
                    const std::vector<std::string>& known) {
  const auto has = [&](std::string_view option) { return std::ranges::find(known, option) != known.end(); };
  const auto refuse = [&](const std::string& fix) {
    throw Error(Code::usage, fmt::format("the option '{}'", name), joined(known), fix);
  };
  if ((name == "--top-k" || name == "--topk" || name == "--k") && has("-k") && !has("--top-k"))
    refuse(fmt::format("-k {}", is_number<std::int64_t>(value) ? value : "1"));
  constexpr std::string_view of_rows[] = {"softmax",       "log-softmax", "logsumexp",
                                          "cross-entropy", "entropy",     "kl-divergence"};
  const bool folds_rows = std::ranges::find(of_rows, verb) != std::end(of_rows);
  std::vector<std::string_view> candidates(known.begin(), known.end());
  candidates.insert(candidates.end(), {"--offsets", "--lengths", "--length", "--mask"});
  const std::string_view meant = suggestion(name, candidates);
  if (folds_rows && (meant == "--offsets" || meant == "--lengths" || meant == "--length"))
    refuse("leave it out: a file's rows have one length; C++, C and Python take lengths and offsets of ragged rows");
  if (folds_rows && verb != "kl-divergence" && meant == "--mask")
    refuse("leave it out: what is -inf in a file counts as hidden; C++, C and Python take a mask");
  const bool scaled = has("--scale") && !has("--temperature") && verb != "attention" && verb != "explain";
  if (!scaled || (name != "--temperature" && name != "--temp")) return;
  double t = 0;
  if (is_number<double>(value)) t = std::strtod(std::string(value).c_str(), nullptr);
  const char* const more = verb == "topk" ? " --probabilities" : "";
  if (t > 0 && std::isfinite(1 / t) && 1 / t > 0) refuse(fmt::format("--scale {}{}", 1 / t, more));
  refuse(fmt::format("--scale 0.5{} for a temperature of 2: its inverse", more));
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands({})) names.push_back(verb->get_name());
  return names;
}

std::vector<std::string> options_of(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    for (const auto& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

/// An option that takes a text would take the next option for one: what is meant to begin so is given with '=', or
/// right behind a short option.
void check_value(const CLI::Option& option, const std::string& name, std::string_view value,
                 const std::vector<std::string>& known) {
  const bool looks_so = value.starts_with("--") || std::ranges::find(known, value) != known.end();
  if (!looks_so || option.get_type_name() != kText) return;
  const std::string glued = fmt::format("{}{}{}", name, name.starts_with("--") ? "=" : "", value);
  throw Error(Code::usage, fmt::format("the option '{}' as the value of {}", value, name),
              fmt::format("a value behind {}", name),
              fmt::format("{} and a value, or {} if that is meant", name, glued));
}

/// Where the value of an option is missing, CLI11 tells of its own types.
[[noreturn]] void refuse_without_value(const CLI::Option& option, std::string_view verb, const std::string& name) {
  const std::string type = option.get_type_name();
  const char* const kind = type == "INT" ? "a whole number" : type == "NUMBER" ? "a number" : "a value";
  throw Error(Code::usage, fmt::format("{} without a value", name), fmt::format("{} behind {}", kind, name),
              fmt::format("{} and its value, which softfold {} --help tells of", name, verb));
}

void check_flag(const std::string& name, std::string_view value) {
  constexpr std::string_view taken[] = {"true", "false", "on", "off", "yes", "no", "1", "0"};
  if (std::ranges::find(taken, value) == std::end(taken))
    throw Error(Code::usage, fmt::format("the value '{}' of {}", value, name), fmt::format("{} without a value", name),
                name);
}

[[noreturn]] void refuse_option(std::string_view verb, std::string_view word, std::string_view next,
                                const std::vector<std::string>& known) {
  const std::size_t equals = word.find('=');
  const std::string name(word.substr(0, equals));
  if (name == "-o" || name == "--out" || name == "--output") refuse_output_option(verb, name);
  refuse_axis(verb, name, known);
  refuse_foreign(verb, name, equals != word.npos ? word.substr(equals + 1) : next, known);
  refuse_word("option", name, known, fmt::format("softfold {} --help", verb));
}

void check_options(const CLI::App& verb, int count, char** arguments) {
  const auto known = options_of(verb);
  const auto is_known = [&](std::string_view name) { return std::ranges::find(known, name) != known.end(); };
  std::vector<const CLI::Option*> given;
  for (int i = 2; i < count; ++i) {
    const std::string_view word = arguments[i];
    if (word == "--") return;
    if (word.size() < 2 || word[0] != '-' || (word[1] >= '0' && word[1] <= '9') || word[1] == '.') continue;
    const bool glued = word.size() > 2 && word[1] != '-' && is_known(word.substr(0, 2));
    const std::size_t equals = glued ? word.npos : word.find('=');
    const std::string name(word.substr(0, glued ? 2 : equals));
    if (!is_known(name)) refuse_option(verb.get_name(), word, i + 1 < count ? arguments[i + 1] : "", known);
    const CLI::Option& option = *verb.get_option_no_throw(name);
    if (option.get_items_expected_max() == 0) {
      if (equals != word.npos) check_flag(name, word.substr(equals + 1));
      continue;
    }
    if (std::ranges::find(given, &option) != given.end())
      throw Error(Code::usage, fmt::format("{} twice", name), "each option once", fmt::format("one {}", name));
    given.push_back(&option);
    if (glued) continue;
    if (equals == word.npos ? i + 1 == count : equals + 1 == word.size())
      refuse_without_value(option, verb.get_name(), name);
    if (equals == word.npos) check_value(option, name, arguments[++i], known);
  }
}

}  // namespace

/// CLI11 says of a misspelt word only that something is missing: every word is looked up here first.
void check_words(const CLI::App& app, int count, char** arguments) {
  if (count < 2) return;
  const std::string_view first = arguments[1];
  if (first.starts_with('-')) {
    const auto known = options_of(app);
    if (std::ranges::find(known, first) == known.end()) refuse_word("option", first, known, "softfold --help");
    return;
  }
  const auto verbs = verbs_of(app);
  if (std::ranges::find(verbs, first) == verbs.end())
    refuse_word("verb", first, verbs, first == "version" ? "softfold --version" : "softfold --help");
  check_options(*app.get_subcommand(std::string(first)), count, arguments);
}

}  // namespace softfold::cli
