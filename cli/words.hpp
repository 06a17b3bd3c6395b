// The words of a command line, looked up before CLI11 reads them.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace CLI {
class App;
}

namespace softfold::cli {

/// What takes any word, as its help shows.
inline constexpr const char* kText = "TEXT";

/// The whole of `text` is a number.
template <class Number>
bool is_number(std::string_view text) {
  Number value{};
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && at == text.data() + text.size();
}

/// Refuses what CLI11 has no good words for: a misspelt verb or option, an option twice, without its value, or with one
/// that it does not take. Throws Error{Code::usage}.
void check_words(const CLI::App& app, int count, char** arguments);

}  // namespace softfold::cli
