// softmax_across_hidden: what it takes, and how it is launched.
#include "cuda/softmax_hidden_columns.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/elements.hpp"
#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_side_by_side(p)) return why;
  if (!may_be_apart(p[Slot::x].dtype, p[Slot::y].dtype)) return "no kernel for these dtypes";
  return softmax_cut(p).rows == 0 ? "a row is longer than a cluster's registers hold" : nullptr;
}

template <class E, class Y, bool kLog, int kRows>
void launch_columns(const RowProblem& p, const ColumnCut& cut, Stream stream) {
  const SoftmaxHiddenColumns columns{.of = SoftmaxColumns(p, cut.share), .hidden = HiddenColumns(p, kRows)};
  const int bytes = cut.blocks > 1 ? cut.blocks * 32 * static_cast<int>(sizeof(AcrossPart<kRows, kLog>)) : 0;
  launch("softmax_across_hidden", softmax_across_hidden<E, Y, kLog, kRows>,
         {blocks_of(cut), kSoftmaxColumnWarps * 32, cut.blocks, bytes}, stream, columns);
}

template <class E, class Y, bool kLog>
void launch_cut(const RowProblem& p, Stream stream) {
  using Wider = std::conditional_t<sizeof(E) < sizeof(Y), Y, E>;
  const ColumnCut cut = softmax_cut(p);
  with_word_rows<Wider>(cut.rows, [&]<int kRows>() { launch_columns<E, Y, kLog, kRows>(p, cut, stream); });
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  with_apart(p[Slot::x].dtype, p[Slot::y].dtype, [&]<class E, class Y>() {
    if (p.op == Op::log_softmax) return launch_cut<E, Y, true>(p, stream_of(context));
    launch_cut<E, Y, false>(p, stream_of(context));
  });
}

}  // namespace

const RowKernel softmax_across_hidden_kernel{"softmax_across_hidden", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
