// The general kernels: how their three steps follow each other on a stream.
#include "cuda/generic_items.cuh"

#include "cuda/elements.hpp"
#include "cuda/in_order.cuh"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// finish_logsumexp: the states carry their own scale and precision.
__global__ void __launch_bounds__(128) write_logsumexp(const __grid_constant__ RowProblem p) {
  begin_in_order();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= p.rows) return;
  const RowPlace place(p, row);
  const Operand &given = p[Slot::states], &o = p[Slot::row];
  const StoredState s = *reinterpret_cast<const StoredState*>(given.data + place.offset(given));
  char* to = o.data + place.offset(o);
  if (s.digits == fold::Real<double>::kDigits) {
    put(o.dtype, to,
        fold::LogSumExp<double>{fold::make_scale<double>(s.scale)}.finish(given_state<double>(s, s.scale)));
  } else {
    put(o.dtype, to, fold::LogSumExp<float>{fold::make_scale<float>(s.scale)}.finish(given_state<float>(s, s.scale)));
  }
}

/// Of Items and Nodes.
template <class F>
std::size_t bytes_of(const RowProblem& p) {
  Parts parts(nullptr);
  const Items items(p, parts);
  const Nodes<F> nodes(p, parts);
  return parts.used();
}
std::size_t item_bytes(const RowProblem& p, const Context&) {
  Parts parts(nullptr);
  const Items items(p, parts);
  return parts.used();
}

template <class T>
const typename fold::LogSumExp<T>::State* fold_rows(const RowProblem& p, const GenericItems& items,
                                                    const Nodes<fold::LogSumExp<T>>& nodes, Stream stream) {
  launch("fold_chunks", fold_chunks<T>, warps_for(items.count), stream, p, items, nodes.chunks());
  return nodes.merge(items, stream);
}

template <class T>
void write_softmax_rows(const RowProblem& p, const GenericItems& items,
                        const typename fold::LogSumExp<T>::State* states, Stream stream) {
  if (p.op == Op::log_softmax || p.op == Op::finish_log_softmax) {
    launch("write_softmax", write_softmax<T, true>, warps_for(items.count), stream, p, items, states);
  } else {
    launch("write_softmax", write_softmax<T, false>, warps_for(items.count), stream, p, items, states);
  }
}

const char* refuses(const RowProblem& p, const Context&) {
  const char* why = refuses_rung(p.rung, Rung::tiled);
  return why != nullptr ? why : refuses_items(p);
}

std::size_t fold_workspace(const RowProblem& p, const Context&) {
  return p.is_double() ? bytes_of<fold::LogSumExp<double>>(p) : bytes_of<fold::LogSumExp<float>>(p);
}

void run_fold(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(fold_workspace(p, context), context);
  const Stream stream = stream_of(context);
  Parts parts(scratch.data());
  Items items(p, parts);
  items.find(stream);
  with_fold_type(p, [&]<class T>(T) {
    const auto* states = fold_rows<T>(p, items.chunks(), Nodes<fold::LogSumExp<T>>(p, parts), stream);
    if (p.op == Op::softmax || p.op == Op::log_softmax) {
      write_softmax_rows<T>(p, items.results(), states, stream);
    } else {
      launch("write_row_results", write_row_results<T>, {ceil_div(p.rows, kThreads), kThreads}, stream, p, states);
    }
  });
}

void run_finish(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::states].data);
  const Stream stream = stream_of(context);
  if (p.op == Op::finish_logsumexp)
    return launch("write_logsumexp", write_logsumexp, {ceil_div(p.rows, kThreads), kThreads}, stream, p);
  const Scratch scratch(item_bytes(p, context), context);
  Parts parts(scratch.data());
  Items items(p, parts);
  items.find(stream);
  with_fold_type(p, [&]<class T>(T) { write_softmax_rows<T>(p, items.results(), nullptr, stream); });
}

std::size_t backward_workspace(const RowProblem& p, const Context&) {
  return p.is_double() ? bytes_of<GradientFold<double>>(p) : bytes_of<GradientFold<float>>(p);
}

template <class T, template <class> class Gradient>
void backward(const RowProblem& p, Parts& parts, Stream stream) {
  if (count_of_chunks(p) == 0) return;
  Items items(p, parts);
  items.find(stream);
  const Nodes<GradientFold<T>> nodes(p, parts);
  const GenericItems chunks = items.chunks(), results = items.results();
  launch("sum_chunks", sum_chunks<T, Gradient>, warps_for(chunks.count), stream, p, chunks, nodes.chunks());
  const auto* sums = nodes.merge(chunks, stream);
  launch("write_gradient", write_gradient<T, Gradient>, warps_for(results.count), stream, p, results, sums);
}

void run_backward(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(backward_workspace(p, context), context);
  Parts parts(scratch.data());
  with_fold_type(p, [&]<class T>(T) {
    with_gradient(p.op,
                  [&]<template <class> class Gradient>() { backward<T, Gradient>(p, parts, stream_of(context)); });
  });
}

void run_lse_backward(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(item_bytes(p, context), context);
  const Stream stream = stream_of(context);
  Parts parts(scratch.data());
  Items items(p, parts);
  items.find(stream);
  with_fold_type(p, [&]<class T>(T) {
    launch("write_lse_gradient", write_lse_gradient<T>, warps_for(items.results().count), stream, p, items.results());
  });
}

}  // namespace

const RowKernel fold_generic_kernel{"fold_generic", refuses, run_fold, fold_workspace};
const RowKernel finish_generic_kernel{"finish_generic", refuses, run_finish, item_bytes};
const RowKernel backward_generic_kernel{"backward_generic", refuses, run_backward, backward_workspace};
const RowKernel lse_backward_generic_kernel{"lse_backward_generic", refuses, run_lse_backward, item_bytes};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
