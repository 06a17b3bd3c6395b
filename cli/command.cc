#include "command.hpp"

#include "interrupt.hpp"
#include "report.hpp"
#include "wording.hpp"
#include "words.hpp"

#include "softfold/error.hpp"
#include "softfold/softfold.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace softfold::cli {
namespace {

constexpr const char* kExitCodes =
    "Exit status: 0 done, 1 a defect of softfold, 2 usage, 3 dtype, 4 shape, 5 strides, 6 option,\n"
    "7 not in this build, 8 partials that do not belong together, 9 a file that is missing or lies,\n"
    "10 reading or writing failed, 11 out of memory, 12 device, 13 data, 14 outside the contract\n"
    "(verify, doctor); 130 interrupted. No file is half-written in any case.";

constexpr const char* name_of_code(Code code) {
  constexpr const char* names[] = {"ok",      "internal",      "usage",       "dtype", "shape",
                                   "strides", "option",        "unsupported", "state", "file",
                                   "io",      "out_of_memory", "device",      "data",  "verification"};
  return names[static_cast<int>(code)];
}

bool wants_json(int count, char** arguments) {
  return std::any_of(arguments, arguments + count, [](const char* a) { return std::string_view(a) == "--json"; });
}

/// Words that nothing follows: where they cannot be read there is nobody to throw to, as fmt::print would.
void say_last(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  end_if_pipe_broke();
}

int report(const Error& error, bool json) {
  end_if_pipe_broke();
  std::fflush(stdout);  // what was told so far stands before it, also where both go to one file
  if (json && error.code != Code::verification) {  // there the verb's own object has said it
    print({{"error",
            {{"code", static_cast<int>(error.code)},
             {"name", name_of_code(error.code)},
             {"got", error.got},
             {"allowed", error.allowed},
             {"try", error.fix}}}});
  }
  tell(error);
  return static_cast<int>(error.code);
}

/// `reason`: the system's, empty where it is not known any more.
Error unprintable(const std::string& reason) {
  return Error(Code::io, "a standard output that cannot be written" + (reason.empty() ? "" : ": " + reason),
               "a terminal, pipe or file that takes what is printed",
               "softfold ... > another file; files that the command wrote stand");
}

template <class Number>
bool holds(const std::optional<Among>& among, Number value) {
  if constexpr (std::is_integral_v<Number>)
    return !among || (std::cmp_greater_equal(value, among->least) && std::cmp_less_equal(value, among->most));
  return true;
}

template <class Number>
bool falls_below(const Among& among, Number value) {
  if constexpr (std::is_integral_v<Number>) return std::cmp_less(value, among.least);
  return false;
}

/// What from_chars reads into no unsigned number: '-' and digits.
bool is_negative_whole(std::string_view text) {
  return text.size() > 1 && text[0] == '-' && text.find_first_not_of("0123456789", 1) == std::string_view::npos;
}

/// An option whose value is read here, so that a refusal says what is allowed.
template <class Number, class Into>
void add_number(CLI::App& app, const std::string& names, Into& into, const std::string& help,
                const std::optional<Among>& among = {}, const Said& said = {}) {
  constexpr bool whole = std::is_integral_v<Number>;
  static constexpr const char *kind = whole ? "a whole number" : "a number", *type = whole ? "INT" : "NUMBER";
  const auto read = [names, among, said, &into](const std::string& text) {
    const char* const end = text.data() + text.size();
    Number value{};
    const auto [at, error] = std::from_chars(text.data(), end, value);
    const bool below = std::is_unsigned_v<Number> && is_negative_whole(text);
    const bool fits = (error == std::errc{} && at == end) || (below && text.find_first_not_of("-0") == text.npos);
    if (fits && holds(among, value)) {
      into = value;
      return;
    }
    using Limits = std::numeric_limits<Number>;
    const bool beyond = fits || below || (error == std::errc::result_out_of_range && at == end);
    const bool tiny = beyond && !whole && std::abs(std::strtod(text.c_str(), nullptr)) < 1;
    const bool least = among && (text.starts_with('-') || (fits && falls_below(*among, value)));
    const bool zero = tiny || below || names == "--threads";
    const std::string fix = names + (zero ? " 0" : names == "--axis" ? " -1" : " 1");
    if (!beyond) {
      const bool assigned = text.starts_with('=') && is_number<Number>(std::string_view(text).substr(1));  // -k=2
      throw Error(Code::usage, fmt::format("the value '{}' of {}", text, names), kind,
                  assigned ? fmt::format("{} {}", names, text.substr(1)) : fix);
    }
    if (!said.fix.empty()) throw Error(Code::option, fmt::format("{} {}", names, text), said.allowed, said.fix);
    throw Error(Code::option, fmt::format("{} {}", names, text),
                tiny    ? fmt::format("0, or a number of at least {} in size", Limits::denorm_min())
                : among ? fmt::format("{}, {} .. {}", kind, among->least, among->most)
                        : fmt::format("{}, {} .. {}", kind, Limits::lowest(), Limits::max()),
                least ? fmt::format("{} {}", names, among->least) : fix);
  };
  app.add_option_function<std::string>(names, read, help)->type_name(type);
}

/// What takes less memory, of the options that a verb has and is given.
std::string less_memory(const CLI::App& verb) {
  const CLI::Option* const threads = verb.get_option_no_throw("--threads");
  const bool many = threads != nullptr && !threads->empty();
  const bool bounded = verb.get_option_no_throw("--memory") != nullptr;
  return fmt::format("{}{}", many ? "fewer --threads, or " : "",
                     bounded ? "a smaller --memory" : "smaller arrays: all of them are in memory");
}

/// CLI11's own refusals, in our words: what check_words leaves to it is what stands without an option.
Error refusal_of(const CLI::ParseError& error, const CLI::App& app, const std::string& verb) {
  std::string got = error.what();
  if (const std::size_t at = got.find(" is required"); at != std::string::npos) got = "no " + got.substr(0, at);
  if (const auto extra = app.remaining(true); !extra.empty())
    got = fmt::format("more arguments than it takes: {}", fmt::join(extra, " "));
  return Error(Code::usage, got, "what `softfold " + verb + " --help` shows", "softfold " + verb + " --help");
}

/// `help` and `help VERB` as CLI11 knows them: --help, VERB --help.
std::vector<char*> with_help_as_option(int count, char** arguments) {
  static char help[] = "--help";
  std::vector<char*> words(arguments, arguments + count);
  if (count < 2 || std::string_view(arguments[1]) != "help") return words;
  words.erase(words.begin() + 1);
  words.insert(words.begin() + std::min(count - 1, 2), help);
  return words;
}

}  // namespace

