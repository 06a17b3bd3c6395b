// fold_hidden_rows: what it takes, and how it is launched.
#include "cuda/fold_hidden_rows.cuh"

#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const Operand& result_of(const RowProblem& p) { return p[p.op == Op::state ? Slot::states : Slot::row]; }

/// Measured.
bool is_faster(const RowProblem& p) {
  const bool wide = size_of(p[Slot::x].dtype) == 4, on_vectors = on_whole_vectors(p);
  if (p.n < 18) return false;
  if (p[Slot::mask].given) return !(wide && on_vectors && p.n >= 64 && std::has_single_bit(static_cast<unsigned>(p.n)));
  return p.n < (on_vectors ? 60 : wide ? 100 : 500);
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= 0x7FFFFFFF) return "more rows than a grid has";
  if (p[Slot::scales].given) return "a scale a row";
  if (!one_stride(p, result_of(p))) return "results are not one stride apart";
  if (const char* why = refuses_hidden_problem(p)) return why;
  return is_faster(p) ? nullptr : "other kernels are faster";
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  RowResults to(p);
  to.stride = *one_stride(p, result_of(p));
  with_element(p[Slot::x].dtype, [&]<class E>() {
    launch_hidden_rows<E, 1, 8>(p, [&]<class Tile, int kVectors>(const HiddenRows& rows, const Grid& grid) {
      launch("fold_hidden_rows", fold_hidden_rows<E, Tile, kVectors>, grid, stream_of(context), rows, to);
    });
  });
}

}  // namespace

const RowKernel fold_hidden_rows_kernel{"fold_hidden_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
