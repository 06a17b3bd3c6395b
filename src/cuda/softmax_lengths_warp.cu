// softmax_lengths_warp: what it takes, and how it is launched.
#include "cuda/softmax_lengths_warp.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr std::int64_t kMostBlocks = 0x7FFFFFFF;

const char* refuses(const RowProblem& p, const Context&) {
  if (p.op != Op::softmax) return "log-probabilities are found from the elements once more";
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= kMostBlocks) return "more rows than a grid has";
  return refuses_cut_rows(p);
}

template <class Warp>
void launch_rows(const RowProblem& p, Stream stream) {
  constexpr int rows = Warp::kWarps * Warp::kPlaces;
  const Grid grid{(p.rows + rows - 1) / rows, 32 * Warp::kWarps};
  const auto scale = fold::make_scale<float>(p.scale);
  launch("softmax_lengths_warp", softmax_lengths_warp<Warp>, grid, stream,
         ShortRows{p, {}, scale, lift::Factor(scale.c)});
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Stream stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.n <= 128) return launch_rows<LengthsWarp<E, 4>>(p, stream);
    if (p.n <= 256) return launch_rows<LengthsWarp<E, 8>>(p, stream);
    if (p.n <= 512) return launch_rows<LengthsWarp<E, 16>>(p, stream);
    launch_rows<LengthsWarp<E, 32>>(p, stream);
  });
}

}  // namespace

const RowKernel softmax_lengths_warp_kernel{"softmax_lengths_warp", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
