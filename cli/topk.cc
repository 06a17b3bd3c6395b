// softfold topk IN VALUES INDICES -k K
#include "arguments.hpp"
#include "blocks.hpp"
#include "compute.hpp"
#include "fabricated.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include "softfold/softfold.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <optional>

namespace softfold::cli {
namespace {

struct TopkVerb {
  std::string input, values, indices;
  std::int64_t k = Fabricated::kBest;
  bool probabilities = false;
  std::optional<double> scale;
  InputOptions reading;
  RunOptions running;

  void declare(Command& command) {
    command.positional("IN", input, "an array (..., n), .npy or .safetensors: the last axis is searched");
    command.positional("VALUES", values, "the k largest of each row, best first");
    command.positional("INDICES", indices, "where they stand, int64");
    command.option("-k", k, fmt::format("how many, 0 .. n; default {}", Fabricated::kBest), Among{0});
    command.flag("--probabilities", probabilities, "VALUES are their probabilities in the whole row instead");
    command.option("--scale", scale, "of the probabilities (1/temperature); default 1");
    reading.declare(command);
    running.declare(command);
    command.footer("NaN comes first; of equal elements the one with the lowest index.");
  }

  void run() const;
  void check_k(std::int64_t n) const;
  Needs needs(const Geometry& rows, std::size_t element, const Room& room) const;
};

void TopkVerb::check_k(std::int64_t n) const {
  if (k > n)
    throw Error(Code::option, fmt::format("-k {} of rows of {}", k, counted(n, "element")), fmt::format("0 .. {}", n),
                fmt::format("-k {}", n));
}

/// Of a row the library keeps an entry for each element that may be among its best. Where threads share rows, that is
/// of every part of a row, held beside the row's results; and each thread has those of the row, or part, it is at.
Needs TopkVerb::needs(const Geometry& rows, std::size_t element, const Room& room) const {
  constexpr std::uint64_t entry = 16, part = 1 << 16, spare = 512;
  const auto n = static_cast<std::uint64_t>(std::max<std::int64_t>(1, rows.n)), best = static_cast<std::uint64_t>(k);
  const std::uint64_t kept = std::min(n, (n - 1 + part) / part * std::min(best, part)),
                      looked_at = std::min(n, 2 * best);
  const std::uint64_t row = best * (2 * element + sizeof(std::int64_t)) + kept * entry;
  const auto threads = static_cast<std::uint64_t>(room.threads);
  const std::uint64_t at_work = threads * (std::min(looked_at, part) + spare) +
                                std::min(threads, static_cast<std::uint64_t>(rows.outer)) * looked_at;
  return {element, bytes_beside(row, rows.n), room, at_work * entry};
}

void TopkVerb::run() const {
  const Compute compute(running);
  require_apart({values, indices});
  const io::ArrayFile file = reading.open_floating(input, running.memory_bytes());
  const Geometry g = geometry_of(file.shape(), -1), rows{g.rows(), g.n, 1}, few{g.rows(), k, 1};
  check_k(g.n);
  TopkOptions scaled;
  scaled.rows.scale = scale.value_or(1);
  compute.check_rows(Op::topk, {{file.dtype(), g.n}}, {{file.dtype(), k}, {DType::int64, k}}, scaled);
  if (scale && !probabilities)
    throw Error(Code::option, fmt::format("--scale {} without --probabilities", *scale),
                "--scale with --probabilities alone",
                fmt::format("--scale {} --probabilities, or leave out --scale", *scale));
  const std::size_t element = size_of(file.dtype());
  const Schedule s = make_row_schedule(rows, needs(rows, element, compute.room(running.memory_bytes())));
  std::vector<std::int64_t> shape(file.shape().begin(), file.shape().end());
  shape.back() = k;
  io::ArrayOutput best = io::create_array(values, {"values", file.dtype(), shape}, {&file.file().id(), 1});
  io::ArrayOutput places = io::create_array(indices, {"indices", DType::int64, shape}, {&file.file().id(), 1});
  const Stopwatch watch;
  const Boxes boxes(rows, s);
  const auto taken = [&](std::int64_t i) {
    Box b = boxes[static_cast<std::size_t>(i)];
    b.columns = k;
    return b;
  };
  const auto bytes = [](const Box& b, std::size_t size) { return static_cast<std::size_t>(b.elements()) * size; };
  if (k > 0 && !boxes.empty()) {
    const Slots in(s.slots, bytes(boxes[0], element)), out(s.slots, bytes(taken(0), element));
    const Slots spare(s.slots, bytes(taken(0), element)), at(s.slots, bytes(taken(0), sizeof(std::int64_t)));
    Progress progress(file.bytes());
    run_steps(std::ssize(boxes), s.slots,
              {[&](std::int64_t i) {
                 const Box& b = boxes[static_cast<std::size_t>(i)];
                 read_box(file, rows, b, {in[i], bytes(b, element)});
               },
               [&](std::int64_t i) {
                 const Box b = taken(i);
                 const std::int64_t whole[] = {b.outers, g.n}, part[] = {b.outers, k};
                 TopkOptions options = scaled;
                 const View result(out[i], file.dtype(), part), other(spare[i], file.dtype(), part);
                 if (probabilities) options.probabilities = result;
                 const View from(static_cast<const void*>(in[i]), file.dtype(), whole);
                 const View outputs[] = {probabilities ? other : result, View(at[i], DType::int64, part)};
                 compute.run(Op::topk, {&from, 1}, outputs, options);
                 progress.add(bytes(boxes[static_cast<std::size_t>(i)], element));
               },
               [&](std::int64_t i) {
                 write_box(best, few, taken(i), {out[i], bytes(taken(i), element)});
                 write_box(places, few, taken(i), {at[i], bytes(taken(i), sizeof(std::int64_t))});
               }});
  }
  file.file().check_unchanged();
  io::commit_all(std::array{&best, &places});
  note_bfloat16(values, file.dtype());
  if (running.json)
    return print({{"input", input},
                  {"shape", shape},
                  {"dtype", name_of(file.dtype())},
                  {"backend", compute.backend()},
                  {"seconds", watch.seconds()},
                  {"peak_memory_bytes", peak_memory()}});
  fmt::print("top {} of {} {} -> {}, {} in {:.2f} s\n", k, text_of(file.shape()), name_of(file.dtype()),
             printable(values), printable(indices), watch.seconds());
}

}  // namespace

void add_topk(Program& program) { program.add<TopkVerb>("topk", "the k largest of each row, and where they stand"); }

}  // namespace softfold::cli
