// fold_narrow_rows: logsumexp and states of narrow rows.
#include "cuda/kernels.hpp"
#include "cuda/narrow_launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) { return refuses_plain_narrow(p); }

void launch_rows(const RowProblem& p, const RowResults& to, Stream stream) {
  launch_narrow<false>(p, [&]<class E, int kN>(const LaneRows& rows, const Grid& grid) {
    launch("fold_narrow_rows", fold_narrow_rows<E, kN>, grid, stream, rows, to);
  });
}

void run(const RowProblem& p, const Context& context) { launch_rows(p, RowResults(p), stream_of(context)); }

}  // namespace

bool fold_narrow_rows_to(const RowProblem& p, const RowResults& to, Stream stream) {
  if (refuses_plain_narrow(p) != nullptr) return false;
  launch_rows(p, to, stream);
  return true;
}

const RowKernel fold_narrow_rows_kernel{"fold_narrow_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
