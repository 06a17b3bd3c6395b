// backward_cluster_stays: what it takes, and how it is launched.
#include "cuda/backward_stay.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured: softmax's gradients in 16 bit, of few instructions, are fastest by blocks of one warp, to 32 chunks.
constexpr StaySpread spread(std::int64_t chunks, Op op, std::size_t size, bool on_vectors) {
  static_assert(GradientShape<float>::kLanes == 32 && GradientShape<fold::BFloat16>::kLanes == 16);
  if (size == 4) return most_processors(chunks);
  SpreadNeeds needs{false, on_vectors, on_vectors ? 1.3 : 0.9, GradientShape<fold::BFloat16>::kWarpBytes};
  if (op == Op::softmax_backward) needs.one_warp = 1.02;
  return best_spread(chunks, needs);
}

const char* refuses(const RowProblem& p, const Context&) {
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (chunks <= (size_of(p[Slot::x].dtype) == 2 ? 3 : kMostBlockChunks)) return "a row fits a block, or few warps";
  if (p.n > 256 * lift::kChunk) return "a row is longer than a cluster holds (262144)";
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (traits.largest_cluster < 16) return "the device has no clusters of 16 blocks";
  if (p.rows * chunks < kFewestStayGradients * traits.processors) return "too few rows to stay for";
  return refuses_plain_gradient(p);
}

template <class E, template <class> class Gradient>
void launch_stays(const RowProblem& p, const Context& context) {
  using Shape = GradientShape<E>;
  const StaySpread s = spread(lift::chunk_count(p.n), p.op, sizeof(E), on_whole_vectors(p));
  const Scratch scratch(counter_bytes(p, context), context);
  const Stream stream = stream_of(context);
  PlainGradient rows = plain_gradient(p);
  rows.y.taken = reinterpret_cast<CounterWord*>(scratch.data());
  const int shared = s.warps * Shape::kWarpBytes + 2 * SumBox::bytes(static_cast<int>(lift::chunk_count(p.n)));
  launch_to_stay("backward_cluster_stays", backward_cluster_stays<E, Gradient, PlainGradient>, s, shared, p.rows,
                 stream, rows);
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.op == Op::softmax_backward) return launch_stays<E, fold::SoftmaxGradient>(p, context);
    launch_stays<E, fold::LogSoftmaxGradient>(p, context);
  });
}

}  // namespace

const RowKernel backward_cluster_stays_kernel{"backward_cluster_stays", refuses, run, counter_bytes};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
