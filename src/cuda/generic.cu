// The general kernels: how their three steps follow each other on a stream.
#include "cuda/generic.cuh"

#include "cuda/in_order.cuh"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"

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

template <class T>
std::size_t lse_bytes(const RowProblem& p) {
  return state_bytes<typename fold::LogSumExp<T>::State>(p);
}

template <class T>
const typename fold::LogSumExp<T>::State* fold_rows(const RowProblem& p, char* memory, Stream stream) {
  using Lse = fold::LogSumExp<T>;
  auto* states = reinterpret_cast<typename Lse::State*>(memory);
  const std::int64_t items = p.rows * lift::chunk_count(p.n);
  if (items == 0) {  // rows of no elements: every state is the empty one
    launch("merge_nodes", merge_nodes<Lse>, warps_for(p.rows), stream, states, std::int64_t{0}, states, std::int64_t{1},
           p.rows);
    return states;
  }
  launch("fold_chunks", fold_chunks<T>, warps_for(items), stream, p, items, states);
  return merge_levels<Lse>(p, states, stream);
}

template <class T>
void write_softmax_rows(const RowProblem& p, const typename fold::LogSumExp<T>::State* states, Stream stream) {
  const bool across = is_across(p);
  const std::int64_t items = write_items(p, across);
  if (p.op == Op::log_softmax || p.op == Op::finish_log_softmax) {
    launch("write_softmax", write_softmax<T, true>, warps_for(items), stream, p, items, across, states);
  } else {
    launch("write_softmax", write_softmax<T, false>, warps_for(items), stream, p, items, across, states);
  }
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::tiled)) return why;
  return refuses_chunks(p);
}

std::size_t fold_workspace(const RowProblem& p, const Context&) {
  return p.is_double() ? lse_bytes<double>(p) : lse_bytes<float>(p);
}

void run_fold(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(fold_workspace(p, context), context);
  const Stream stream = stream_of(context);
  with_fold_type(p, [&]<class T>(T) {
    const auto* states = fold_rows<T>(p, scratch.data(), stream);
    if (p.op == Op::softmax || p.op == Op::log_softmax) {
      write_softmax_rows<T>(p, states, stream);
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
  with_fold_type(p, [&]<class T>(T) { write_softmax_rows<T>(p, nullptr, stream); });
}

std::size_t backward_workspace(const RowProblem& p, const Context&) {
  return p.is_double() ? state_bytes<GradientState<double>>(p) : state_bytes<GradientState<float>>(p);
}

template <class T, template <class> class Gradient>
void backward(const RowProblem& p, char* memory, Stream stream) {
  const std::int64_t chunks = p.rows * lift::chunk_count(p.n);
  if (chunks == 0) return;
  auto* states = reinterpret_cast<GradientState<T>*>(memory);
  launch("sum_chunks", sum_chunks<T, Gradient>, warps_for(chunks), stream, p, chunks, states);
  const auto* sums = merge_levels<GradientFold<T>>(p, states, stream);
  const bool across = is_across(p);
  const std::int64_t items = write_items(p, across);
  launch("write_gradient", write_gradient<T, Gradient>, warps_for(items), stream, p, items, across, sums);
}

void run_backward(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(backward_workspace(p, context), context);
  with_fold_type(p, [&]<class T>(T) {
    if (p.op == Op::softmax_backward) {
      backward<T, fold::SoftmaxGradient>(p, scratch.data(), stream_of(context));
    } else {
      backward<T, fold::LogSoftmaxGradient>(p, scratch.data(), stream_of(context));
    }
  });
}

void run_lse_backward(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const bool across = is_across(p);
  const std::int64_t items = write_items(p, across);
  with_fold_type(p, [&]<class T>(T) {
    launch("write_lse_gradient", write_lse_gradient<T>, warps_for(items), stream_of(context), p, items, across);
  });
}

}  // namespace

const RowKernel fold_generic_kernel{"fold_generic", refuses, run_fold, fold_workspace};
const RowKernel finish_generic_kernel{"finish_generic", refuses, run_finish, nullptr};
const RowKernel backward_generic_kernel{"backward_generic", refuses, run_backward, backward_workspace};
const RowKernel lse_backward_generic_kernel{"lse_backward_generic", refuses, run_lse_backward, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
