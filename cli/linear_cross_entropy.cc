// softfold linear-cross-entropy X WEIGHT TARGETS
#include "arguments.hpp"
#include "compute.hpp"
#include "interrupt.hpp"
#include "loaded.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "targets.hpp"
#include "verbs.hpp"

#include "softfold/io/array_output.hpp"
#include "softfold/plan.hpp"

#include <fmt/format.h>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>

namespace softfold::cli {
namespace {

LinearMode parse_mode(const std::string& text) {
  constexpr std::array<std::string_view, 2> names{"fast", "lean"};
  return parse_word(text, "mode", names) == 0 ? LinearMode::fast : LinearMode::lean;
}

/// A result of the call and the file that it goes to.
struct LinearResult {
  const std::string& path;
  const char* name;
  View LinearCrossEntropyOptions::*view;
  std::optional<Loaded> array{};
};

struct LinearCrossEntropyVerb {
  std::string input, weight, targets, bias, log_probability, dx, dweight, dbias, mode = "fast";
  double scale = 1, label_smoothing = 0, z_loss = 0, softcap = 0;
  std::int64_t ignore_index = -100;
  InputOptions reading, weight_reading, target_reading;
  RunOptions running;

  void declare(Command& command);
  void run() const;
  std::vector<io::ArrayFile> open() const;
  LinearCrossEntropyOptions options() const;
};

void LinearCrossEntropyVerb::declare(Command& command) {
  command.positional("X", input, "an array (..., features), .npy or .safetensors");
  command.positional("WEIGHT", weight, "(classes, features)");
  command.positional("TARGETS", targets, "int32 or int64, one a row of X");
  command.option("--bias", bias, "FILE or FILE.safetensors:TENSOR, one a class");
  command.option("--softcap", softcap, "logits become C tanh(z / C); default 0, off");
  command.option("--mode", mode, "on a GPU: fast (all logits at once, default) or lean (a block of classes at a time)");
  command.option("--ignore-index", ignore_index, "the target of rows that do not count; default -100");
  command.option("--label-smoothing", label_smoothing, "0 .. 1; default 0");
  command.option("--z-loss", z_loss, "what lse^2 is multiplied by in a row's loss; default 0");
  command.option("--scale", scale, "every logit is multiplied by it (1/temperature); default 1");
  command.option("--log-probability", log_probability, "write the rows' log-probabilities of their targets there");
  command.option("--dx", dx, "write the mean's gradient by X there");
  command.option("--dweight", dweight, "write the mean's gradient by WEIGHT there");
  command.option("--dbias", dbias, "write the mean's gradient by the bias there; with --bias");
  reading.declare(command);
  weight_reading.declare(command, "weight");
  target_reading.declare(command, "targets", false);
  running.declare(command, false);
  command.footer("Prints the mean loss and the perplexity exp(mean) of the rows that count. All arrays are in memory.");
}

LinearCrossEntropyOptions LinearCrossEntropyVerb::options() const {
  LinearCrossEntropyOptions o;
  o.loss.rows.scale = scale;
  o.loss.ignore_index = ignore_index;
  o.loss.label_smoothing = label_smoothing;
  o.loss.z_loss = z_loss;
  o.softcap = softcap;
  o.mode = parse_mode(mode);
  return o;
}

/// X, WEIGHT, TARGETS, and the bias if there is one.
std::vector<io::ArrayFile> LinearCrossEntropyVerb::open() const {
  std::vector<io::ArrayFile> files;
  files.push_back(reading.open_floating(input));
  files.push_back(weight_reading.open_floating(weight));
  files.push_back(target_reading.open_whole(targets));
  if (!bias.empty()) files.push_back(open_operand(bias, Elements::floating));
  return files;
}

void LinearCrossEntropyVerb::run() const {
  LinearCrossEntropyOptions o = options();
  const Compute compute(running);
  require_apart({log_probability, dx, dweight, dbias});
  if (!dbias.empty() && bias.empty()) throw Error(Code::option, "--dbias " + dbias, "with --bias alone", "--bias FILE");
  const std::vector<io::ArrayFile> read = open();
  const std::vector<std::int64_t> rows = rows_of_targets(read[2], read[0]);
  const Loaded x(read[0]), w(read[1]), classes(read[2]);
  std::optional<Loaded> b;
  if (!bias.empty()) o.bias = b.emplace(read[3]).view();
  LinearResult gradients[] = {{dx, "dx", &LinearCrossEntropyOptions::dx},
                              {dweight, "dweight", &LinearCrossEntropyOptions::dweight},
                              {dbias, "dbias", &LinearCrossEntropyOptions::dbias}};
  const Loaded* const like[] = {&x, &w, b ? &*b : nullptr};
  for (std::size_t i = 0; i < std::size(gradients); ++i) {
    LinearResult& g = gradients[i];
    if (g.path.empty()) continue;
    o.*g.view = g.array.emplace(like[i]->dtype, like[i]->shape).view();
  }
  const DType real = x.dtype == DType::float64 ? DType::float64 : DType::float32;
  std::optional<Loaded> log_p;
  if (!log_probability.empty()) o.loss.log_probability = log_p.emplace(real, rows).view();
  double mean = 0;
  const View inputs[] = {x.view(), w.view(), classes.view()}, loss(&mean, DType::float64, {});
  plan(Op::linear_cross_entropy, inputs, {&loss, 1}, o);  // on the host: shapes, dtypes and options, before any file
  check_targets(classes.view(), ignore_index, w.shape[0]);

  std::vector<io::ArrayOutput> files;
  std::vector<const Loaded*> arrays;
  const auto create = [&](const std::string& path, const char* name, const std::optional<Loaded>& from) {
    if (!from) return;
    files.push_back(io::create_array(path, {name, from->dtype, from->shape}, ids_of(read)));
    arrays.push_back(&*from);
  };
  create(log_probability, "log_probability", log_p);
  for (const LinearResult& g : gradients) create(g.path, g.name, g.array);
  const Stopwatch watch;
  const std::string kernel = compute.run(Op::linear_cross_entropy, inputs, {&loss, 1}, o);
  const double seconds = watch.seconds();
  for (std::size_t i = 0; i < files.size(); ++i) files[i].write(0, arrays[i]->all());
  check_unchanged(read);
  check_interrupt();
  commit_all(files);
  for (const LinearResult& g : gradients)
    if (g.array) note_bfloat16(g.path, g.array->dtype);

  const std::int64_t taken = counted_targets(classes.view(), ignore_index);
  if (running.json)
    return print({{"rows", classes.count()},
                  {"counted", taken},
                  {"classes", w.shape[0]},
                  {"mean", number(mean)},
                  {"perplexity", number(std::exp(mean))},
                  {"backend", compute.backend()},
                  {"kernel", kernel},
                  {"seconds", seconds},
                  {"peak_memory_bytes", peak_memory()}});
  fmt::print("linear_cross_entropy of {} by {} {}: {} of {} rows count\n", text_of(x.shape), text_of(w.shape),
             name_of(x.dtype), taken, classes.count());
  fmt::print("mean {:.9g}   perplexity {:.9g}   ({}, {:.2f} s)\n", mean, std::exp(mean), kernel, seconds);
}

}  // namespace

void add_linear_cross_entropy(Program& program) {
  program.add<LinearCrossEntropyVerb>("linear-cross-entropy",
                                      "the loss of X WEIGHT^T against target classes, and its gradients");
}

}  // namespace softfold::cli
