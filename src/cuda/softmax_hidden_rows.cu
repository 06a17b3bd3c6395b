// softmax_hidden_rows: what it takes, and how it is launched.
#include "cuda/softmax_hidden_rows.cuh"

#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured: float32 with masks, but for the shortest rows; with lengths the shortest of the others.
bool is_faster(const RowProblem& p) {
  if (size_of(p[Slot::x].dtype) != 4) return false;
  if (p[Slot::mask].given) return p.n >= (p.op == Op::softmax ? 12 : 24);
  return refuses_uncut(p) == nullptr && p.n >= 12 && p.n < 60;
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  if (!is_faster(p)) return "other kernels are faster";
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= 0x7FFFFFFF) return "more rows than a grid has";
  return refuses_hidden_problem(p);
}

template <bool kLog>
void launch_rows(const RowProblem& p, Stream stream) {
  launch_hidden_rows<float, 1>(p, [&]<class Tile, int kVectors>(const HiddenRows& rows, const Grid& grid) {
    launch("softmax_hidden_rows", softmax_hidden_rows<Tile, kVectors, kLog>, grid, stream, rows);
  });
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  p.op == Op::log_softmax ? launch_rows<true>(p, stream_of(context)) : launch_rows<false>(p, stream_of(context));
}

}  // namespace

const RowKernel softmax_hidden_rows_kernel{"softmax_hidden_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
