// softfold state IN PARTIAL
#include "arguments.hpp"
#include "blocks.hpp"
#include "compute.hpp"
#include "folder.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <optional>

namespace softfold::cli {
namespace {

struct StateVerb {
  std::string input, output, range;
  std::int64_t offset = 0;
  std::optional<std::int64_t> row_length;
  double scale = 1;
  InputOptions reading;
  RunOptions running;

  void declare(Command& command) {
    command.positional("IN", input, "a shard of a row, or the same columns of many rows: the last axis is folded");
    command.positional("PARTIAL", output, "the partial file to write, a few kilobytes a row");
    command.option("--offset", offset, "where IN's first element stands in its row; default 0", {},
                   {"a whole number of at least 0, at most 2^53", "--offset 0"});
    command.option("--range", range, "A:B, fold only these elements of IN's last axis");
    command.option("--row-length", row_length, "elements of the whole row, so that a missing shard is noticed", {},
                   {"elements of the whole row, at most 2^53", "leave out --row-length"});
    command.option("--scale", scale, "every element is multiplied by it (1/temperature); default 1");
    reading.declare(command);
    running.declare(command);
    command.footer("Shards may be cut anywhere. Join their partials with `softfold merge`, then `softfold finish`.");
  }

  void run() const;
  void fold(const io::ArrayFile& file, const Range& columns, const io::PartialSpan& span, const Compute& compute,
            io::PartialOutput& to) const;
};

void StateVerb::run() const {
  const io::ArrayFile file = reading.open_floating(input, running.memory_bytes());
  const Geometry g = geometry_of(file.shape(), -1);
  const Range columns = range.empty() ? Range{0, g.n} : parse_range(range, g.n);
  if (g.outer == 0) throw Error(Code::shape, "an array of shape " + text_of(file.shape()), "at least one row");
  constexpr std::int64_t most = Partial<float>::kLargestOffset;
  if (offset < 0 || offset > most - columns.end)
    throw Error(Code::shape, fmt::format("--offset {} and elements up to {} from there", offset, columns.end),
                "an offset of at least 0, and an end of at most 2^53",
                fmt::format("--offset {}", offset < 0 ? 0 : most - columns.end));
  const std::int64_t end = offset + columns.end;
  if (row_length && (*row_length < end || *row_length > most))
    throw Error(Code::option, fmt::format("--row-length {}", *row_length),
                fmt::format("at least {}, where this shard ends, and at most 2^53", end),
                fmt::format("--row-length {}, or without it", end));

  const Compute compute(running);
  // A range of a file without an offset: the file has the whole row.
  const std::int64_t whole = row_length ? *row_length : !range.empty() && offset == 0 ? g.n : -1;
  const io::PartialSpan span{
      file.dtype() == DType::float64 ? 53 : 24, scale, offset + columns.begin, columns.length(), g.outer, whole};
  const Stopwatch watch;
  // Nothing is folded yet, but everything refused: the scale here, a file that cannot be written below.
  const Folder refusing(file.dtype(), scale, span.offset, 0, compute);
  io::PartialOutput to(output, span, {&file.file().id(), 1});
  fold(file, columns, span, compute, to);
  to.commit();

  const double seconds = watch.seconds();
  const auto bytes = static_cast<std::uint64_t>(span.rows * span.length) * size_of(file.dtype());
  if (running.json)
    return print({{"input", input},
                  {"output", output},
                  {"rows", span.rows},
                  {"offset", span.offset},
                  {"length", span.length},
                  {"row_length", span.row_length},
                  {"scale", span.scale},
                  {"digits", span.digits},
                  {"bytes_read", bytes},
                  {"seconds", seconds},
                  {"peak_memory_bytes", peak_memory()}});
  fmt::print("elements {}:{} of {} -> {} ({} read in {:.2f} s)\n", span.offset, span.offset + span.length,
             span.rows == 1 ? "a row" : fmt::format("{} rows", span.rows), printable(output),
             human_bytes(static_cast<double>(bytes)), seconds);
}

void StateVerb::fold(const io::ArrayFile& file, const Range& columns, const io::PartialSpan& span,
                     const Compute& compute, io::PartialOutput& to) const {
  const Geometry g = geometry_of(file.shape(), -1);
  // The shard as an array of its own decides how many rows, or which piece of one, a block has.
  const Geometry shard{g.outer, columns.length(), 1};
  const std::size_t element = size_of(file.dtype());
  const Schedule s = make_schedule(
      shard, {element, bytes_beside(io::row_memory(span), shard.n), compute.room(running.memory_bytes())});
  const Slots slots(s.slots, static_cast<std::size_t>(s.outers * std::min(s.columns, shard.n)) * element);
  const auto pieces =
      column_pieces(columns.begin, columns.end, offset, s.streamed ? s.columns : std::max<std::int64_t>(1, g.n));

  Progress progress(static_cast<std::uint64_t>(shard.elements()) * element);
  for (std::int64_t row = 0; row < g.outer; row += s.outers) {
    const std::int64_t rows = std::min(s.outers, g.outer - row);
    Folder folder(file.dtype(), scale, offset + columns.begin, rows, compute);
    const auto box = [&](std::int64_t i) {
      const auto [begin, end] = pieces[static_cast<std::size_t>(i)];
      return Box{row, rows, begin, end - begin, 0, 1};
    };
    const auto bytes = [&](std::int64_t i) { return static_cast<std::size_t>(box(i).elements()) * element; };
    run_steps(std::ssize(pieces), s.slots,
              {[&](std::int64_t i) {
                 read_box(file, g, box(i), {slots[i], bytes(i)});
               },
               [&](std::int64_t i) {
                 folder.take(slots[i], box(i).columns, box(i).columns);
                 progress.add(bytes(i));
               },
               [](std::int64_t) {}});
    to.write(std::move(folder).release());
  }
  file.file().check_unchanged();
}

}  // namespace

void add_state(Program& program) { program.add<StateVerb>("state", "folds a shard of a row to a small partial file"); }

}  // namespace softfold::cli