void tell(const Error& error) {
  std::string text =
      fmt::format("softfold: got {}\n     allowed: {}\n", printable(error.got), printable(error.allowed));
  if (!error.fix.empty()) text += fmt::format("         try: {}\n", printable(error.fix));
  say_last(text);
}

void Command::positional(const std::string& name, std::string& into, const std::string& help, bool required) {
  const auto read = [verb = app_.get_name(), name, required, &into](const std::string& text) {
    if (text.empty())
      throw Error(Code::usage, fmt::format("'' for {}", name), "a text that is not empty",
                  required ? fmt::format("softfold {} --help", verb) : "leave out " + name);
    into = text;
  };
  app_.add_option_function<std::string>(name, read, help)->required(required)->type_name(kText);
}
void Command::positionals(const std::string& name, std::vector<std::string>& into, const std::string& help) {
  app_.add_option(name, into, help)->required();
}
void Command::option(const std::string& names, std::string& into, const std::string& help) {
  const auto read = [names, &into](const std::string& text) {
    if (text.empty())  // nothing given is to leave the option out
      throw Error(Code::usage, fmt::format("the value '' of {}", names), "a value", names + " and a value, or neither");
    into = text;
  };
  app_.add_option_function<std::string>(names, read, help)->type_name(kText);
}
void Command::option(const std::string& names, double& into, const std::string& help, const Said& said) {
  add_number<double>(app_, names, into, help, {}, said);
}
void Command::option(const std::string& names, int& into, const std::string& help, std::optional<Among> among) {
  add_number<int>(app_, names, into, help, among);
}
void Command::option(const std::string& names, std::int64_t& into, const std::string& help, std::optional<Among> among,
                     const Said& said) {
  add_number<std::int64_t>(app_, names, into, help, among, said);
}
void Command::option(const std::string& names, std::uint64_t& into, const std::string& help) {
  add_number<std::uint64_t>(app_, names, into, help);
}
void Command::option(const std::string& names, std::optional<double>& into, const std::string& help) {
  add_number<double>(app_, names, into, help);
}
void Command::option(const std::string& names, std::optional<int>& into, const std::string& help) {
  add_number<int>(app_, names, into, help);
}
void Command::option(const std::string& names, std::optional<std::int64_t>& into, const std::string& help,
                     std::optional<Among> among, const Said& said) {
  add_number<std::int64_t>(app_, names, into, help, among, said);
}
void Command::flag(const std::string& names, bool& into, const std::string& help) { app_.add_flag(names, into, help); }
void Command::footer(const std::string& text) { app_.footer(text + "\n\n" + kExitCodes); }

