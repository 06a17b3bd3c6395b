// backward_narrow_rows: the gradients of softmax and log_softmax of narrow rows.
#include "cuda/kernels.hpp"
#include "cuda/narrow_launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_plain_gradient(p)) return why;
  const PlainGradient g = plain_gradient(p);
  if (const char* why = refuses_narrow(p, g.y)) return why;
  const bool alike = g.dy.x_stride == g.y.x_stride && g.y.y_stride == g.y.x_stride;
  return alike ? nullptr : "rows of dy, or results, do not lie end to end";
}

template <template <class> class Gradient, bool kLog>
void run_by(const RowProblem& p, Stream stream) {
  const DeviceOf device(p[Slot::x].data);
  NarrowGradient g{plain_gradient(p), 1};
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_narrow<E, kLog>(p.n, [&]<int kN>() {
      g.each = each_of(p.rows, kNarrowEach<E, kN>, 2, traits_of(device.device()));
      narrow_grid<E>(g.rows.dy, g.each, 2);
      const Grid grid = narrow_grid<E>(g.rows.y, g.each, 2);
      launch("backward_narrow_rows", backward_narrow_rows<E, kN, Gradient>, grid, stream, g);
    });
  });
}

void run(const RowProblem& p, const Context& context) {
  const bool log = p.op == Op::log_softmax_backward;
  log ? run_by<fold::LogSoftmaxGradient, true>(p, stream_of(context))
      : run_by<fold::SoftmaxGradient, false>(p, stream_of(context));
}

}  // namespace

const RowKernel backward_narrow_rows_kernel{"backward_narrow_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
