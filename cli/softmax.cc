// softfold softmax | log-softmax | logsumexp IN OUT
#include "arguments.hpp"
#include "elements.hpp"
#include "report.hpp"
#include "transform.hpp"
#include "verbs.hpp"

#include <fmt/format.h>
#include <optional>

namespace softfold::cli {
namespace {

struct Softmax {
  explicit Softmax(Op which) : op(which) {}

  Op op;
  std::string input, output, dtype, empty = "zero", rung = "automatic";
  int axis = -1;
  double scale = 1;
  InputOptions reading;
  RunOptions running;

  void declare(Command& command) {
    command.positional("IN", input, "an array, .npy or .safetensors");
    command.positional("OUT", output, "the result: its ending, .npy or .safetensors, decides the format");
    command.option("--axis", axis, "the axis that is folded; negative counts from the end; default -1");
    command.option("--scale", scale, "every element is multiplied by it (1/temperature); default 1");
    command.option("--dtype", dtype, "of the output: float32, float64, float16, bfloat16; default the input's");
    command.option("--empty", empty,
                   op == Op::logsumexp ? "zero or nan, without effect: a row with nothing in it is -inf"
                                       : "what rows with nothing in them become: zero or nan; default zero");
    command.option("--rung", rung, "the algorithm: automatic, naive, safe, online, tiled, fused");
    reading.declare(command);
    running.declare(command);
  }

  /// How it went.
  struct Ran {
    double seconds, commit_seconds;  ///< computing and moving; then making the file durable
    int threads;
    std::optional<std::int64_t> nan_rows;
  };

  void run() const;
  void summarise(const io::ArrayFile& file, const Job& job, const Outline& outline, const Ran& ran) const;
};

void Softmax::run() const {
  const Compute compute(running);
  Job job{op, {}, dtype.empty() ? DType::float32 : parse_dtype(dtype), running.memory_bytes(), compute};
  job.options.axis = axis;
  job.options.scale = scale;
  job.options.empty = parse_empty(empty);
  job.options.rung = parse_rung(rung);
  const io::ArrayFile file = reading.open_floating(input, running.memory_bytes());
  if (dtype.empty()) job.output = file.dtype();
  const Outline outline = outline_of(file, job);

  const Stopwatch watch;
  double worked = 0;
  std::int64_t nan_rows = 0;
  std::vector<std::int64_t> shape(file.shape().begin(), file.shape().end());
  Geometry result = outline.geometry;
  if (op == Op::logsumexp) {
    shape.erase(shape.begin() + (axis < 0 ? axis + std::ssize(shape) : axis));
    result.n = 1;
  }
  const std::string name = reading.tensor.empty() ? std::string(name_of(op)) : reading.tensor;
  io::ArrayOutput out = io::create_array(output, {name, job.output, shape}, {&file.file().id(), 1});
  {
    Progress progress(outline.bytes_read + outline.bytes_written);
    transform(file, job, outline, progress, [&](const Box& box, const std::byte*, const std::byte* y) {
      Box to = box;
      if (op == Op::logsumexp) to.column = 0, to.columns = 1;
      nan_rows += nan_rows_of(to, y, job.output);
      write_box(out, result, to, {y, static_cast<std::size_t>(to.elements()) * size_of(job.output)});
    });
    worked = watch.seconds();
    out.commit();
  }
  note_bfloat16(output, job.output);
  Ran ran{worked, watch.seconds() - worked, compute.threads(), {}};
  if (job.options.rung != Rung::naive) ran.nan_rows = nan_rows;  // there a row may be NaN in part
  summarise(file, job, outline, ran);
}

void Softmax::summarise(const io::ArrayFile& file, const Job& job, const Outline& outline, const Ran& ran) const {
  const auto moved = static_cast<double>(outline.bytes_read + outline.bytes_written);
  if (running.json) {
    return print({{"op", name_of(op)},
                  {"input", input},
                  {"output", output},
                  {"shape", std::vector<std::int64_t>(file.shape().begin(), file.shape().end())},
                  {"dtype", name_of(file.dtype())},
                  {"output_dtype", name_of(job.output)},
                  {"axis", axis},
                  {"scale", scale},
                  {"backend", job.compute.backend()},
                  {"kernel", outline.kernel},
                  {"streamed", outline.schedule.streamed},
                  {"passes", outline.passes},
                  {"nan_rows", ran.nan_rows ? Json(*ran.nan_rows) : Json()},
                  {"threads", ran.threads},
                  {"bytes_read", outline.bytes_read},
                  {"bytes_written", outline.bytes_written},
                  {"seconds", ran.seconds},
                  {"commit_seconds", ran.commit_seconds},
                  {"memory_bytes", job.memory},
                  {"peak_memory_bytes", peak_memory()}});
  }
  fmt::print("{} of {} {} along axis {} -> {} ({})\n", name_of(op), text_of(file.shape()), name_of(file.dtype()), axis,
             printable(output), name_of(job.output));
  fmt::print("{}: {} of the file, {} read and {} written in {:.2f} s, {}/s; to disk {:.2f} s; peak memory {}\n",
             outline.kernel, outline.passes == 1 ? "one pass" : "two passes",
             human_bytes(static_cast<double>(outline.bytes_read)),
             human_bytes(static_cast<double>(outline.bytes_written)), ran.seconds, human_bytes(moved / ran.seconds),
             ran.commit_seconds, human_bytes(static_cast<double>(peak_memory())));
  if (ran.nan_rows) tell_nan_rows(*ran.nan_rows, outline.geometry.rows());
}

}  // namespace

void add_softmax(Program& program) {
  program.add("softmax", "probabilities along an axis", Softmax(Op::softmax));
  program.add("log-softmax", "log-probabilities along an axis", Softmax(Op::log_softmax));
  program.add("logsumexp", "the logarithm of the sum of exponentials along an axis", Softmax(Op::logsumexp));
}

}  // namespace softfold::cli
