// softmax along an outer axis: what the kernel takes, and how it is launched.
#include "cuda/across.cuh"

#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"

#include <algorithm>
#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (p.rung != Rung::automatic) return "another rung is asked for";
  if (p.is_double()) return "float64 has no tiles";
  if (p[Slot::offsets].given) return "rows are ragged";
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  if (y.dtype != x.dtype) return "x and y have different dtypes";
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  const auto last = static_cast<std::size_t>(std::max(p.outer_rank - 1, 0));
  if (p.outer_rank == 0 || p.n < 2 || x.strides[last] != size || y.strides[last] != size)
    return "rows do not lie side by side";
  if (p.rows >= std::int64_t{0x7FFFFFFF} * 16) return "more rows than a grid has";
  return nullptr;
}

template <class E, bool kLog, int kColumns>
void launch_across(const RowProblem& p, int classes, cudaStream_t stream) {
  const AcrossShare share{classes, std::countr_zero(static_cast<unsigned>(classes)),
                          kAcrossThreads / (kColumns * classes)};
  const std::int64_t rows = std::int64_t{kColumns} * share.tiles;
  launch("softmax_across_rows", softmax_across_rows<E, kLog, kColumns>, {(p.rows + rows - 1) / rows, kAcrossThreads},
         stream, p, share);
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const cudaStream_t stream = stream_of(context);
  const auto groups = static_cast<unsigned>((std::min<std::int64_t>(p.n, lift::kChunk) + 31) / 32);
  const int classes = static_cast<int>(std::bit_ceil(groups));
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const auto go = [&](auto log) {
      // Columns of 32 rows fill a request, those of 16 a block's threads where a row needs many of them.
      if (classes <= 16) return launch_across<E, log.value, 32>(p, classes, stream);
      launch_across<E, log.value, 16>(p, classes, stream);
    };
    if (p.op == Op::log_softmax) return go(std::true_type{});
    go(std::false_type{});
  });
}

}  // namespace

const RowKernel softmax_across_rows_kernel{"softmax_across_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
