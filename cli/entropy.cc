// softfold entropy LOGITS OUT; softfold kl-divergence P Q OUT
#include "arguments.hpp"
#include "blocks.hpp"
#include "compute.hpp"
#include "elements.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include "softfold/io/array_output.hpp"
#include "softfold/plan.hpp"

#include <fmt/format.h>
#include <algorithm>

namespace softfold::cli {
namespace {

/// What one number a row comes from.
struct RowNumbers {
  Op op;
  const std::vector<io::ArrayFile>& files;  ///< the logits, of one shape
  double scale;
  const std::string& output;
  const RunOptions& running;

  void run() const;
  OpOptions options() const;
  void compute_block(const Compute& compute, const Box& box, std::span<std::byte* const> logits, View out) const;
};

OpOptions RowNumbers::options() const {
  RowOptions scaled;
  scaled.scale = scale;
  if (op == Op::entropy) return EntropyOptions{.rows = scaled};
  return KlDivergenceOptions{.rows = scaled};
}

void RowNumbers::compute_block(const Compute& compute, const Box& box, std::span<std::byte* const> logits,
                               View out) const {
  const std::int64_t shape[] = {box.outers, box.columns}, rows[] = {box.outers};
  std::vector<View> inputs;
  for (std::size_t i = 0; i < files.size(); ++i)
    inputs.push_back(View(static_cast<const void*>(logits[i]), files[i].dtype(), shape));
  out.shape = rows;
  compute.run(op, inputs, {&out, 1}, options());
}

void RowNumbers::run() const {
  const Compute compute(running);
  const io::ArrayFile& first = files[0];
  const Geometry g = geometry_of(first.shape(), -1);
  std::size_t element = 0;
  std::uint64_t bytes = 0;
  std::vector<RowsOf> rows;
  for (const io::ArrayFile& file : files) {
    rows.push_back({file.dtype(), g.n});
    element += size_of(file.dtype());
    bytes += file.bytes();
  }
  const DType real = first.dtype() == DType::float64 ? DType::float64 : DType::float32;
  compute.check_rows(op, rows, {{real}}, options());
  // A row's result is held beside its logits: an element's share of it, at most.
  const Schedule s =
      make_row_schedule({g.rows(), g.n, 1}, {element, size_of(real), compute.room(running.memory_bytes())});
  const Boxes boxes(g, s);
  io::ArrayOutput file = io::create_array(
      output, {std::string(name_of(op)), real, {first.shape().begin(), first.shape().end() - 1}}, ids_of(files));
  const Stopwatch watch;
  std::vector<Slots> slots;
  for (const io::ArrayFile& f : files)
    slots.emplace_back(s.slots,
                       (boxes.empty() ? 0 : static_cast<std::size_t>(boxes[0].elements())) * size_of(f.dtype()));
  const Slots results(s.slots, boxes.empty() ? 0 : static_cast<std::size_t>(boxes[0].outers) * size_of(real));
  Progress progress(bytes);
  const auto at = [&](std::int64_t i) { return boxes[static_cast<std::size_t>(i)]; };
  std::int64_t nan_rows = 0;
  run_steps(std::ssize(boxes), s.slots,
            {[&](std::int64_t i) {
               for (std::size_t f = 0; f < files.size(); ++f)
                 read_box(files[f], g, at(i),
                          {slots[f][i], static_cast<std::size_t>(at(i).elements()) * size_of(files[f].dtype())});
             },
             [&](std::int64_t i) {
               if (g.n == 0 && i >= s.slots) return;  // rows of nothing are alike
               std::vector<std::byte*> logits(slots.size());
               std::ranges::transform(slots, logits.begin(), [&](const Slots& of) { return of[i]; });
               compute_block(compute, at(i), logits, View(static_cast<void*>(results[i]), real, {}));
               progress.add(static_cast<std::size_t>(at(i).elements()) * element);
             },
             [&](std::int64_t i) {
               nan_rows += count_nan(results[i], real, at(i).outers);
               file.write(static_cast<std::uint64_t>(at(i).outer) * size_of(real),
                          {results[i], static_cast<std::size_t>(at(i).outers) * size_of(real)});
             }});
  check_unchanged(files);
  file.commit();
  if (running.json)
    return print({{"op", name_of(op)},
                  {"shape", first.shape()},
                  {"rows", g.rows()},
                  {"nan_rows", nan_rows},
                  {"output_dtype", name_of(real)},
                  {"backend", compute.backend()},
                  {"seconds", watch.seconds()},
                  {"peak_memory_bytes", peak_memory()}});
  fmt::print("{} of {} {} -> {} ({}), {:.2f} s\n", name_of(op), text_of(first.shape()), name_of(first.dtype()),
             printable(output), name_of(real), watch.seconds());
  tell_nan_rows(nan_rows, g.rows());
}

/// Refuses float64 beside another dtype, and says which file to convert.
void check_precision(const std::vector<io::ArrayFile>& files) {
  const bool wide[] = {files[0].dtype() == DType::float64, files[1].dtype() == DType::float64};
  if (wide[0] == wide[1]) return;
  const io::ArrayFile &narrow = files[wide[0] ? 1 : 0], &other = files[wide[0] ? 0 : 1];
  const bool widened = narrow.dtype() != DType::bfloat16;  // which NumPy does not have
  throw Error(Code::dtype,
              fmt::format("Q '{}' of {} with P '{}' of {}", files[1].file().path(), name_of(files[1].dtype()),
                          files[0].file().path(), name_of(files[0].dtype())),
              "float64 with float64, or neither of them float64",
              fmt::format("'{}' as {}: x.astype(numpy.{}) in NumPy", (widened ? narrow : other).file().path(),
                          widened ? "float64" : "float32", widened ? "float64" : "float32"));
}

struct EntropyVerb {
  std::string input, output;
  double scale = 1;
  InputOptions reading;
  RunOptions running;

