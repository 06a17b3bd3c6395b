// backward_across_columns: what it takes, and how it is launched.
#include "cuda/backward_columns.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/elements.hpp"
#include "cuda/launch.hpp"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Neighbouring rows of a lane and warps of a block; no rows if none is possible.
struct Cut {
  int rows, warps, class_bits, part_bits, blocks, slots;
};
Cut cut_as(const RowProblem& p, int rows, int warps) {
  const unsigned held = kGradientBytes / (static_cast<unsigned>(rows) * static_cast<unsigned>(size_of(p[Slot::x].dtype)));
  const auto longest = static_cast<unsigned>(std::min<std::int64_t>(p.n, lift::kChunk));
  const int residue_bits = std::countr_zero(std::bit_ceil((longest + held - 1) / held));
  const int class_bits = std::min(residue_bits, std::countr_zero(static_cast<unsigned>(warps)));
  const int part_bits = residue_bits - class_bits;
  const std::int64_t blocks = std::min<std::int64_t>(lift::chunk_count(p.n), kGradientBlocks + 1) << part_bits;
  return {rows, warps, class_bits, part_bits, static_cast<int>(blocks), static_cast<int>((longest - 1) >> residue_bits) + 1};
}
/// Words of 8 bytes, by the smaller blocks, while a cluster holds a row so; else of 4.
Cut cut_of(const RowProblem& p) {
  const int size = static_cast<int>(size_of(p[Slot::x].dtype));
  const int most = std::min(traits_of(DeviceOf(p[Slot::x].data).device()).largest_cluster, kGradientBlocks);
  for (const int bytes : {8, 4})
    for (const int warps : {4, 8}) {
      if (bytes < size || (bytes == 4 && warps == 4) || !lies_in_words(p, bytes / size)) continue;
      const Cut cut = cut_as(p, bytes / size, warps);
      if (cut.blocks <= most) return cut;
    }
  return {};
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_across(p)) return why;
  if (p[Slot::dy].dtype != p[Slot::x].dtype) return "y and dy have different dtypes";
  const int size = static_cast<int>(size_of(p[Slot::x].dtype));
  if (!lies_in_words(p, 4 / size)) return "neighbouring rows do not lie in words of 4 bytes";
  return cut_of(p).rows == 0 ? "a row is longer than a cluster's shared memory holds" : nullptr;
}

template <class E, template <class> class Gradient, int kRows, int kWarps>
void launch_columns(const RowProblem& p, const Cut& cut, Stream stream) {
  const Operand &y = p[Slot::x], &dy = p[Slot::dy], &dx = p[Slot::y];
  const auto outer = [&](const Operand& o) { return outer_of(p) == 1 ? 0 : o.strides[0]; };
  const unsigned across = static_cast<unsigned>(inner_of(p)) / kRows;
  const unsigned words = across * static_cast<unsigned>(outer_of(p));
  const BackwardColumns columns{.y = y.data,
                                .dy = dy.data,
                                .dx = dx.data,
                                .y_axis = y.axis_stride,
                                .y_outer = outer(y),
                                .dy_axis = dy.axis_stride,
                                .dy_outer = outer(dy),
                                .dx_axis = dx.axis_stride,
                                .dx_outer = outer(dx),
                                .n = static_cast<int>(p.n),
                                .across = across,
                                .words = words,
                                .class_bits = cut.class_bits,
                                .part_bits = cut.part_bits,
                                .slots = cut.slots,
                                .scale = static_cast<float>(p.scale)};
  const int words_of_block = 32 * kWarps >> cut.class_bits;
  const int stage = 2 * cut.slots * kWarps * 32 * kRows * static_cast<int>(sizeof(E));
  const int shares = cut.blocks > 1 ? cut.blocks * static_cast<int>(sizeof(GradientPart<kRows>)) : 0;
  const std::int64_t tiles = (std::int64_t{words} + words_of_block - 1) / words_of_block;
  launch("backward_across_columns", backward_across_columns<E, Gradient, kRows, kWarps>,
         {tiles * cut.blocks, kWarps * 32, cut.blocks, stage + shares}, stream, columns);
}

template <class E, template <class> class Gradient>
void launch_cut(const RowProblem& p, Stream stream) {
  constexpr int kOfWord = 4 / static_cast<int>(sizeof(E));
  const Cut cut = cut_of(p);
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
