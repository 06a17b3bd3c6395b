#include "transform.hpp"

#include "folder.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <vector>

namespace softfold::cli {
namespace {

/// The array as (outer, n, inner) and its result, at addresses that are never read: planning looks at shapes alone.
std::string planned_kernel(const io::ArrayFile& input, const Job& job) {
  const std::uintptr_t x = 1 << 16;
  const std::uintptr_t y = x + (input.bytes() + 4095) / 4096 * 4096;
  std::vector<std::int64_t> shape(input.shape().begin(), input.shape().end()), result = shape;
  if (job.op == Op::logsumexp && !shape.empty())
    result.erase(result.begin() + (job.options.axis < 0 ? job.options.axis + std::ssize(shape) : job.options.axis));
  const View in(reinterpret_cast<const void*>(x), input.dtype(), shape);
  const View out(reinterpret_cast<void*>(y), job.output, result);
  return std::string(job.compute.plan(job.op, {&in, 1}, {&out, 1}, job.options).kernel());
}

std::size_t result_bytes(const Job& job, const Box& b) {
  const std::int64_t count = job.op != Op::logsumexp ? b.elements() : b.outers * b.inners;
  return static_cast<std::size_t>(count) * size_of(job.output);
}

std::size_t input_bytes(const io::ArrayFile& input, const Box& b) {
  return static_cast<std::size_t>(b.elements()) * size_of(input.dtype());
}

class Run {
 public:
  Run(const io::ArrayFile& input, const Job& job, const Outline& outline, Progress& progress, const Consume& consume)
      : input_(input), job_(job), g_(outline.geometry), s_(outline.schedule), progress_(progress), consume_(consume) {
    if (job.in_turn) s_.slots = 1;
  }

  void whole_rows() {
    const Boxes boxes(g_, s_);
    if (boxes.empty() || (g_.n == 0 && job_.op != Op::logsumexp)) return;
    in_ = Slots(s_.slots, input_bytes(input_, boxes[0]));
    out_ = Slots(s_.slots, result_bytes(job_, boxes[0]));
    run_steps(std::ssize(boxes), s_.slots,
              {[&](std::int64_t i) { read(boxes[at(i)], in_[i]); },
               [&](std::int64_t i) {
                 if (g_.n > 0 || i < s_.slots) compute(boxes[at(i)], in_[i], out_[i]);  // rows of nothing are alike
               },
               [&](std::int64_t i) { consume_(boxes[at(i)], in_[i], out_[i]); }});
  }

