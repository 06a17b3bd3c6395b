// The command line as the verbs see it. CLI11 stands behind it, in command.cc and words.cc alone.
#pragma once

#include "softfold/error.hpp"

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace softfold::cli {

/// Tells on standard error what was refused, what is allowed and what to try.
void tell(const Error& error);

/// The whole numbers that an option may be, whatever the arrays.
struct Among {
  std::int64_t least, most = std::numeric_limits<std::int64_t>::max();
};

/// What a refusal says of a number that its type cannot hold, where the type's own range would mislead.
struct Said {
  std::string allowed, fix;
};

/// One verb: what it takes and what it does. The variables named here must live as long as the program.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(app) {}

  /// A positional argument.
  void positional(const std::string& name, std::string& into, const std::string& help, bool required = true);
  /// All positional arguments that are left: at least one.
  void positionals(const std::string& name, std::vector<std::string>& into, const std::string& help);
  /// An option with a value, named as in "-o,--output".
  void option(const std::string& names, std::string& into, const std::string& help);
  void option(const std::string& names, double& into, const std::string& help, const Said& said = {});
  void option(const std::string& names, int& into, const std::string& help, std::optional<Among> among = {});
  void option(const std::string& names, std::int64_t& into, const std::string& help, std::optional<Among> among = {},
              const Said& said = {});
  void option(const std::string& names, std::uint64_t& into, const std::string& help);
  void option(const std::string& names, std::optional<double>& into, const std::string& help);
  void option(const std::string& names, std::optional<int>& into, const std::string& help);
  void option(const std::string& names, std::optional<std::int64_t>& into, const std::string& help,
              std::optional<Among> among = {}, const Said& said = {});
  /// An option without a value.
  void flag(const std::string& names, bool& into, const std::string& help);
  /// A paragraph below the verb's help, above the exit statuses, which every verb's help has.
  void footer(const std::string& text);

 private:
  CLI::App& app_;
};

/// The program: its verbs, its help, and what becomes of errors.
class Program {
 public:
  Program();
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Adds a verb whose options are the members of a T and whose work is `T::run() const`; `T::declare(Command&)` names
  /// them.
  template <class T>
  void add(const std::string& name, const std::string& help, T initial = T()) {
    auto verb = std::make_shared<T>(std::move(initial));
    Command command = add_verb(name, help, [verb] { verb->run(); });
    verb->declare(command);
  }

  /// Reads the arguments, does the work, prints what was refused. Returns the process's exit status: a
  /// softfold::Code.
  int run(int count, char** arguments);

 private:
  Command add_verb(const std::string& name, const std::string& help, std::function<void()> run);
  int attempt(int count, char** arguments);

  std::unique_ptr<CLI::App> app_;
};

}  // namespace softfold::cli
