// softmax_naive, softmax_safe, softmax_online: the first rungs of the ladder as kernels one can ask for. A block a row,
// each thread every 256th element; the exponentials are the library's, the sums in an order of the block's own.
#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/in_order.cuh"
#include "cuda/kernels.hpp"
#include "softfold/fold/logsumexp.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using Lse = fold::LogSumExp<float>;
using S = fold::Scalar<float>;
constexpr int kLadderThreads = 256;

struct LadderRows {
  const char* x;
  char* y;
  std::int64_t x_stride, y_stride;  ///< bytes between rows
  std::int64_t n;
  fold::Scale<float> scale;
  Empty empty;
};

/// One value of all threads' values, for every thread. The caller waits at a barrier between two calls.
template <class T, class Merge>
__device__ T across_block(T (&shared)[kLadderThreads], T own, const Merge& merge) {
  const int thread = static_cast<int>(threadIdx.x);
  shared[thread] = own;
  for (int stride = kLadderThreads / 2; stride > 0; stride /= 2) {
    __syncthreads();
    if (thread < stride) shared[thread] = merge(shared[thread], shared[thread + stride]);
  }
  __syncthreads();
  return shared[0];
}

template <class E>
struct LadderRow {
  const E* x;
  E* y;
  __device__ explicit LadderRow(const LadderRows& r)
      : x(reinterpret_cast<const E*>(r.x + blockIdx.x * r.x_stride)),
        y(reinterpret_cast<E*>(r.y + blockIdx.x * r.y_stride)) {}
};

/// exp(x) / sum exp(x), two reads: overflows from scale x = 88.7 on.
template <class E>
__global__ void __launch_bounds__(kLadderThreads) softmax_naive(const __grid_constant__ LadderRows r) {
  begin_in_order();
  __shared__ float sums[kLadderThreads];
  const LadderRow<E> row(r);
  const float c = r.scale.c;
  float sum = 0.F;
  for (std::int64_t i = threadIdx.x; i < r.n; i += kLadderThreads)
    sum = S::add(sum, exp2f(S::mul(fold::widen(row.x[i]), c)));
  sum = across_block(sums, sum, [](float a, float b) { return S::add(a, b); });
  for (std::int64_t i = threadIdx.x; i < r.n; i += kLadderThreads)
    row.y[i] = fold::narrow<E>(S::div(exp2f(S::mul(fold::widen(row.x[i]), c)), sum));
}

/// The write that safe and online share: one more read.
template <class E>
__device__ void write_row(const LadderRows& r, const LadderRow<E>& row, const Lse::State& s) {
  const fold::Normaliser<float> norm(s);
  const bool fast = Lse::is_fast(s.m);
  for (std::int64_t i = threadIdx.x; i < r.n; i += kLadderThreads) {
    const float x = fold::widen(row.x[i]);
    float y = norm.empty && r.empty == Empty::zero ? 0.F : fold::canonical_nan<float>();
    if (norm.regular) {
      const float term = fast ? fold::term<S>(x, r.scale.c, Lse::narrow(s.m)) : fold::term_wide(x, r.scale.c, s.m);
      y = norm.probability(term, norm.reciprocal);
    }
    row.y[i] = fold::narrow<E>(y);
  }
}

/// The maximum, then the sum in its frame, then the write: three reads.
template <class E>
__global__ void __launch_bounds__(kLadderThreads) softmax_safe(const __grid_constant__ LadderRows r) {
  begin_in_order();
  __shared__ Lse::State states[kLadderThreads];
  const LadderRow<E> row(r);
  const Lse lse{r.scale};
  // lift() gives each element's frame; the larger of two states is all that this pass keeps.
  Lse::State top = Lse::identity();
  const auto larger = [](const Lse::State& a, const Lse::State& b) {
    return fold::is_nan(a.d) || (!fold::is_nan(b.d) && a.m > b.m) ? a : b;
  };
  for (std::int64_t i = threadIdx.x; i < r.n; i += kLadderThreads) top = larger(lse.lift(fold::widen(row.x[i])), top);
  top = across_block(states, top, larger);
  __syncthreads();
  Lse::State own{top.m, 0.F};
  const bool fast = Lse::is_fast(top.m);
  if (fold::Normaliser<float>(top).regular) {
    for (std::int64_t i = threadIdx.x; i < r.n; i += kLadderThreads) {
      const float x = fold::widen(row.x[i]);
      own.d =
          S::add(own.d, fast ? fold::term<S>(x, r.scale.c, Lse::narrow(top.m)) : fold::term_wide(x, r.scale.c, top.m));
    }
  } else {
    own = top;
  }
  write_row(r, row, across_block(states, own, [](const auto& a, const auto& b) { return Lse::merge(a, b); }));
}

/// Maximum and sum together, an element at a time (the fold's push), then the write: two reads.
template <class E>
__global__ void __launch_bounds__(kLadderThreads) softmax_online(const __grid_constant__ LadderRows r) {
  begin_in_order();
  __shared__ Lse::State states[kLadderThreads];
  const LadderRow<E> row(r);
  const Lse lse{r.scale};
  Lse::State own = Lse::identity();
  for (std::int64_t i = threadIdx.x; i < r.n; i += kLadderThreads) own = lse.push(own, fold::widen(row.x[i]));
  write_row(r, row, across_block(states, own, [](const auto& a, const auto& b) { return Lse::merge(a, b); }));
}

const char* refuses_all_but(const RowProblem& p, Rung own) {
  if (p.rung != own) return "a rung of the ladder: only when asked for";
  if (p.op != Op::softmax) return "this rung is softmax's";
  if (!(p.scale > 0)) return "this rung takes one scale > 0";
  if (p.rows > 0x7FFFFFFF) return "more rows than a grid has";
  return refuses_plain(p);
}

void run_ladder(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const auto stride = [&](Slot s) { return p.outer_rank == 0 ? 0 : p[s].strides[0]; };
  const LadderRows rows{
      p[Slot::x].data, p[Slot::y].data, stride(Slot::x), stride(Slot::y), p.n, fold::make_scale<float>(p.scale),
      p.empty};
  const Grid grid{p.rows, kLadderThreads};
  with_element(p[Slot::x].dtype, [&]<class E>() {
    switch (p.rung) {
      case Rung::naive: return launch("softmax_naive", softmax_naive<E>, grid, stream_of(context), rows);
      case Rung::safe: return launch("softmax_safe", softmax_safe<E>, grid, stream_of(context), rows);
      default: return launch("softmax_online", softmax_online<E>, grid, stream_of(context), rows);
    }
  });
}

}  // namespace

const RowKernel softmax_naive_kernel{
    "softmax_naive", [](const RowProblem& p, const Context&) { return refuses_all_but(p, Rung::naive); }, run_ladder,
    nullptr};
const RowKernel softmax_safe_kernel{"softmax_safe",
                                    [](const RowProblem& p, const Context&) { return refuses_all_but(p, Rung::safe); },
                                    run_ladder, nullptr};
const RowKernel softmax_online_kernel{
    "softmax_online", [](const RowProblem& p, const Context&) { return refuses_all_but(p, Rung::online); }, run_ladder,
    nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
