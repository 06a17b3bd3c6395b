// softmax_across_hidden_twice: what it takes, and how it is launched.
#include "cuda/softmax_hidden_twice.cuh"

#include "cuda/elements.hpp"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using State = fold::LogSumExp<float>::State;

const char* refuses(const RowProblem& p, const Context&) {
  if (p.n <= lift::kChunk) return "a block holds a row";
  if (!may_be_apart(p[Slot::x].dtype, p[Slot::y].dtype)) return "no kernel for these dtypes";
  return refuses_hidden_columns(p);
}

std::size_t workspace(const RowProblem& p, const Context&) { return state_bytes<State>(p); }

template <class E, class Y, Given kWhat, int kRows>
void launch_columns(const RowProblem& p, int processors, const State* roots, Stream stream) {
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  const GivenHidden given{.x = x.data,
                          .y = y.data,
                          .x_axis = x.axis_stride,
                          .x_outer = outer_stride(p, x),
                          .y_axis = y.axis_stride,
                          .y_outer = outer_stride(p, y),
                          .share = column_items(p, kRows, kGivenRun, kGivenWarps, processors),
                          .hidden = HiddenColumns(p, kRows),
                          .empty = p.empty,
                          .roots = roots};
  launch("given_across_hidden", given_across_hidden<E, Y, kWhat, kRows>,
         {span_blocks(given.share, kGivenWarps), kGivenWarps * 32}, stream, given);
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  const Stream stream = stream_of(context);
  const int processors = traits_of(device.device()).processors;
  const State* roots = fold_hidden_columns(p, scratch.data(), processors, stream);
  with_apart(p[Slot::x].dtype, p[Slot::y].dtype, [&]<class E, class Y>() {
    using Wider = std::conditional_t<sizeof(E) < sizeof(Y), Y, E>;
    with_word_rows<Wider>(rows_of_word(p), [&]<int kRows>() {
      p.op == Op::softmax ? launch_columns<E, Y, Given::softmax, kRows>(p, processors, roots, stream.following())
                          : launch_columns<E, Y, Given::log_softmax, kRows>(p, processors, roots, stream.following());
    });
  });
}

}  // namespace

const RowKernel softmax_across_hidden_twice_kernel{"softmax_across_hidden_twice", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
