// The gradients of softmax and log_softmax of small problems.
#include "cuda/kernels.hpp"
#include "cuda/small_rows.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

void run(const RowProblem& p, const Context& context) {
  launch_small_rows(p, [&]<class Access, int kLanes, int kCount>(const Grid& grid) {
    with_gradient(p.op, [&]<template <class> class Gradient>() {
      launch("backward_small_rows", backward_small_rows<Access, kLanes, kCount, Gradient>, grid, stream_of(context),
             small_rows(p));
    });
  });
}

}  // namespace

const RowKernel backward_small_rows_kernel{"backward_small_rows", refuses_small, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
