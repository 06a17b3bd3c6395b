// softmax_lengths_pairs: what it takes, and how it is launched.
#include "cuda/softmax_lengths_pairs.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured: shorter rows are faster by groups of lanes.
std::int64_t fewest_elements(std::size_t size) { return size == 4 ? 400 : 512; }

const char* refuses(const RowProblem& p, const Context&) {
  if (p.op != Op::softmax) return "log-probabilities are found from the elements once more";
  if (p.n > 2 * lift::kChunk) return "a row is longer than a warp holds (2048)";
  if (p.n < fewest_elements(size_of(p[Slot::x].dtype))) return "so short rows are faster by groups of lanes";
  if (p.rows > 0x7FFFFFFF) return "more rows than a grid has";
  if (fold::make_scale<float>(p.scale).c < 0.F) return "a negative scale";
  return refuses_cut(p);
}

template <class E, bool kOnVectors>
void launch_rows(const RowProblem& p, int processors, Stream stream) {
  // Measured; fewer where blocks would not fill the device.
  const int runs = runs_that_fill(p.n <= (sizeof(E) == 4 ? 700 : 1600) ? 4 : 2, p.rows, 1, processors);
  const int pitch = PairPlace<E>::bytes(p.n);
  const Grid grid{(p.rows + runs - 1) / runs, 32, 1, runs * pitch};
  launch("softmax_lengths_pairs", softmax_lengths_pairs<E, kOnVectors>, grid, stream, short_rows(p), pitch, runs);
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const int processors = traits_of(device.device()).processors;
  const Stream stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const bool whole = p.n * sizeof(E) % 16 == 0 && on_vectors(p, p[Slot::x]) && on_vectors(p, p[Slot::y]);
    if (whole) return launch_rows<E, true>(p, processors, stream);
    launch_rows<E, false>(p, processors, stream);
  });
}

}  // namespace

const RowKernel softmax_lengths_pairs_kernel{"softmax_lengths_pairs", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