  void streamed_rows() {
    const auto columns = static_cast<std::size_t>(std::min(s_.columns, g_.n));
    in_ = Slots(s_.slots, columns * size_of(input_.dtype()));
    out_ = Slots(s_.slots, columns * size_of(job_.output));
    for (std::int64_t row = 0; row < g_.outer; ++row) {
      const std::vector<double> states = fold(row);
      if (job_.op == Op::logsumexp) {
        const std::int64_t shape[] = {4};
        const View from(static_cast<const void*>(states.data()), DType::float64, shape), to(out_[0], job_.output, {});
        job_.compute.run(Op::finish_logsumexp, {&from, 1}, {&to, 1});
        consume_({row, 1, 0, 0, 0, 1}, nullptr, out_[0]);
      } else {
        finish(row, states);
      }
    }
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  void read(const Box& box, std::byte* into) { read_box(input_, g_, box, {into, input_bytes(input_, box)}); }

  void compute(const Box& b, const std::byte* x, std::byte* y) {
    const std::int64_t shape[] = {b.outers, b.columns, b.inners}, rows[] = {b.outers, b.inners};
    RowOptions options = job_.options;
    options.axis = 1;
    const View in(x, input_.dtype(), shape);
    const View out = job_.op == Op::logsumexp ? View(y, job_.output, rows) : View(y, job_.output, shape);
    job_.compute.run(job_.op, {&in, 1}, {&out, 1}, options);
    progress_.add(input_bytes(input_, b) + result_bytes(job_, b));
  }

  std::vector<Box> pieces(std::int64_t row) const {
    std::vector<Box> boxes;
    for (const auto& [begin, end] : column_pieces(0, g_.n, 0, s_.columns))
      boxes.push_back({row, 1, begin, end - begin, 0, 1});
    return boxes;
  }

  std::vector<double> fold(std::int64_t row) {
    Folder folder(input_.dtype(), job_.options.scale, 0, 1, job_.compute);
    const std::vector<Box> boxes = pieces(row);
    run_steps(std::ssize(boxes), s_.slots,
              {[&](std::int64_t i) { read(boxes[at(i)], in_[i]); },
               [&](std::int64_t i) {
                 folder.take(in_[i], boxes[at(i)].columns, g_.n);
                 progress_.add(input_bytes(input_, boxes[at(i)]));
               },
               [](std::int64_t) {}});
    return folder.states();
  }

  void finish(std::int64_t row, const std::vector<double>& states) {
    const std::int64_t states_shape[] = {4};
    const View merged(static_cast<const void*>(states.data()), DType::float64, states_shape);
    const std::vector<Box> boxes = pieces(row);
    run_steps(std::ssize(boxes), s_.slots,
              {[&](std::int64_t i) { read(boxes[at(i)], in_[i]); },
               [&](std::int64_t i) {
                 const std::int64_t shape[] = {boxes[at(i)].columns};
                 const View operands[] = {{static_cast<const void*>(in_[i]), input_.dtype(), shape}, merged};
                 const View y(out_[i], job_.output, shape);
                 RowOptions options = job_.options;
                 options.axis = 0;
                 const Op op = job_.op == Op::softmax ? Op::finish_softmax : Op::finish_log_softmax;
                 job_.compute.run(op, operands, {&y, 1}, options);
                 progress_.add(input_bytes(input_, boxes[at(i)]) + result_bytes(job_, boxes[at(i)]));
               },
               [&](std::int64_t i) { consume_(boxes[at(i)], in_[i], out_[i]); }});
  }

  const io::ArrayFile& input_;
  const Job& job_;
  const Geometry& g_;
  Schedule s_;
  Progress& progress_;
  const Consume& consume_;
  Slots in_, out_;
};

}  // namespace

Outline outline_of(const io::ArrayFile& input, const Job& job) {
  Outline o;
  o.geometry = geometry_of(input.shape(), job.options.axis);
  o.kernel = planned_kernel(input, job);
  const std::size_t result = size_of(job.output);
  const bool one_a_row = job.op == Op::logsumexp;
  const std::int64_t n = std::max<std::int64_t>(1, o.geometry.n);
  o.schedule = make_schedule(o.geometry, {size_of(input.dtype()), one_a_row ? bytes_beside(result, n) : result,
                                          job.compute.room(job.memory), job.beside});
  if (o.schedule.streamed && job.options.rung != Rung::automatic)
    throw Error(
        Code::option, fmt::format("a rung for rows of {} elements that do not fit into --memory", n),
        "rungs of the ladder work on rows in memory",
        fmt::format(
            "--memory {}M",
            ((static_cast<std::uint64_t>(n) * (size_of(input.dtype()) + size_of(job.output)) + job.beside) >> 20) +
                17));
  o.passes = o.schedule.streamed && !one_a_row ? 2 : 1;
  if (o.schedule.streamed)
    o.kernel = one_a_row ? "state, finish_logsumexp" : fmt::format("state, finish_{}", name_of(job.op));
  o.bytes_read = input.bytes() * static_cast<std::uint64_t>(o.passes);
  o.bytes_written = static_cast<std::uint64_t>(one_a_row ? o.geometry.rows() : o.geometry.elements()) * result;
  return o;
}

void transform(const io::ArrayFile& input, const Job& job, const Outline& outline, Progress& progress,
               const Consume& consume) {
  Run run(input, job, outline, progress, consume);
  if (outline.schedule.streamed) {
    run.streamed_rows();
  } else {
    run.whole_rows();
  }
  input.file().check_unchanged();
}

}  // namespace softfold::cli