  void declare(Command& command) {
    command.positional("LOGITS", input, "an array (..., n), .npy or .safetensors: the last axis is folded");
    command.positional("OUT", output, "the entropy of each row's softmax, in nats");
    command.option("--scale", scale, "every logit is multiplied by it (1/temperature); default 1");
    reading.declare(command);
    running.declare(command);
  }
  void run() const {
    std::vector<io::ArrayFile> files;
    files.push_back(reading.open_floating(input, running.memory_bytes()));
    RowNumbers{Op::entropy, files, scale, output, running}.run();
  }
};

struct KlDivergenceVerb {
  std::string p, q, output;
  double scale = 1;
  InputOptions p_reading, q_reading;
  RunOptions running;

  void declare(Command& command) {
    command.positional("P", p, "logits (..., n), .npy or .safetensors: the last axis is folded");
    command.positional("Q", q, "logits of the same shape");
    command.positional("OUT", output, "KL(softmax(P) || softmax(Q)) of each row, in nats");
    command.option("--scale", scale, "every logit is multiplied by it (1/temperature); default 1");
    p_reading.declare(command, "p");
    q_reading.declare(command, "q");
    running.declare(command);
  }
  void run() const {
    std::vector<io::ArrayFile> files;
    files.push_back(p_reading.open_floating(p, running.memory_bytes()));
    files.push_back(q_reading.open_floating(q, running.memory_bytes()));
    if (!std::ranges::equal(files[0].shape(), files[1].shape()))
      throw Error(Code::shape, fmt::format("Q of shape {}", text_of(files[1].shape())),
                  fmt::format("that of P: {}", text_of(files[0].shape())), "logits of the same rows and classes");
    check_precision(files);
    RowNumbers{Op::kl_divergence, files, scale, output, running}.run();
  }
};

}  // namespace

void add_entropy(Program& program) {
  program.add<EntropyVerb>("entropy", "the entropy of softmax, a number a row");
  program.add<KlDivergenceVerb>("kl-divergence", "the divergence between two softmaxes, a number a row");
}

}  // namespace softfold::cli
