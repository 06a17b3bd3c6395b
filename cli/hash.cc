// softfold hash FILE...
#include "arguments.hpp"
#include "blocks.hpp"
#include "interrupt.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <optional>

namespace softfold::cli {
namespace {

struct HashVerb {
  std::vector<std::string> files;
  InputOptions reading;
  bool join = false, json = false;

  void declare(Command& command) {
    command.positionals("FILE", files, "arrays, .npy or .safetensors");
    reading.declare(command);
    command.flag("--join", join, "one hash of all files' elements, as if they were one array");
    command.flag("--json", json, "print a list of {file, hash}; with --join an object {files, hash}");
  }

  void run() const {
    // One hash of all, or one list: with a file that cannot be read there is none, which is told before any work.
    if (join || json)
      for (const std::string& name : files) reading.open(name);
    if (join) return tell_joined();
    if (json) return print_list();
    std::optional<Error> refused;
    for (const std::string& name : files) {
      try {
        fmt::print("{}  {}\n", text_of(hash_of(reading.open(name), kEmpty)), printable(name));
      } catch (const Error& error) {
        if (refused) tell(*refused);
        refused = error;
      }
    }
    if (refused) throw *refused;
  }

  void tell_joined() const {
    std::uint64_t hash = kEmpty;
    for (const std::string& name : files) hash = hash_of(reading.open(name), hash);
    if (json) return print({{"files", files}, {"hash", text_of(hash)}});
    fmt::print("{}  {} joined\n", text_of(hash), counted(std::ssize(files), "file"));
  }

  void print_list() const {
    Json hashes = Json::array();
    for (const std::string& name : files)
      hashes.push_back({{"file", name}, {"hash", text_of(hash_of(reading.open(name), kEmpty))}});
    print(hashes);
  }

  static std::string text_of(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

  static constexpr std::uint64_t kEmpty = 0xCBF29CE484222325U;

  /// FNV-1a, 64 bits, over the elements' bytes in order: two arrays of one dtype agree bit for bit, or differ here.
  static std::uint64_t hash_of(const io::ArrayFile& file, std::uint64_t hash) {
    constexpr std::uint64_t block = std::uint64_t{1} << 20;
    const Buffer buffer(block);
    for (std::uint64_t at = 0; at < file.bytes(); at += block) {
      check_interrupt();
      const auto bytes = static_cast<std::size_t>(std::min(block, file.bytes() - at));
      file.read(at, {buffer.data(), bytes});
      for (std::size_t i = 0; i < bytes; ++i)
        hash = (hash ^ std::to_integer<std::uint64_t>(buffer.data()[i])) * 0x100000001B3U;
    }
    return hash;
  }
};

}  // namespace

void add_hash(Program& program) { program.add<HashVerb>("hash", "a hash of an array's elements, to compare bits"); }

}  // namespace softfold::cli
