// softfold topk IN VALUES INDICES -k K
#include "arguments.hpp"
#include "blocks.hpp"
#include "compute.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include "softfold/softfold.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>

namespace softfold::cli {
namespace {

struct TopkVerb {
  std::string input, values, indices;
  std::int64_t k = 1;
  bool probabilities = false;
  double scale = 1;
  InputOptions reading;
  RunOptions running;

  void declare(Command& command) {
    command.positional("IN", input, "an array (..., n), .npy or .safetensors: the last axis is searched");
    command.positional("VALUES", values, "the k largest of each row, best first");
    command.positional("INDICES", indices, "where they stand, int64");
    command.option("-k", k, "how many, 0 .. n; default 1");
    command.flag("--probabilities", probabilities, "VALUES are their probabilities in the whole row instead");
    command.option("--scale", scale, "of the probabilities (1/temperature); default 1");
    reading.declare(command);
    running.declare(command);
    command.footer("NaN comes first; of equal elements the one with the lowest index.");
  }

  void run() const;
  void check_k(std::int64_t n) const;
};

void TopkVerb::check_k(std::int64_t n) const {
  if (k < 0 || k > n)
    throw Error(Code::option, fmt::format("-k {} of rows of {}", k, counted(n, "element")), fmt::format("0 .. {}", n),
                fmt::format("-k {}", k < 0 ? std::min<std::int64_t>(1, n) : n));
}

void TopkVerb::run() const {
  const Compute compute(running);
  require_apart({values, indices});
  const io::ArrayFile file = reading.open(input, running.memory_bytes());
  const Geometry g = geometry_of(file.shape(), -1), rows{g.rows(), g.n, 1}, few{g.rows(), k, 1};
  check_k(g.n);
  const std::size_t element = size_of(file.dtype());
  const Schedule s =
      make_row_schedule(rows, {element, 2 * element + sizeof(std::int64_t), compute.room(running.memory_bytes())});
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
                 TopkOptions options;
                 options.rows.scale = scale;
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
  if (running.json)
    return print({{"input", input},
                  {"shape", shape},
                  {"dtype", name_of(file.dtype())},
                  {"backend", compute.backend()},
                  {"seconds", watch.seconds()},
                  {"peak_memory_bytes", peak_memory()}});
  fmt::print("top {} of {} {} -> {}, {} in {:.2f} s\n", k, text_of(file.shape()), name_of(file.dtype()), values,
             indices, watch.seconds());
}

}  // namespace

void add_topk(Program& program) { program.add<TopkVerb>("topk", "the k largest of each row, and where they stand"); }

}  // namespace softfold::cli
