// softmax_across_columns: what it takes, and how it is launched.
#include "cuda/softmax_columns.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/elements.hpp"
#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_across(p)) return why;
  return softmax_cut(p).rows == 0 ? "a row is longer than a cluster's registers hold" : nullptr;
}

template <class E, bool kLog, int kRows>
void launch_columns(const RowProblem& p, const ColumnCut& cut, Stream stream) {
  const SoftmaxColumns columns(p, cut.share);
  int bytes = cut.blocks > 1 ? cut.blocks * 32 * static_cast<int>(sizeof(AcrossPart<kRows, kLog>)) : 0;
  // Measured: float32 rows off 8 bytes that fill their lanes.
  if (sizeof(E) == 4 && kRows == 1 && p.n > lift::kChunk / 4 && cut.slots > 30) bytes = bytes_of_blocks(2, bytes);
  launch("softmax_across_columns", softmax_across_columns<E, kLog, kRows>,
         {blocks_of(cut), kSoftmaxColumnWarps * 32, cut.blocks, bytes}, stream, columns);
}

template <class E, bool kLog>
void launch_cut(const RowProblem& p, Stream stream) {
  const ColumnCut cut = softmax_cut(p);
  with_word_rows<E>(cut.rows, [&]<int kRows>() { launch_columns<E, kLog, kRows>(p, cut, stream); });
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.op == Op::log_softmax) return launch_cut<E, true>(p, stream_of(context));
    launch_cut<E, false>(p, stream_of(context));
  });
}

}  // namespace

const RowKernel softmax_across_columns_kernel{"softmax_across_columns", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
