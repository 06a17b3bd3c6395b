// float64 from known states: finish_softmax, finish_log_softmax, the gradients of logsumexp; softmax and log_softmax
// with two reads.
#include "cuda/double_given.cuh"

#include "cuda/double_rows.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using State = fold::LogSumExp<double>::State;

const char* refuses(const RowProblem& p, const Context&) {
  if (p.op == Op::finish_logsumexp) return "one result a row";
  return refuses_double_apart(p, Rung::automatic);
}

template <Given kWhat>
void write_rows(const RowProblem& p, const State* states, Stream stream) {
  const auto by = [&]<int kLanes, int kCount>() {
    using Elements = DoubleElements<kLanes, kCount>;
    const std::int64_t items = p.rows * lift::chunk_count(p.n);
    launch("write_double_rows", write_double_rows<Elements, kWhat>, grid_of_groups(items, kLanes), stream, p, items,
           states);
  };
  // Of more than a chunk a row states are what takes time, not what is done once a row.
  p.n <= lift::kChunk ? with_double_shape(p.n, by) : by.template operator()<32, lift::kPerLane>();
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Stream stream = stream_of(context);
  if (p.op == Op::logsumexp_backward) return write_rows<Given::gradient>(p, nullptr, stream);
  if (p.op == Op::finish_log_softmax) return write_rows<Given::log_softmax>(p, nullptr, stream);
  write_rows<Given::softmax>(p, nullptr, stream);
}

const char* refuses_twice(const RowProblem& p, const Context&) { return refuses_double_apart(p, Rung::tiled); }

void run_twice(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(double_state_bytes(p), context);
  const Stream stream = stream_of(context);
  const State* states = double_states(p, scratch.data(), stream);
  p.op == Op::log_softmax ? write_rows<Given::log_softmax>(p, states, stream.following())
                          : write_rows<Given::softmax>(p, states, stream.following());
}

std::size_t workspace(const RowProblem& p, const Context&) { return double_state_bytes(p); }

}  // namespace

const RowKernel given_double_rows_kernel{"given_double_rows", refuses, run, nullptr};
const RowKernel softmax_double_twice_kernel{"softmax_double_twice", refuses_twice, run_twice, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
