// Rows that lie side by side whose states are known, given or found by a read before: what is taken, and how it is
// launched.
#include "cuda/given_columns.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/elements.hpp"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using State = fold::LogSumExp<float>::State;

GivenColumns given(const RowProblem& p, int rows, int processors, const State* roots) {
  const Operand &x = p[Slot::x], &y = p[Slot::y], &states = p[Slot::states], &dlse = p[Slot::row];
  const auto last = static_cast<std::size_t>(p.outer_rank - 1);
  const auto scale = fold::make_scale<float>(p.scale);
  return {.x = x.data,
          .y = y.data,
          .x_axis = x.axis_stride,
          .x_outer = outer_stride(p, x),
          .y_axis = y.axis_stride,
          .y_outer = outer_stride(p, y),
          .share = column_items(p, rows, kGivenRun, kGivenWarps, processors),
          .scale = p.scale,
          .factor = scale,
          .two_kappa = fold::LogNormaliser<float>::two_kappa_of(scale),
          .empty = p.empty,
          .roots = roots,
          .states = states.data,
          .dlse = dlse.data,
          .states_outer = outer_stride(p, states),
          .states_row = states.strides[last],
          .dlse_outer = outer_stride(p, dlse),
          .dlse_row = dlse.strides[last],
          .dlse_dtype = dlse.dtype};
}

template <class E, Given kWhat, int kRows>
void launch_columns(const GivenColumns& g, Stream stream) {
  launch("given_across_columns", given_across_columns<E, kWhat, kRows>,
         {span_blocks(g.share, kGivenWarps), kGivenWarps * 32}, stream, g);
}

/// roots: of the rows; null: their states are given.
void write_rows(const RowProblem& p, int processors, const State* roots, Stream stream) {
  const int rows = rows_of_word(p);
  const GivenColumns g = given(p, rows, processors, roots);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const auto by = [&]<Given kWhat>() {
      with_word_rows<E>(rows, [&]<int kRows>() { launch_columns<E, kWhat, kRows>(g, stream); });
    };
    if (p.op == Op::logsumexp_backward) return by.template operator()<Given::gradient>();
    if (p.op == Op::softmax || p.op == Op::finish_softmax) return by.template operator()<Given::softmax>();
    by.template operator()<Given::log_softmax>();
  });
}

const char* refuses(const RowProblem& p, const Context&) {
  return p.op == Op::finish_logsumexp ? "one result a row" : refuses_columns(p);
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  write_rows(p, traits_of(device.device()).processors, nullptr, stream_of(context));
}

const char* refuses_twice(const RowProblem& p, const Context&) {
  return p.n <= lift::kChunk ? "a block holds a row" : refuses_columns(p);
}

std::size_t workspace(const RowProblem& p, const Context&) { return state_bytes<State>(p); }

void fold_and_write(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  const Stream stream = stream_of(context);
  const int processors = traits_of(device.device()).processors;
  write_rows(p, processors, fold_columns(p, scratch.data(), processors, stream), stream.following());
}

}  // namespace

const RowKernel given_across_columns_kernel{"given_across_columns", refuses, run, nullptr};
const RowKernel softmax_across_columns_twice_kernel{"softmax_across_columns_twice", refuses_twice, fold_and_write,
                                                    workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
