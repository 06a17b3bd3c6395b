// softfold finish SHARD PARTIAL OUT | finish --logsumexp PARTIAL [OUT]
#include "arguments.hpp"
#include "blocks.hpp"
#include "compute.hpp"
#include "elements.hpp"
#include "interrupt.hpp"
#include "partials.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "tasks.hpp"
#include "verbs.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <optional>

namespace softfold::cli {
namespace {

struct FinishVerb {
  std::vector<std::string> files;
  std::string range, dtype, empty = "zero";
  bool log = false, logsumexp = false;
  InputOptions reading;
  RunOptions running;

  void declare(Command& command) {
    command.positionals("FILES", files, "SHARD PARTIAL OUT; with --logsumexp: PARTIAL [OUT]");
    command.flag("--log", log, "log-probabilities instead of probabilities");
    command.flag("--logsumexp", logsumexp, "the rows' logsumexp, printed or written to OUT");
    command.option("--range", range, "A:B, only these elements of SHARD's last axis");
    command.option("--dtype", dtype, "of the output; default SHARD's");
    command.option("--empty", empty,
                   "what rows with nothing in them become: zero or nan; default zero; of --logsumexp -inf");
    reading.declare(command);
    running.declare(command);
    command.footer("PARTIAL is the joined partial of whole rows, as `softfold merge` writes it.");
  }

  void run() const;
  void finish_rows(const io::InputFile& partial, const io::PartialReader& joined, const Compute& compute) const;
  void finish_lse(const io::InputFile& partial, const io::PartialReader& joined, const Compute& compute) const;
};

/// Refuses a partial that is not of whole rows, as far as can be known.
void check_complete(const std::string& name, const io::PartialSpan& span) {
  const std::int64_t end = span.offset + span.length;
  if (span.offset == 0 && (span.row_length < 0 || end == span.row_length)) return;
  throw Error(Code::state, fmt::format("'{}', the partial of elements {}:{}", name, span.offset, end),
              span.row_length < 0 ? "a partial that begins at element 0"
                                  : fmt::format("the partial of whole rows, 0:{}", span.row_length),
              "join the partials of all shards first: softfold merge");
}

void FinishVerb::run() const {
  const std::size_t count = files.size();
  const auto refuse_unless = [&](bool right, const std::string& got, const char* allowed) {
    if (right) return;
    throw Error(
        Code::usage, got, allowed,
        logsumexp ? "softfold finish --logsumexp joined.part" : "softfold finish shard.npy joined.part out.npy");
  };
  refuse_unless(logsumexp ? count <= 2 : count == 3, fmt::format("{} files", count),
                logsumexp ? "PARTIAL [OUT] with --logsumexp" : "SHARD PARTIAL OUT");
  if (logsumexp) {
    refuse_unless(!log && range.empty() && reading.as.empty(), "--log, --range or --as with --logsumexp",
                  "--logsumexp alone: it reads no shard");
    refuse_unless(count == 2 || (dtype.empty() && reading.tensor.empty()), "--dtype or --tensor without OUT",
                  "numbers as they were folded, or an OUT");
  }
  const io::InputFile partial(files[logsumexp ? 0 : 1]);
  const io::PartialReader joined(partial);
  check_complete(partial.path(), joined.span());
  check_partials(joined, partial);
  const Compute compute(running);
  if (logsumexp) {
    finish_lse(partial, joined, compute);
  } else {
    finish_rows(partial, joined, compute);
  }
}

/// A shard on its way to its results: each element is finished by itself, so any cut will do.
class Shard {
 public:
  Shard(const io::ArrayFile& file, const Range& columns, Op op, DType out_type, const RowOptions& options,
        const Compute& compute)
      : file_(file), columns_(columns), op_(op), out_type_(out_type), options_(options), compute_(compute) {
    // Nothing to do yet, but everything to refuse.
    with_views(nullptr, nullptr, nullptr, {0, 0, 0, columns.length(), 0, 1},
               [&](auto in, auto out) { compute_.plan(op_, in, out, options_); });
  }

  std::uint64_t bytes_moved() const {
    return static_cast<std::uint64_t>(geometry().elements()) * (size_of(file_.dtype()) + size_of(out_type_));
  }

