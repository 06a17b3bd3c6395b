// softfold verify FILE [RESULT]
#include "arguments.hpp"
#include "elements.hpp"
#include "oracle.hpp"
#include "report.hpp"
#include "tasks.hpp"
#include "transform.hpp"
#include "verbs.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

namespace softfold::cli {
namespace {

/// Elements of a row compared by one task at a time, and read at a time where a row does not fit into memory.
constexpr std::int64_t kSegment = 1 << 13, kRead = 16 * kSegment;

/// Bytes that comparing takes beside the blocks: of each thread a line of x and one of y, and what a row is read into.
std::uint64_t bytes_of_lines(const Geometry& g, DType dtype, int threads) {
  const std::int64_t line = g.inner > 1 ? g.n : std::min(g.n, kSegment), read = g.inner > 1 ? 0 : std::min(g.n, kRead);
  return static_cast<std::uint64_t>(line) * 2 * sizeof(double) * static_cast<std::uint64_t>(threads) +
         static_cast<std::uint64_t>(read) * size_of(dtype);
}

/// A box's elements along the axis as doubles, which hold every dtype's exactly.
std::vector<double> line_of(const std::byte* box, DType dtype, std::int64_t first, std::int64_t stride,
                            std::int64_t count) {
  std::vector<double> line(static_cast<std::size_t>(count));
  with_floating(dtype, [&]<class S>(S) {
    const S* from = reinterpret_cast<const S*>(box) + first;
    for (double& value : line) value = static_cast<double>(fold::widen(*from)), from += stride;
  });
  return line;
}

/// Compares the results of one operation with the truth, box by box.
class Verifier {
 public:
  Verifier(const io::ArrayFile& file, const Geometry& g, Op op, const Precision& p, Executor& executor)
      : file_(file), g_(g), op_(op), precision_(p), executor_(executor) {}

  const Worst& result() const { return result_; }
  const Worst& sum() const { return sum_; }

  void take(const Box& b, const std::byte* x, const std::byte* y) {
    if (b.columns == g_.n && x != nullptr && (g_.n <= kSegment || g_.inner > 1)) return whole_rows(b, x, y);
    const std::int64_t results = op_ == Op::logsumexp ? 1 : b.columns;
    Box row = b;
    row.outers = 1;
    for (std::int64_t i = 0; i < b.outers; ++i, ++row.outer)
      take_row(row, x == nullptr ? x : x + static_cast<std::size_t>(i * b.columns) * size_of(file_.dtype()),
               y + static_cast<std::size_t>(i * results) * size_of(precision_.output));
  }

 private:
  void take_row(const Box& b, const std::byte* x, const std::byte* y) {
    if (row_ != b.outer) {
      row_ = b.outer;
      truth_ = x != nullptr && b.columns == g_.n ? truth_in_memory(x) : truth_in_file(b.outer);
      row_sum_ = 0;
    }
    if (op_ == Op::logsumexp)
      return note(compare_lse(truth_, line_of(y, precision_.output, 0, 1, 1)[0], precision_), b.outer, 0);
    piece(b, x, y);
  }

  std::int64_t flat(std::int64_t outer, std::int64_t column, std::int64_t inner) const {
    return (outer * (op_ == Op::logsumexp ? 1 : g_.n) + column) * g_.inner + inner;
  }
  void note(Worst w, std::int64_t outer, std::int64_t inner) {
    w.index = flat(outer, w.index, inner);
    result_.take(w);
  }
  void note_sum(Worst w, std::int64_t outer, std::int64_t inner) {
    w.index = flat(outer, 0, inner);
    sum_.take(w);
  }

  /// Short rows: each task takes some of them from the truth to the comparison.
  void whole_rows(const Box& b, const std::byte* x, const std::byte* y) {
    const std::int64_t rows = b.outers * b.inners,
                       batch = std::max<std::int64_t>(1, kSegment / std::max<std::int64_t>(1, g_.n));
    std::mutex mutex;
    run_tasks(executor_, (rows + batch - 1) / batch, [&](std::int64_t task) {
      for (std::int64_t r = task * batch; r < std::min(rows, (task + 1) * batch); ++r) {
        const std::int64_t o = r / b.inners, i = r % b.inners, first = o * g_.n * b.inners + i;
        const auto xs = line_of(x, file_.dtype(), first, b.inners, g_.n);
        const Truth truth = truth_of(xs, precision_);
        const bool one = op_ == Op::logsumexp;
        const auto ys = line_of(y, precision_.output, one ? r : first, b.inners, one ? 1 : g_.n);
        const Worst worst = one ? compare_lse(truth, ys[0], precision_) : compare(op_, truth, xs, ys, 0, precision_);
        long double sum = 0;
        for (const double v : ys) sum += v;
        if (worst.index < 0) continue;  // a row of no elements has a logsumexp and nothing else
        const std::lock_guard lock(mutex);
        note(worst, b.outer + o, b.inner + i);
        if (op_ == Op::softmax) note_sum(compare_sum(truth, sum, precision_), b.outer + o, b.inner + i);
      }
    });
  }

