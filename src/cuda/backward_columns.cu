// backward_across_columns: what it takes, and how it is launched.
#include "cuda/backward_columns.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/elements.hpp"
#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Words of 8 bytes, by the smaller blocks, while a cluster holds a row so; else of 4. No rows if none does.
ColumnCut cut_of(const RowProblem& p) {
  const int size = static_cast<int>(size_of(p[Slot::x].dtype)), most = most_column_blocks(p);
  for (const int bytes : {8, 4})
    for (const int warps : {4, 8}) {
      if ((bytes == 4 && warps == 4) || !lies_in_words(p, bytes / size)) continue;
      const ColumnCut cut = cut_columns(p, bytes / size, kGradientBytes / bytes, warps);
      if (cut.blocks <= most) return cut;
    }
  return {};
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_across(p)) return why;
  if (p[Slot::dy].dtype != p[Slot::x].dtype) return "y and dy have different dtypes";
  if (!lies_in_words(p, 4 / static_cast<int>(size_of(p[Slot::x].dtype))))
    return "neighbouring rows do not lie in words of 4 bytes";
  return cut_of(p).rows == 0 ? "a row is longer than a cluster's shared memory holds" : nullptr;
}

template <class E, template <class> class Gradient, int kRows, int kWarps>
void launch_columns(const RowProblem& p, const ColumnCut& cut, Stream stream) {
  const Operand &y = p[Slot::x], &dy = p[Slot::dy], &dx = p[Slot::y];
  const auto outer = [&](const Operand& o) { return outer_of(p) == 1 ? 0 : o.strides[0]; };
  const BackwardColumns columns{.y = y.data,
                                .dy = dy.data,
                                .dx = dx.data,
                                .y_axis = y.axis_stride,
                                .y_outer = outer(y),
                                .dy_axis = dy.axis_stride,
                                .dy_outer = outer(dy),
                                .dx_axis = dx.axis_stride,
                                .dx_outer = outer(dx),
                                .share = cut.share,
                                .slots = cut.slots,
                                .scale = static_cast<float>(p.scale)};
  const int stage = 2 * cut.slots * kWarps * 32 * kRows * static_cast<int>(sizeof(E));
  const int shares = cut.blocks > 1 ? cut.blocks * static_cast<int>(sizeof(GradientPart<kRows>)) : 0;
  launch("backward_across_columns", backward_across_columns<E, Gradient, kRows, kWarps>,
         {blocks_of(cut), kWarps * 32, cut.blocks, stage + shares}, stream, columns);
}

template <class E, template <class> class Gradient>
void launch_cut(const RowProblem& p, Stream stream) {
  constexpr int kOfWord = 4 / static_cast<int>(sizeof(E));
  const ColumnCut cut = cut_of(p);
  if (cut.rows == kOfWord) return launch_columns<E, Gradient, kOfWord, 8>(p, cut, stream);
  cut.warps == 4 ? launch_columns<E, Gradient, 2 * kOfWord, 4>(p, cut, stream)
                 : launch_columns<E, Gradient, 2 * kOfWord, 8>(p, cut, stream);
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.op == Op::softmax_backward) return launch_cut<E, fold::SoftmaxGradient>(p, stream_of(context));
    launch_cut<E, fold::LogSoftmaxGradient>(p, stream_of(context));
  });
}

}  // namespace

const RowKernel backward_across_columns_kernel{"backward_across_columns", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
