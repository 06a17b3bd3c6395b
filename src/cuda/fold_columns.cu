// fold_across_columns: what it takes, and how it is launched.
#include "cuda/fold_columns.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/elements.hpp"
#include "cuda/levels.cuh"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_across(p)) return why;
  if (lift::chunk_count(p.n) > 0x7FFFFFFF) return "a row has more chunks than are counted";
  return refuses_chunks(p);
}

std::size_t workspace(const RowProblem& p, const Context&) {
  return lift::chunk_count(p.n) > 1 ? state_bytes<fold::LogSumExp<float>::State>(p) : 0;
}

/// Neighbouring rows of a lane: of 16 bit four, else two, where they lie in a word.
int rows_of(const RowProblem& p) {
  if (size_of(p[Slot::x].dtype) == 2 && lies_in_words(p, 4)) return 4;
  return lies_in_words(p, 2) ? 2 : 1;
}

FoldColumns columns_of(const RowProblem& p, const DeviceTraits& traits) {
  const Operand& x = p[Slot::x];
  const RowResults results(p);
  const Operand& to = p[results.is_state ? Slot::states : Slot::row];
  const auto rows = static_cast<unsigned>(rows_of(p));
  const bool single = outer_of(p) == 1;
  const std::int64_t chunks = lift::chunk_count(p.n);
  const unsigned across = static_cast<unsigned>(inner_of(p)) / rows;
  const unsigned words = across * static_cast<unsigned>(outer_of(p)), tiles = (words + 31) / 32;
  const auto items = tiles * static_cast<unsigned>(chunks);
  const int residue_bits = residue_bits_of(p, column_run(rows_of(p)));
  // As few warps to a chunk as leave no processor idle.
  const std::int64_t wanted = std::int64_t{traits.processors} * 64;
  const int most = std::min(residue_bits, std::countr_zero(static_cast<unsigned>(kColumnWarps)));
  int class_bits = 0;
  while (class_bits < most && std::int64_t{items} << class_bits < wanted) ++class_bits;
  return {.x = x.data,
          .axis = x.axis_stride,
          .outer = single ? 0 : x.strides[0],
          .n = p.n,
          .across = across,
          .words = words,
          .tiles = tiles,
          .items = items,
          .chunks = static_cast<int>(chunks),
          .residue_bits = residue_bits,
          .class_bits = class_bits,
          .c = fold::make_scale<float>(p.scale).c,
          .states = nullptr,
          .results = results,
          .to_outer = single ? 0 : to.strides[0],
          .to_row = to.strides[static_cast<std::size_t>(p.outer_rank - 1)]};
}

template <class E, int kRows>
void launch_columns(const FoldColumns& f, Stream stream) {
  launch("fold_across_columns", fold_across_columns<E, kRows>,
         {ceil_div(std::int64_t{f.items} << f.class_bits, kColumnWarps), kColumnWarps * 32}, stream, f);
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  FoldColumns f = columns_of(p, traits_of(device.device()));
  const Scratch scratch(workspace(p, context), context);
  f.states = reinterpret_cast<fold::LogSumExp<float>::State*>(scratch.data());
  const Stream stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const int rows = rows_of(p);
    if constexpr (sizeof(E) == 2)
      if (rows == 4) return launch_columns<E, 4>(f, stream);
    rows == 2 ? launch_columns<E, 2>(f, stream) : launch_columns<E, 1>(f, stream);
  });
  if (f.chunks > 1) merge_to_results<float>(p, f.states, stream);
}

}  // namespace

const RowKernel fold_across_columns_kernel{"fold_across_columns", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
