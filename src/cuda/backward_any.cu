// The gradients of softmax and log_softmax of rows whose y, dy and dx are not alike: of other dtypes, otherwise
// aligned, or with elements that lie apart.
#include "cuda/any_elements.cuh"
#include "cuda/backward.cuh"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/plain_gradient.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// A row's y, dy and dx as AnyElements has elements.
template <class Elements, template <class> class Gradient>
struct AnyGradient : GradientSlots<Gradient, Elements::kWidth, Elements::kLanes, Elements::kCount> {
  static constexpr int kLanes = Elements::kLanes;

  Elements elements;

  __device__ __forceinline__ AnyGradient(const RowProblem& p, const char* row) : elements(p, row, 0) {}

  /// As GradientTile has them.
  __device__ __forceinline__ void load(const RowProblem& p, const BackwardRow& r, std::int64_t begin, int length) {
    const Operand& dy = p[Slot::dy];
    typename Elements::Words raw_dy;
    elements.load(p, r, begin, length, length);
    elements.fetch(raw_dy, dy, r.dy + begin * dy.axis_stride, length);
    Elements::widen(this->y, elements.raw, elements.dtype);
    Elements::widen(this->dy, raw_dy, dy.dtype);
    this->present = elements.present.words[0];
    this->hide();
  }
  __device__ __forceinline__ void write(const RowProblem& p, const BackwardRow& r, std::int64_t begin, int n,
                                        const lift::SumNode& row) {
    this->finish(row, static_cast<float>(r.scale));
    elements.template store<true>(p, r, begin, n, this->dy);
  }
};

/// Of plain rows those that are faster by these. Measured.
const char* refuses_short(const RowProblem& p, const Context& context) {
  const std::size_t size = size_of(p[Slot::x].dtype);
  const bool is_short = p.n < 8 || (size == 2 && p.n >= 10 && p.n <= 12);
  if (p.n >= 64) return "rows are longer than is faster an element at a time";
  if (const char* why = refuses_plain_gradient(p)) return why;
  const auto end = static_cast<std::int64_t>(static_cast<std::size_t>(p.n) * size);
  const PlainGradient g = plain_gradient(p);
  if (!is_short && g.y.x_stride == end && g.dy.x_stride == end) return "rows that lie end to end are faster by others";
  return refuses_any_rows(p, context);
}

void run_rows(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_any_rows(p, [&]<class Elements>() {
    const Grid grid = grid_of_rows<Elements>(p);
    with_gradient(p.op, [&]<template <class> class Gradient>() {
      launch("backward_any_rows", backward_warp_rows<AnyGradient<Elements, Gradient>>, grid, stream_of(context), p);
    });
  });
}

void run_cluster(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  // y and dy fill the registers: blocks of 8 warps leave room for another.
  const Grid grid = cluster_grid(p.rows, lift::chunk_count(p.n), traits_of(device.device()), kWarpsPerBlock / 2);
  with_any_chunks(p, [&]<class Elements>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() {
      launch("backward_any_cluster", backward_cluster_row<AnyGradient<Elements, Gradient>>, grid, stream_of(context),
             p);
    });
  });
}

void run_few(const RowProblem& p, const Context& context) {
  p.n <= lift::kChunk ? run_rows(p, context) : run_cluster(p, context);
}

}  // namespace

const RowKernel backward_any_short_kernel{"backward_any_short", refuses_short, run_rows, nullptr};
const RowKernel backward_any_rows_kernel{"backward_any_rows", refuses_any_rows, run_rows, nullptr};
const RowKernel backward_any_cluster_kernel{"backward_any_cluster", refuses_any_cluster, run_cluster, nullptr};
const RowKernel backward_any_few_kernel{"backward_any_few", refuses_any_few, run_few, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
