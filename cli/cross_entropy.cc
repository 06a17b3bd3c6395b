// softfold cross-entropy LOGITS TARGETS [LOG_PROBABILITIES]
#include "arguments.hpp"
#include "blocks.hpp"
#include "compute.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "targets.hpp"
#include "verbs.hpp"

#include "softfold/fold/logsumexp.hpp"
#include "softfold/io/array_output.hpp"
#include "softfold/lift/tree.hpp"
#include "softfold/softfold.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace softfold::cli {
namespace {

struct CrossEntropyVerb {
  std::string input, targets, output;
  double scale = 1, label_smoothing = 0, z_loss = 0;
  std::int64_t ignore_index = -100;
  InputOptions reading, target_reading;
  RunOptions running;

  void declare(Command& command) {
    command.positional("LOGITS", input, "an array (..., classes), .npy or .safetensors: the last axis is folded");
    command.positional("TARGETS", targets, "int32 or int64, one a row");
    command.positional("OUT", output, "the rows' log-probabilities of their targets, if wanted", false);
    command.option("--ignore-index", ignore_index, "the target of rows that do not count; default -100");
    command.option("--label-smoothing", label_smoothing, "0 .. 1; default 0");
    command.option("--z-loss", z_loss, "what lse^2 is multiplied by in a row's loss; default 0");
    command.option("--scale", scale, "every logit is multiplied by it (1/temperature); default 1");
    reading.declare(command);
    target_reading.declare(command, "targets", false);
    running.declare(command);
    command.footer("Prints the mean loss, the sum, and the perplexity exp(mean), of the rows that count.");
  }

  void run() const;
  CrossEntropyOptions options() const;
  std::vector<double> losses(const io::ArrayFile& file, const Loaded& classes, const Compute& compute,
                             std::vector<std::byte>& log_probabilities) const;
};

CrossEntropyOptions CrossEntropyVerb::options() const {
  CrossEntropyOptions o;
  o.rows.scale = scale;
  o.reduction = Reduction::none;
  o.ignore_index = ignore_index;
  o.label_smoothing = label_smoothing;
  o.z_loss = z_loss;
  return o;
}

/// Of the losses of all rows, by the canonical tree, as the library adds them.
double sum_of(std::vector<double> losses) {
  using Sum = fold::Sum<double>;
  lift::TreeBuilder<Sum> tree;
  for (std::size_t i = 0; i < losses.size(); i += lift::kChunk)
    tree.push(
        lift::halve<Sum>(losses.data() + i, static_cast<int>(std::min<std::size_t>(lift::kChunk, losses.size() - i))));
  return losses.empty() ? 0. : Sum::merge(tree.root(), 0.);
}

std::vector<double> CrossEntropyVerb::losses(const io::ArrayFile& file, const Loaded& classes, const Compute& compute,
                                             std::vector<std::byte>& log_probabilities) const {
  const Geometry g = geometry_of(file.shape(), -1);
  const std::size_t element = size_of(file.dtype());
  const Schedule s = make_row_schedule({g.rows(), g.n, 1}, {element, 0, compute.room(running.memory_bytes())});
  const Boxes boxes(g, s);
  std::vector<double> all(static_cast<std::size_t>(g.rows()));
  if (boxes.empty()) return all;
  const DType out = file.dtype() == DType::float64 ? DType::float64 : DType::float32;
  log_probabilities.resize(all.size() * size_of(out));
  const Slots slots(s.slots, static_cast<std::size_t>(boxes[0].elements()) * element);
  Progress progress(file.bytes());
  const auto at = [&](std::int64_t i) { return boxes[static_cast<std::size_t>(i)]; };
  const auto bytes = [&](std::int64_t i) { return static_cast<std::size_t>(at(i).elements()) * element; };
  run_steps(std::ssize(boxes), s.slots,
            {[&](std::int64_t i) {
               read_box(file, g, at(i), {slots[i], bytes(i)});
             },
             [&](std::int64_t i) {
               const auto first = static_cast<std::size_t>(at(i).outer);
               const std::int64_t shape[] = {at(i).outers, g.n}, rows[] = {at(i).outers};
               CrossEntropyOptions here = options();
               here.log_probability = View(log_probabilities.data() + first * size_of(out), out, rows);
               const View inputs[] = {
                   View(static_cast<const void*>(slots[i]), file.dtype(), shape),
                   View(static_cast<const void*>(classes.bytes.data() + first * size_of(classes.dtype)), classes.dtype,
                        rows)};
               const View loss(all.data() + first, DType::float64, rows);
               compute.run(Op::cross_entropy, inputs, {&loss, 1}, here);
               progress.add(bytes(i));
             },
             [](std::int64_t) {}});
  file.file().check_unchanged();
  return all;
}

void CrossEntropyVerb::run() const {
  const Compute compute(running);
  const io::ArrayFile file = reading.open_floating(input, running.memory_bytes()),
                      class_file = target_reading.open_whole(targets, running.memory_bytes());
  const Geometry g = geometry_of(file.shape(), -1);
  const std::vector<std::int64_t> rows = rows_of_targets(class_file, file);
  const Loaded classes(class_file);
  check_targets(classes.view(), ignore_index, g.n);
  compute.check_rows(Op::cross_entropy, {{file.dtype(), g.n}, {class_file.dtype()}}, {{DType::float64}}, options());
  std::optional<io::ArrayOutput> result;
  const DType out = file.dtype() == DType::float64 ? DType::float64 : DType::float32;
  if (!output.empty())
    result.emplace(
        io::create_array(output, {"log_probability", out, rows}, std::array{file.file().id(), class_file.file().id()}));

  const Stopwatch watch;
  std::vector<std::byte> log_probabilities;
  const std::vector<double> each = losses(file, classes, compute, log_probabilities);
  const std::int64_t counted = counted_targets(classes.view(), ignore_index);
  const double sum = sum_of(each), mean = counted == 0 ? 0. : sum / static_cast<double>(counted);
  const std::int64_t nan_rows = std::ranges::count_if(each, [](double loss) { return std::isnan(loss); });
  class_file.file().check_unchanged();
  if (result) {
    result->write(0, log_probabilities);
    result->commit();
  }
  if (counted == 0 && g.rows() > 0) note(fmt::format("no row counts: every target is {}", ignore_index));
  if (running.json)
    return print({{"rows", g.rows()},
                  {"counted", counted},
                  {"classes", g.n},
                  {"sum", number(sum)},
                  {"mean", number(mean)},
                  {"perplexity", number(std::exp(mean))},
                  {"nan_rows", nan_rows},
                  {"backend", compute.backend()},
                  {"seconds", watch.seconds()},
                  {"peak_memory_bytes", peak_memory()}});
  fmt::print("cross_entropy of {} {}: {} of {} rows count{}\n", text_of(file.shape()), name_of(file.dtype()), counted,
             g.rows(), output.empty() ? "" : " -> " + printable(output));
  fmt::print("mean {:.9g}   sum {:.9g}   perplexity {:.9g}   ({:.2f} s)\n", mean, sum, std::exp(mean), watch.seconds());
  tell_nan_rows(nan_rows, g.rows());
}

}  // namespace

void add_cross_entropy(Program& program) {
  program.add<CrossEntropyVerb>("cross-entropy", "the loss of logits against target classes");
}

}  // namespace softfold::cli
