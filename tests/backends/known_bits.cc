// The table of known results: known_bits TABLE runs every case of the list and compares its hash with the table's;
// known_bits TABLE PART PARTS only every PARTS-th case from number PART on, so that several can share the list.
// known_bits --write TABLE writes the table anew; that is an API break (SOFTFOLD_BITS_VERSION) unless cases were only
// added. No test framework, so that it can be built for any machine that the library is.
//
// The hash of a case is FNV-1a, 64 bits, over the elements of its outputs in order, little-endian.
#include "own_plan.hpp"

#include "softfold/softfold.hpp"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace {

using namespace softfold_test;

std::uint64_t hash_of(const Case& c) {
  Problem p = c.make();
  const Bound b = bind(p);
  plan_of(b, p.op, p.is_merge()).run();
  return hash_of_outputs(p);
}

std::string hex(std::uint64_t hash) {
  char text[20];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash);
  return text;
}

int write_table(const char* path) {
  std::ofstream out(path);
  out << "# softfold bits version " << softfold::bits_version() << "\n"
      << "# case, FNV-1a/64 of its outputs' elements (tests/backends/known_bits.cc)\n";
  for (const Case& c : cases()) out << c.name << " " << hex(hash_of(c)) << "\n";
  out.close();
  if (!out) std::perror(path);
  return out ? 0 : 1;
}

int compare_with(const char* path, std::size_t part, std::size_t parts) {
  std::ifstream in(path);
  std::map<std::string, std::string> known;
  std::string line, version;
  std::getline(in, version);
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string name, hash;
    if (words >> name >> hash && name != "#") known[name] = hash;
  }
  std::size_t taken = 0;
  int wrong = 0;
  if (version != "# softfold bits version " + std::to_string(softfold::bits_version())) {
    std::printf("the table is for \"%s\", the library for version %d\n", version.c_str(), softfold::bits_version());
    ++wrong;
  }
  for (std::size_t i = 0; i < cases().size(); ++i) {
    const Case& c = cases()[i];
    const std::string expected = known.count(c.name) != 0 ? known[c.name] : "(not in the table)";
    known.erase(c.name);
    if (i % parts != part) continue;
    ++taken;
    const std::string got = hex(hash_of(c));
    if (got == expected) continue;
    std::printf("%s: %s, known %s\n", c.name.c_str(), got.c_str(), expected.c_str());
    ++wrong;
  }
  for (const auto& [name, hash] : known) std::printf("%s: in the table, but no case\n", name.c_str()), ++wrong;
  std::printf("%zu cases, %d differ\n", taken, wrong);
  return wrong == 0 && taken > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::strcmp(argv[1], "--write") == 0) return write_table(argv[2]);
    if (argc == 2) return compare_with(argv[1], 0, 1);
    if (argc == 4) {
      const unsigned long part = std::stoul(argv[2]), parts = std::stoul(argv[3]);
      if (part < parts) return compare_with(argv[1], part, parts);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  std::fprintf(stderr, "usage: known_bits TABLE [PART PARTS] | known_bits --write TABLE\n");
  return 2;
}