  /// A long row, or a part of one: the tasks share it.
  void piece(const Box& b, const std::byte* x, const std::byte* y) {
    struct Part {
      Worst worst;
      long double sum = 0;
    };
    std::vector<Part> parts(static_cast<std::size_t>((b.columns + kSegment - 1) / kSegment));
    run_tasks(executor_, std::ssize(parts), [&](std::int64_t task) {
      const std::int64_t first = task * kSegment, count = std::min(kSegment, b.columns - first);
      const auto xs = line_of(x, file_.dtype(), first, 1, count), ys = line_of(y, precision_.output, first, 1, count);
      Part& part = parts[static_cast<std::size_t>(task)];
      part.worst = compare(op_, truth_, xs, ys, b.column + first, precision_);
      for (const double v : ys) part.sum += v;
    });
    for (const Part& part : parts) {
      note(part.worst, b.outer, 0);
      row_sum_ += part.sum;
    }
    if (op_ == Op::softmax && b.column + b.columns == g_.n)
      note_sum(compare_sum(truth_, row_sum_, precision_), b.outer, 0);
  }

  Truth truth_of_piece(const std::byte* x, std::int64_t count) {
    std::vector<Truth> parts(static_cast<std::size_t>((count + kSegment - 1) / kSegment));
    run_tasks(executor_, std::ssize(parts), [&](std::int64_t task) {
      const std::int64_t first = task * kSegment;
      const auto xs = line_of(x, file_.dtype(), first, 1, std::min(kSegment, count - first));
      parts[static_cast<std::size_t>(task)] = truth_of(xs, precision_);
    });
    Truth all;
    for (const Truth& part : parts) all = join(all, part, precision_);
    return all;
  }
  Truth truth_in_memory(const std::byte* x) { return truth_of_piece(x, g_.n); }
  Truth truth_in_file(std::int64_t row) {
    const std::size_t element = size_of(file_.dtype());
    const Buffer buffer(kRead * element);
    Truth all;
    for (const auto& [begin, end] : column_pieces(0, g_.n, 0, kRead)) {
      read_box(file_, g_, {row, 1, begin, end - begin, 0, 1},
               {buffer.data(), static_cast<std::size_t>(end - begin) * element});
      all = join(all, truth_of_piece(buffer.data(), end - begin), precision_);
    }
    return all;
  }

  const io::ArrayFile& file_;
  Geometry g_;
  Op op_;
  Precision precision_;
  Executor& executor_;
  Worst result_, sum_;
  std::int64_t row_ = -1;  ///< whose truth is at hand
  Truth truth_;
  long double row_sum_ = 0;
};

/// Hands a RESULT that lies in a file to `take`, in the boxes of the outline.
void read_result(const io::ArrayFile& file, const io::ArrayFile& result, const Job& job, const Outline& o,
                 Progress& progress, const Consume& take) {
  const bool one = job.op == Op::logsumexp, streamed_lse = one && o.schedule.streamed;
  const Geometry rows{o.geometry.outer, one ? 1 : o.geometry.n, o.geometry.inner};
  Geometry cut = o.geometry;
  if (streamed_lse) cut.n = 0;  // the truth comes from the file, a row at a time
  const Boxes boxes(cut, o.schedule);
  if (boxes.empty()) return;
  const auto elements = static_cast<std::size_t>(boxes[0].elements());
  const auto results = one ? static_cast<std::size_t>(boxes[0].outers * boxes[0].inners) : elements;
  const Buffer x(elements * size_of(file.dtype())), y(results * size_of(job.output));
  const auto bytes = [](const Box& b, DType t) { return static_cast<std::size_t>(b.elements()) * size_of(t); };
  run_steps(std::ssize(boxes), 1,
            {[&](std::int64_t i) {
               const Box& b = boxes[static_cast<std::size_t>(i)];
               if (!streamed_lse) read_box(file, o.geometry, b, {x.data(), bytes(b, file.dtype())});
               Box from = b;
               if (one) from.column = 0, from.columns = 1;
               read_box(result, rows, from, {y.data(), bytes(from, job.output)});
             },
             [&](std::int64_t i) {
               const Box& b = boxes[static_cast<std::size_t>(i)];
               take(b, streamed_lse ? nullptr : x.data(), y.data());
               progress.add(bytes(b, file.dtype()));
             },
             [](std::int64_t) {}});
  file.file().check_unchanged();
  result.file().check_unchanged();
}

struct VerifyVerb {
  std::string input, result, op, dtype, empty = "zero", rung = "automatic";
  int axis = -1;
  double scale = 1;
  InputOptions reading, result_reading;
  RunOptions running;

