// backward_double_rows and backward_double_cluster: what they take, and how they are launched.
#include "cuda/double_gradient.cuh"

#include "cuda/double_rows.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int kGradientWarps = 8;  ///< of a block, at most: y and dy are most of the registers

const char* refuses_gradient(const RowProblem& p) {
  if (const char* why = refuses_double_cluster(p, Rung::automatic)) return why;
  return fits_clusters(p, kGradientWarps) ? nullptr : "a row is longer than clusters hold with its gradient";
}

template <int kLanes, int kCount, class By>
void by_gradient(const RowProblem& p, const By& by) {
  with_gradient(p.op, [&]<template <class> class Gradient>() {
    by.template operator()<DoubleGradient<kLanes, kCount, Gradient>>();
  });
}

void run_backward_rows(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_double_shape(p.n, [&]<int kLanes, int kCount>() {
    by_gradient<kLanes, kCount>(p, [&]<class Elements>() {
      launch("backward_double_rows", backward_warp_rows<Elements>, grid_of_groups(p.rows, kLanes), stream_of(context),
             p);
    });
  });
}

void run_backward_cluster(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  by_gradient<32, lift::kPerLane>(p, [&]<class Elements>() {
    launch("backward_double_cluster", backward_cluster_row<Elements>, grid_of_clusters(p, 4, kGradientWarps),
           stream_of(context), p);
  });
}

}  // namespace

const RowKernel backward_double_rows_kernel{
    "backward_double_rows", [](const RowProblem& p, const Context&) { return refuses_double_rows(p, Rung::automatic); },
    run_backward_rows, nullptr};
const RowKernel backward_double_cluster_kernel{"backward_double_cluster",
                                               [](const RowProblem& p, const Context&) { return refuses_gradient(p); },
                                               run_backward_cluster, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
