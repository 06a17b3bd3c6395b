// softfold hash FILE...
#include "arguments.hpp"
#include "blocks.hpp"
#include "interrupt.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include <fmt/format.h>
#include <algorithm>

namespace softfold::cli {
namespace {

struct HashVerb {
  std::vector<std::string> files;
  InputOptions reading;
  bool json = false;

  void declare(Command& command) {
    command.positionals("FILE", files, "arrays, .npy or .safetensors");
    reading.declare(command);
    command.flag("--json", json, "print an object: file to hash");
  }

  void run() const {
    Json hashes = Json::object();
    for (const std::string& name : files) {
      const std::string hash = hash_of(reading.open(name));
      hashes[name] = hash;
      if (!json) fmt::print("{}  {}\n", hash, name);
    }
    if (json) print(hashes);
  }

  /// FNV-1a, 64 bits, over the elements' bytes in order: two arrays of one dtype agree bit for bit, or differ here.
  static std::string hash_of(const io::ArrayFile& file) {
    constexpr std::uint64_t block = std::uint64_t{1} << 20;
    const Buffer buffer(block);
    std::uint64_t hash = 0xCBF29CE484222325U;
    for (std::uint64_t at = 0; at < file.bytes(); at += block) {
      check_interrupt();
      const auto bytes = static_cast<std::size_t>(std::min(block, file.bytes() - at));
      file.read(at, {buffer.data(), bytes});
      for (std::size_t i = 0; i < bytes; ++i)
        hash = (hash ^ std::to_integer<std::uint64_t>(buffer.data()[i])) * 0x100000001B3U;
    }
    return fmt::format("{:016x}", hash);
  }
};

}  // namespace

void add_hash(Program& program) { program.add<HashVerb>("hash", "a hash of an array's elements, to compare bits"); }

}  // namespace softfold::cli
