// softfold merge PARTIAL... -o PARTIAL
#include "arguments.hpp"
#include "interrupt.hpp"
#include "partials.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include <fmt/format.h>
#include <algorithm>

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
    // Opened anew for every block: there may be more of them than files may be open.
    std::vector<io::PartialReader> parts;
    std::vector<io::NamedSpan> spans;
    std::vector<io::FileId> ids;
    for (const std::string& name : inputs) {
      const io::InputFile file(name);
      ids.push_back(file.id());
      parts.emplace_back(file);
      spans.push_back({name, parts.back().span()});
    }
    const io::JoinOrder join = io::order_of_join(spans);
    const io::PartialSpan& span = join.joined;
    io::PartialOutput to(output, span, ids);
    for (std::size_t i = 0; i < parts.size(); ++i) check_partials(parts[i], io::InputFile(inputs[i]));
    std::int64_t block = rows_at_once(span);
    for (const io::NamedSpan& part : spans) block = std::min(block, rows_at_once(part.span));
    const auto next = [&](std::size_t i) { return parts[i].read(io::InputFile(inputs[i]), block); };
    for (std::int64_t row = 0; row < span.rows; row += block) {
      check_interrupt();
      io::PartialRows rows = next(join.order[0]);
      for (const std::size_t i : std::span(join.order).subspan(1)) io::join_rows(rows, next(i));
      to.write(rows);
    }
    to.commit();

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
