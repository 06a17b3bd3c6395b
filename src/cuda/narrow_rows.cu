// softmax_narrow_rows, and what it and the others of narrow rows take.
#include "cuda/kernels.hpp"
#include "cuda/narrow_launch.hpp"
#include "front/choice.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_plain_narrow(p)) return why;
  const PlainRows rows = plain_rows(p);
  return rows.y_stride == rows.x_stride ? nullptr : "results do not lie end to end";
}

template <bool kLog>
void run_by(const RowProblem& p, Stream stream) {
  launch_narrow<kLog>(p, [&]<class E, int kN>(const LaneRows& rows, const Grid& grid) {
    launch("softmax_narrow_rows", softmax_narrow_rows<E, kN, kLog>, grid, stream, rows);
  });
}

void run(const RowProblem& p, const Context& context) {
  p.op == Op::log_softmax ? run_by<true>(p, stream_of(context)) : run_by<false>(p, stream_of(context));
}

}  // namespace

const char* refuses_narrow(const RowProblem& p, const PlainRows& rows) {
  const auto size = static_cast<std::int64_t>(size_of(p[Slot::x].dtype));
  if (p.n < 2 || p.n * size > kLaneVectors * 16 || p.n * size % 16 == 0)
    return "a row is longer than a lane holds (128 bytes), or fills vectors";
  if (p.rows / 32 >= 0x7FFFFFFF) return "more rows than a grid has";
  if (rows.x_stride != p.n * size) return "rows do not lie end to end";
  const bool log = p.op == Op::log_softmax || p.op == Op::log_softmax_backward;
  if (log && !is_narrow_log(p.n)) return "log-probabilities of so many elements are faster by more lanes";
  const bool words =
      p.n > kNarrowExact<fold::BFloat16> || p.n * size % 4 != 0 || reinterpret_cast<std::uintptr_t>(rows.x) % 4 == 0;
  return words ? nullptr : "rows begin inside words";
}

const char* refuses_plain_narrow(const RowProblem& p) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (const char* why = refuses_plain(p)) return why;
  return refuses_narrow(p, plain_rows(p));
}

bool takes_narrow(const RowProblem& p) {
  const RowKernel& kernel = p[Slot::dy].given ? backward_narrow_rows_kernel : softmax_narrow_rows_kernel;
  return why_not(kernel, p, {}) == nullptr;
}

const RowKernel softmax_narrow_rows_kernel{"softmax_narrow_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
