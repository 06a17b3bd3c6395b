// backward_hidden_stays: which rows with masks backward_cluster_stays takes, and how it is launched.
#include "cuda/backward_stay.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

template <class E>
constexpr int kBytes = kStayBytes<E, HiddenStays>;

StaySpread spread(std::int64_t chunks, Op op, std::size_t size, bool on_vectors) {
  if (size == 4) return most_processors(chunks);
  SpreadNeeds needs{false, on_vectors, on_vectors ? 1.3 : 0.9, kBytes<fold::BFloat16>};
  if (op == Op::softmax_backward) needs.one_warp = 1.02;
  return best_spread(chunks, needs);
}

/// Measured.
bool is_faster(Op op, std::int64_t chunks, bool wide) {
  const bool log = op == Op::log_softmax_backward;
  if (wide) return chunks > (log ? 64 : 48) && (chunks <= 128 || chunks > 160);
  return chunks > (log ? 5 : 40);
}

const char* refuses(const RowProblem& p, const Context&) {
  if (p.rung != Rung::automatic) return "a gradient has no rungs";
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (!p[Slot::mask].given) return "rows have no mask";
  if (p[Slot::length].given || p.causal) return "rows are cut short";
  if (!is_faster(p.op, chunks, size_of(p[Slot::x].dtype) == 4)) return "clusters that do not stay are faster";
  if (p.n > 256 * lift::kChunk) return "a row is longer than a cluster holds (262144)";
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (traits.largest_cluster < 16) return "the device has no clusters of 16 blocks";
  if (p.rows * chunks < kFewestStayGradients * traits.processors) return "too few rows to stay for";
  return refuses_hidden_problem(p);
}

template <class E, template <class> class Gradient>
void launch_stays(const RowProblem& p, const Context& context) {
  const auto chunks = static_cast<int>(lift::chunk_count(p.n));
  const StaySpread s = spread(chunks, p.op, sizeof(E), on_whole_vectors(p));
  const Scratch scratch(counter_bytes(p, context), context);
  const HiddenProblem h = hidden_problem(p);
  HiddenStays rows{{h.rows, h.dy, static_cast<float>(p.scale)}, p, {h.rows, h.mask.begin, h.mask.end, 0}};
  rows.y.taken = reinterpret_cast<CounterWord*>(scratch.data());
  const int shared = s.warps * kBytes<E> + 2 * SumBox::bytes(chunks);
  launch_to_stay("backward_hidden_stays", backward_cluster_stays<E, Gradient, HiddenStays>, s, shared, p.rows,
                 stream_of(context), rows);
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.op == Op::softmax_backward) return launch_stays<E, fold::SoftmaxGradient>(p, context);
    launch_stays<E, fold::LogSoftmaxGradient>(p, context);
  });
}

}  // namespace

const RowKernel backward_hidden_stays_kernel{"backward_hidden_stays", refuses, run, counter_bytes};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
