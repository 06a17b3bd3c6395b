// softfold merge PARTIAL... -o PARTIAL
#include "arguments.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include "softfold/io/partial_file.hpp"

#include <fmt/format.h>

namespace softfold::cli {
namespace {

struct MergeVerb {
  std::vector<std::string> inputs;
  std::string output;
  bool json = false;

  void declare(Command& command) {
    command.positionals("PARTIAL", inputs, "partial files, in any order");
    command.option("-o,--output", output, "the joined partial file (needed)");
    command.flag("--json", json, "print the summary as JSON");
  }

  void run() const {
    if (output.empty()) throw Error(Code::usage, "merge without -o", "-o PARTIAL, the file to write", "-o joined.part");
    std::vector<io::NamedPartial> parts;
    std::vector<io::FileId> ids;
    for (const std::string& name : inputs) {
      const io::InputFile file(name);
      ids.push_back(file.id());
      parts.push_back({name, io::read_partials(file)});
    }
    const io::PartialFile joined = io::join_partials(std::move(parts));
    io::write_partials(output, joined, ids);

    const io::PartialSpan span = io::span_of(joined);
    const std::int64_t end = span.offset + span.length;
    if (json)
      return print({{"inputs", inputs},
                    {"output", output},
                    {"rows", span.rows},
                    {"offset", span.offset},
                    {"length", span.length},
                    {"row_length", span.row_length},
                    {"scale", span.scale},
                    {"digits", span.digits}});
    fmt::print("{} -> {}: elements {}:{}{} of {}\n", counted(std::ssize(inputs), "partial"), printable(output),
               span.offset, end, span.row_length >= 0 ? fmt::format(" of {}", span.row_length) : "",
               span.rows == 1 ? "a row" : fmt::format("{} rows", span.rows));
  }
};

}  // namespace

void add_merge(Program& program) { program.add<MergeVerb>("merge", "joins partial files, in any order"); }

}  // namespace softfold::cli