  void declare(Command& command) {
    command.positional("FILE", input, "an array, .npy or .safetensors");
    command.positional("RESULT", result, "a result to check instead of softfold's own", false);
    command.option("--op", op, "softmax, log-softmax or logsumexp; default all three, for RESULT softmax");
    command.option("--axis", axis, "the axis that is folded; default -1");
    command.option("--scale", scale, "every element is multiplied by it (1/temperature); default 1");
    command.option("--dtype", dtype, "of the output; default the input's");
    command.option("--empty", empty,
                   "what rows with nothing in them become: zero or nan; default zero; of logsumexp -inf");
    command.option("--rung", rung, "the algorithm: automatic, naive, safe, online, tiled, fused");
    reading.declare(command);
    result_reading.declare(command, "result");
    running.declare(command);
    command.footer(
        "The exact results come from sums in double (long double for float64), compensated.\n"
        "The bounds are the contract's: docs/accuracy.md. Exit status 14 if one is passed.");
  }

  struct Check {
    std::string name;
    Worst worst;
    std::vector<std::int64_t> shape;  ///< that worst.index counts in
  };

  void run() const;
  void refuse_what_reads_no_result() const;
  void refuse_operation_as_file() const;
  std::vector<Op> operations() const;
  void verify(Op which, const io::ArrayFile& file, const std::optional<io::ArrayFile>& given, const Compute& compute,
              std::vector<Check>& checks) const;
  void tell(const io::ArrayFile& file, DType output, const std::vector<Check>& checks) const;
};

std::vector<Op> VerifyVerb::operations() const {
  const std::vector all{Op::softmax, Op::log_softmax, Op::logsumexp};
  if (op.empty()) return result.empty() ? all : std::vector{Op::softmax};
  return {parse_op(op, all)};
}

std::vector<std::int64_t> unravel(std::int64_t index, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> at(shape.size());
  for (std::size_t i = shape.size(); i-- > 0; index /= shape[i]) at[i] = index % shape[i];
  return at;
}

std::string place(const Worst& worst, const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(unravel(worst.index, shape), ", "));
}

void VerifyVerb::verify(Op which, const io::ArrayFile& file, const std::optional<io::ArrayFile>& given,
                        const Compute& compute, std::vector<Check>& checks) const {
  Job job{
      which,   {},  given ? given->dtype() : dtype.empty() ? file.dtype() : parse_dtype(dtype), running.memory_bytes(),
      compute, true};
  job.options.axis = axis;
  job.options.scale = scale;
  job.options.empty = parse_empty(empty);
  job.options.rung = parse_rung(rung);
  job.beside = bytes_of_lines(geometry_of(file.shape(), axis), file.dtype(), compute.threads());
  Outline outline = outline_of(file, job);
  if (Geometry& g = outline.geometry; !given && g.n == 0)  // such rows are all alike: one tells of all
    g.outer = std::min<std::int64_t>(1, g.outer), g.inner = std::min<std::int64_t>(1, g.inner);
  std::vector<std::int64_t> shape(file.shape().begin(), file.shape().end());
  if (which == Op::logsumexp) shape.erase(shape.begin() + (axis < 0 ? axis + std::ssize(shape) : axis));
  if (given && !std::ranges::equal(given->shape(), shape))
    throw Error(Code::shape, fmt::format("a RESULT of shape {}", text_of(given->shape())),
                fmt::format("{} of shape {}", name_of(which), text_of(shape)), "name what RESULT is with --op");

  const Precision precision{file.dtype() == DType::float64, job.output, scale, job.options.empty};
  Verifier verifier(file, outline.geometry, which, precision, compute.executor());
  const Consume take = [&](const Box& b, const std::byte* x, const std::byte* y) { verifier.take(b, x, y); };
  Progress progress(outline.bytes_read + outline.bytes_written);
  if (given) {
    read_result(file, *given, job, outline, progress, take);
  } else {
    transform(file, job, outline, progress, take);
  }
  checks.push_back({std::string(name_of(which)), verifier.result(), shape});
  if (which == Op::softmax) checks.push_back({"sum of softmax", verifier.sum(), shape});
}

void VerifyVerb::refuse_what_reads_no_result() const {
  if (!result.empty()) return;
  for (const auto& [given, name] : {std::pair{!result_reading.as.empty(), result_reading.as_option},
                                    {!result_reading.tensor.empty(), result_reading.tensor_option}})
    if (given)
      throw Error(Code::option, fmt::format("{} without a RESULT", name), "it says how RESULT is read",
                  fmt::format("softfold verify FILE RESULT {} ...", name));
}

/// `softfold verify softmax x.npy`, as one runs `bench`.
void VerifyVerb::refuse_operation_as_file() const {
  constexpr std::string_view names[] = {"softmax", "log-softmax", "log_softmax", "logsumexp"};
  if (result.empty() || std::ranges::find(names, input) == std::end(names) || std::filesystem::exists(input)) return;
  throw Error(Code::usage, fmt::format("the operation '{}' before the file", input), "FILE, then what is asked of it",
              fmt::format("softfold verify {} --op {}", result, input));
}

void VerifyVerb::run() const {
  const std::vector<Op> which = operations();
  refuse_what_reads_no_result();
  refuse_operation_as_file();
  const Compute compute(running);
  const io::ArrayFile file = reading.open_floating(input, running.memory_bytes());
  std::optional<io::ArrayFile> given;
  if (!result.empty()) given.emplace(result_reading.open_floating(result, running.memory_bytes()));
  std::vector<Check> checks;
  for (const Op one : which) verify(one, file, given, compute, checks);
  tell(file, given ? given->dtype() : dtype.empty() ? file.dtype() : parse_dtype(dtype), checks);
  for (const Check& check : checks)
    if (!(check.worst.ratio <= 1))
      throw Error(Code::verification, fmt::format("a {} outside its bound in '{}'", check.name, given ? result : input),
                  "errors within docs/accuracy.md",
                  given ? fmt::format("the --op, --axis and --scale that RESULT was made with (taken: {}, {}, {}), or "
                                      "compute it with softfold",
                                      name_of(which[0]), axis, scale)
                  : rung == "safe" || rung == "online" || rung == "naive"
                      ? "--rung automatic: this one adds in sequence, and its error grows with the row's length"
                      : "report it, with the file");
}

std::string percentage(double ratio) { return ratio > 10 ? ">1000%" : fmt::format("{:.0f}%", 100 * ratio); }

void VerifyVerb::tell(const io::ArrayFile& file, DType output, const std::vector<Check>& checks) const {
  const bool wide = file.dtype() == DType::float64;
  const bool inside = std::ranges::all_of(checks, [](const Check& c) { return c.worst.ratio <= 1; });
  if (running.json) {
    Json list = Json::array();
    for (const auto& [name, w, shape] : checks)
      list.push_back({{"result", name},
                      {"largest_error_u", number(w.largest_error)},
                      {"largest_error_ulp", w.largest_ulp > 0 ? number(w.largest_ulp) : Json()},
                      {"error_u", number(w.error)},
                      {"bound_u", number(w.bound)},
                      {"ratio", number(w.ratio)},
                      {"at", w.index < 0 ? std::vector<std::int64_t>() : unravel(w.index, shape)}});
    return print({{"file", input},
                  {"shape", std::vector<std::int64_t>(file.shape().begin(), file.shape().end())},
                  {"dtype", name_of(file.dtype())},
                  {"output_dtype", name_of(output)},
                  {"u", wide ? 0x1p-53 : 0x1p-24},
                  {"checks", list},
                  {"inside", inside}});
  }
  fmt::print("{}: {} {} -> {}; u = {}, compared in {}\n", printable(result.empty() ? input : result),
             text_of(file.shape()), name_of(file.dtype()), name_of(output), wide ? "2^-53" : "2^-24",
             wide ? "long double" : "double");
  const bool narrow = size_of(output) < (wide ? 8 : 4);
  fmt::print("{:<16}{:>16}{}   nearest to its bound\n", "result", "largest error", narrow ? "   in last places" : "");
  for (const auto& [name, w, shape] : checks) {
    if (w.index < 0) {
      fmt::print("{:<16}{:>16}\n", name, "no elements");
    } else if (std::isinf(w.ratio)) {
      fmt::print("{:<16}{:>16}   at {}\n", name, "wrong", place(w, shape));
    } else {
      const std::string last = w.largest_ulp > 0 ? fmt::format("{:>13.3f} ulp", w.largest_ulp) : "";
      fmt::print("{:<16}{:>14.3g} u{:>{}}   {:.3g} u of {:.3g} u ({}) at {}\n", name, w.largest_error, last,
                 narrow ? 17 : 0, w.error, w.bound, percentage(w.ratio), place(w, shape));
    }
  }
  if (narrow)
    fmt::print("Rounding to {} alone takes up to 0.5 ulp, most of the bound: near 100% is usual.\n", name_of(output));
  fmt::print("{}\n", inside ? "Inside the contract." : "OUTSIDE the contract.");
}

}  // namespace

void add_verify(Program& program) {
  program.add<VerifyVerb>("verify", "the errors of softfold's results, or of yours, beside the contract's bounds");
}

}  // namespace softfold::cli