  /// `next(rows, states)` gives the states of the partial's next rows. Returns how many rows are NaN.
  template <class Next>
  std::int64_t finish(io::ArrayOutput& output, std::uint64_t memory, Progress& progress, const Next& next) const {
    const Geometry shard = geometry();
    const std::size_t state = bytes_beside(4 * sizeof(double), shard.n);
    const Schedule s =
        make_schedule(shard, {size_of(file_.dtype()), size_of(out_type_) + state, compute_.room(memory)});
    const Boxes boxes(shard, s);
    if (boxes.empty()) return 0;
    std::int64_t nan_rows = 0;
    const std::size_t most = index(boxes[0].elements());
    const Slots in(s.slots, most * size_of(file_.dtype())), out(s.slots, most * size_of(out_type_));
    std::vector<double> states[2];  // of the slots
    run_steps(std::ssize(boxes), s.slots,
              {[&](std::int64_t i) {
                 Box from = boxes[index(i)];
                 if (from.column == 0) {
                   next(from.outers, states[i % 2]);
                 } else {  // of a row in pieces the last piece had it
                   states[i % 2] = states[(i + 1) % 2];
                 }
                 from.column += columns_.begin;
                 read_box(file_, geometry_of(file_.shape(), -1), from,
                          {in[i], index(from.elements()) * size_of(file_.dtype())});
               },
               [&](std::int64_t i) {
                 const double* const of = states[i % 2].data();
                 with_views(in[i], of, out[i], boxes[index(i)],
                            [&](auto from, auto to) { compute_.run(op_, from, to, options_); });
                 refuse_uncovered(boxes[index(i)], of, out[i]);
                 progress.add(index(boxes[index(i)].elements()) * (size_of(file_.dtype()) + size_of(out_type_)));
               },
               [&](std::int64_t i) {
                 const Box& to = boxes[index(i)];
                 nan_rows += nan_rows_of(to, out[i], out_type_);
                 write_box(output, shard, to, {out[i], index(to.elements()) * size_of(out_type_)});
               }});
    file_.file().check_unchanged();
    return nan_rows;
  }

 private:
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  /// The library gives NaN for an element that a row's state cannot have seen. What comes of a row with NaN or +inf is
  /// NaN too, and its state says so.
  void refuse_uncovered(const Box& b, const double* states, const std::byte* y) const {
    constexpr std::int64_t segment = 1 << 16;
    const std::int64_t segments = (b.columns + segment - 1) / segment;
    run_tasks(compute_.executor(), b.outers * segments, [&](std::int64_t task) {
      const std::int64_t row = task / segments, first = task % segments * segment;
      const double* const state = states + 4 * row;
      if (!std::isfinite(state[0]) || !std::isfinite(state[1])) return;
      const bool strange = with_floating(out_type_, [&]<class S>(S) {
        const S* const from = reinterpret_cast<const S*>(y) + row * b.columns + first;
        bool nan = false;
        for (std::int64_t i = 0; i < std::min(segment, b.columns - first); ++i) nan |= std::isnan(fold::widen(from[i]));
        return nan;
      });
      if (strange)
        throw Error(Code::state,
                    fmt::format("'{}', with an element in row {} that no partial of this row has seen",
                                file_.file().path(), b.outer + row),
                    "the shards that the partial was folded from",
                    "softfold state of these shards, merge, then finish");
    });
  }

  Geometry geometry() const { return {geometry_of(file_.shape(), -1).outer, columns_.length(), 1}; }

  /// Calls f with the views of a box's inputs, its rows' states among them, and of its output.
  template <class F>
  void with_views(const std::byte* x, const double* states, std::byte* y, const Box& b, const F& f) const {
    const std::int64_t shape[] = {b.outers, b.columns}, states_shape[] = {b.outers, 4};
    const View operands[] = {{static_cast<const void*>(x), file_.dtype(), shape},
                             {static_cast<const void*>(states), DType::float64, states_shape}};
    const View result(y, out_type_, shape);
    f(std::span<const View>(operands), std::span(&result, 1));
  }

  const io::ArrayFile& file_;
  Range columns_;
  Op op_;
  DType out_type_;
  RowOptions options_;
  const Compute& compute_;
};

void FinishVerb::finish_rows(const io::InputFile& partial, const io::PartialReader& joined,
                             const Compute& compute) const {
  const io::ArrayFile file = reading.open_floating(files[0], running.memory_bytes());
  const Geometry g = geometry_of(file.shape(), -1);
  const io::PartialSpan& span = joined.span();
  const Range columns = range.empty() ? Range{0, g.n} : parse_range(range, g.n);
  if (g.outer != span.rows || columns.length() > span.length)
    throw Error(
        Code::shape,
        fmt::format("a shard of {}, {} each", counted(g.outer, "row"), counted(columns.length(), "element")),
        fmt::format("the partial's {}, at most {} each", counted(span.rows, "row"), counted(span.length, "element")),
        "give the shard, or --range, that the partial was made with");
  const DType out_type = dtype.empty() ? file.dtype() : parse_dtype(dtype);
  const Op op = log ? Op::finish_log_softmax : Op::finish_softmax;
  RowOptions options;
  options.scale = span.scale;
  options.empty = parse_empty(empty);
  const Shard shard(file, columns, op, out_type, options, compute);

  const Stopwatch watch;
  std::vector<std::int64_t> shape(file.shape().begin(), file.shape().end());
  shape.back() = columns.length();
  const std::string tensor = !reading.tensor.empty() ? reading.tensor : log ? "log_softmax" : "softmax";
  const io::FileId inputs[] = {file.file().id(), partial.id()};
  io::ArrayOutput output = io::create_array(files[2], {tensor, out_type, shape}, inputs);
  if (span.row_length < 0 && columns.length() == span.length)
    note(
        fmt::format("'{}' holds this shard alone and does not say how long the row is; if the row goes on elsewhere, "
                    "join all its partials first (state --row-length N has this noticed)",
                    partial.path()));
  std::int64_t nan_rows = 0;
  {
    Progress progress(shard.bytes_moved());
    io::PartialReader states = joined;
    nan_rows =
        shard.finish(output, running.memory_bytes(), progress,
                     [&](std::int64_t rows, std::vector<double>& into) { next_states(states, partial, rows, into); });
    output.commit();
  }
  note_bfloat16(files[2], out_type);
  if (running.json)
    return print({{"op", name_of(op)},
                  {"shard", files[0]},
                  {"partial", files[1]},
                  {"output", files[2]},
                  {"shape", shape},
                  {"nan_rows", nan_rows},
                  {"seconds", watch.seconds()},
                  {"peak_memory_bytes", peak_memory()}});
  fmt::print("{} of {} {} -> {} in {:.2f} s\n", name_of(op), text_of(shape), name_of(file.dtype()), printable(files[2]),
             watch.seconds());
  tell_nan_rows(nan_rows, g.outer);
}

/// No shard is there to be shorter than what was joined: whether more should have been is not known.
void note_unknown_length(const io::InputFile& partial, const io::PartialSpan& span) {
  if (span.row_length >= 0) return;
  note(
      fmt::format("'{}' has elements 0:{} and does not say how long the row is; if the row goes on elsewhere, join all "
                  "its partials first (state --row-length N has this noticed)",
                  partial.path(), span.length));
}

/// Prints logsumexp's numbers one after the other: as --json the list of an object, as print() would.
class Printed {
 public:
  Printed(bool json, int digits) : json_(json), digits_(digits) {
    if (json_) fmt::print("{{\n  \"logsumexp\": [");
  }

