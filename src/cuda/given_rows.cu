// finish_softmax, finish_log_softmax and the gradients of logsumexp of plain rows: how they are launched.
#include "cuda/given_rows.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int kGivenThreads = 256;

const char* refuses(const RowProblem& p, const Context&) {
  if (p.op == Op::finish_logsumexp) return "one result a row";
  if (const char* why = refuses_rung(p.rung, Rung::tiled)) return why;
  if (p.n == 0) return "rows of no elements";
  if (p.rows * lift::chunk_count(p.n) >= std::int64_t{0x7FFFFFFF} * 8) return "more chunks than a grid has";
  return refuses_plain(p);
}

GivenRows given(const RowProblem& p) {
  const Operand &states = p[Slot::states], &dlse = p[Slot::row];
  const auto stride = [&](const Operand& o) { return p.outer_rank == 0 ? 0 : o.strides[0]; };
  return {plain_rows(p), p.scale, states.data, dlse.data, stride(states), stride(dlse), dlse.dtype};
}

template <class E, int kLanes>
void launch_lanes(const RowProblem& p, Stream stream) {
  const std::int64_t chunks = lift::chunk_count(p.n), at_once = kGivenThreads / kLanes;
  const Grid grid{(p.rows * chunks + at_once - 1) / at_once, kGivenThreads};
  const auto by = [&](auto kernel) { launch("given_rows", kernel, grid, stream, given(p), chunks); };
  if (p.op == Op::finish_softmax) return by(given_rows<E, kLanes, Given::softmax>);
  if (p.op == Op::finish_log_softmax) return by(given_rows<E, kLanes, Given::log_softmax>);
  by(given_rows<E, kLanes, Given::gradient>);
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.n <= 32) return launch_lanes<E, 1>(p, stream_of(context));
    if (p.n > kGroupElements) return launch_lanes<E, 32>(p, stream_of(context));
    with_group_lanes(p.n, [&]<int kLanes>() { launch_lanes<E, kLanes>(p, stream_of(context)); });
  });
}

}  // namespace

const RowKernel given_rows_kernel{"given_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
