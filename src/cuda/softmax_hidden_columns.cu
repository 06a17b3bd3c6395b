// softmax_across_hidden: what it takes, and how it is launched.
#include "cuda/softmax_hidden_columns.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/elements.hpp"
#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// As many neighbouring rows a lane as lie in words of up to 8 bytes, of x and of y, and let a cluster hold a row; none
/// if none does.
ColumnCut cut_of(const RowProblem& p) {
  const int size = static_cast<int>(std::max(size_of(p[Slot::x].dtype), size_of(p[Slot::y].dtype)));
  const int most = most_column_blocks(p);
  for (int rows = 8 / size; rows >= 1; rows /= 2) {
    if (!lies_in_words(p, rows)) continue;
    const ColumnCut cut = cut_columns(p, rows, terms_of_lane(rows) / rows, kSoftmaxColumnWarps);
    if (cut.blocks <= most) return cut;
  }
  return {};
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_side_by_side(p)) return why;
  if (!may_be_apart(p[Slot::x].dtype, p[Slot::y].dtype)) return "no kernel for these dtypes";
  return cut_of(p).rows == 0 ? "a row is longer than a cluster's registers hold" : nullptr;
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
  const ColumnCut cut = cut_of(p);
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