  void take(double value) {
    if (json_) {
      fmt::print("{}\n    {}", first_ ? "" : ",", number(value).dump());
    } else if (digits_ == 24) {
      // A float32 fold's result is a float32: printed as such, with as many digits as tell it from its neighbours.
      fmt::print("{}\n", static_cast<float>(value));
    } else {
      fmt::print("{}\n", value);
    }
    first_ = false;
  }
  void end() const {
    if (json_) fmt::print("\n  ]\n}}\n");
  }

 private:
  bool json_, first_ = true;
  int digits_;
};

void FinishVerb::finish_lse(const io::InputFile& partial, const io::PartialReader& joined,
                            const Compute& compute) const {
  const io::PartialSpan& span = joined.span();
  const DType type = !dtype.empty() ? parse_dtype(dtype) : span.digits == 53 ? DType::float64 : DType::float32;
  const std::int64_t block = std::min(span.rows, rows_at_once(span));
  const Buffer result(static_cast<std::size_t>(block) * sizeof(double));
  std::vector<double> states;
  // Calls take(first row, rows) with the rows' logsumexp in `result`, a block at a time.
  const auto each_block = [&](DType as, const auto& take) {
    io::PartialReader partials = joined;
    for (std::int64_t row = 0; row < span.rows; row += block) {
      const std::int64_t rows = std::min(block, span.rows - row);
      next_states(partials, partial, rows, states);
      const std::int64_t shape[] = {rows}, states_shape[] = {rows, 4};
      const View from(static_cast<const void*>(states.data()), DType::float64, states_shape);
      const View lse(result.data(), as, shape);
      compute.run(Op::finish_logsumexp, {&from, 1}, {&lse, 1});
      take(row, rows);
    }
  };
  if (files.size() == 2) {
    const std::string tensor = reading.tensor.empty() ? "logsumexp" : reading.tensor;
    io::ArrayOutput output = io::create_array(files[1], {tensor, type, {span.rows}}, {&partial.id(), 1});
    each_block(type, [&](std::int64_t row, std::int64_t rows) {
      const auto first = static_cast<std::uint64_t>(row), count = static_cast<std::uint64_t>(rows);
      output.write(first * size_of(type), {result.data(), count * size_of(type)});
    });
    output.commit();
    if (running.json) print({{"op", "logsumexp"}, {"partial", files[0]}, {"output", files[1]}, {"shape", {span.rows}}});
    note_unknown_length(partial, span);
    note_bfloat16(files[1], type);
    return;
  }
  std::optional<Printed> printed;
  try {
    each_block(DType::float64, [&](std::int64_t, std::int64_t rows) {
      if (!printed) {
        note_unknown_length(partial, span);
        printed.emplace(running.json, span.digits);
      }
      const auto* const lse = reinterpret_cast<const double*>(result.data());
      for (std::int64_t r = 0; r < rows; ++r) printed->take(lse[r]);
    });
  } catch (const Interrupted&) {
    if (printed) throw Interrupted{"the list that was printed is not whole"};
    throw;
  }
  printed->end();
}

}  // namespace

void add_finish(Program& program) {
  program.add<FinishVerb>("finish", "a shard's probabilities, given the joined partial of whole rows");
}

}  // namespace softfold::cli