Program::Program()
    : app_(std::make_unique<CLI::App>(
          "softfold: softmax of arrays in .npy and .safetensors files, of any size, with one answer bit for bit.",
          "softfold")) {
  app_->set_version_flag("-V,--version", fmt::format("softfold {} (bits {})", version(), bits_version()));
  app_->footer(kExitCodes);
  app_->require_subcommand(1);
  app_->get_formatter()->column_width(34);
}
Program::~Program() = default;

Command Program::add_verb(const std::string& name, const std::string& help, std::function<void()> run) {
  CLI::App& verb = *app_->add_subcommand(name, help);
  verb.callback(std::move(run));
  return Command(verb);
}

int Program::run(int count, char** arguments) {
  std::vector<char*> words = with_help_as_option(count, arguments);
  const int status = attempt(static_cast<int>(words.size()), words.data());
  errno = 0;
  const bool printed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (printed || status != 0) return status;
  return report(unprintable(errno == 0 ? "" : std::generic_category().message(errno)), false);
}

int Program::attempt(int count, char** arguments) {
  const bool json = wants_json(count, arguments);
  try {
    check_words(*app_, count, arguments);
    if (count < 2) {
      fmt::print("{}", app_->help());
      return static_cast<int>(Code::usage);
    }
    app_->parse(count, arguments);
    return 0;
  } catch (const CLI::Success& help) {  // --help and --version
    std::ostringstream text;
    const int status = app_->exit(help, text);
    std::fputs(text.str().c_str(), stdout);  // whether that went well is asked once
    return status;
  } catch (const CLI::ParseError& error) {
    return report(refusal_of(error, *app_, arguments[1]), json);
  } catch (const Error& error) {
    return report(in_words_of_the_command(error, arguments[1]), json);
  } catch (const Interrupted& interrupted) {
    say_last(fmt::format("softfold: interrupted; {}\n", interrupted.outcome));
    return 130;
  } catch (const std::bad_alloc&) {
    return report(Error(Code::out_of_memory, "more memory than this process may have", "less",
                        less_memory(*app_->get_subcommand(arguments[1]))),
                  json);
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) return report(unprintable(error.code().message()), false);  // fmt could not print
    return report(Error(Code::out_of_memory, error.what(), "a system that gives what is asked for", "--threads 1"),
                  json);
  } catch (const std::exception& error) {
    return report(Error(Code::internal, error.what(), "no such failure", "report it, with the command"), json);
  }
}

}  // namespace softfold::cli
