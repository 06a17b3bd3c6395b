// softmax_double_stays: what it takes, and how it is launched.
#include "cuda/double_stay.cuh"

#include "cuda/choose.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (!p.is_double() || p[Slot::y].dtype != DType::float64) return "elements and results are not float64";
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  const std::int64_t chunks = lift::chunk_count(p.n);
  // Measured: of one block a row, and by two reads, they are faster.
  if (chunks <= 8 || chunks > 128) return "a row is shorter or longer than clusters hold well";
  if (p[Slot::x].axis_stride != 8 || p[Slot::y].axis_stride != 8)
    return "the elements of a row do not lie side by side";
  if (const char* why = refuses_plain_rows(p)) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (traits.largest_cluster < 16) return "the device has no clusters of 16 blocks";
  const std::int64_t fewest = chunks <= 10 ? kFewestStayChunks : 24;  // measured
  return are_fewer_chunks(p, fewest) ? "too few rows to stay for" : nullptr;
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(counter_bytes(p, context), context);
  const auto stride = [&](Slot slot) { return p.outer_rank == 0 ? 0 : p[slot].strides[0]; };
  const DoubleStay rows{p, stride(Slot::x), stride(Slot::y), reinterpret_cast<CounterWord*>(scratch.data())};
  const std::int64_t chunks = lift::chunk_count(p.n);
  const StaySpread s = most_processors(chunks);
  const int shared = s.warps * DoubleLanding::kBytes + 2 * DoubleBox::bytes(static_cast<int>(chunks));
  const auto by = [&](auto kernel) {
    launch_to_stay("softmax_double_stays", kernel, s, shared, p.rows, stream_of(context), rows);
  };
  p.op == Op::log_softmax ? by(softmax_double_stays<true>) : by(softmax_double_stays<false>);
}

}  // namespace

const RowKernel softmax_double_stays_kernel{"softmax_double_stays", refuses, run, counter_bytes};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
