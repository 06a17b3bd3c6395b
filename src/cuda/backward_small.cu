// The gradients of softmax and log_softmax of small problems.
#include "cuda/kernels.hpp"
#include "cuda/small_rows.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

void run(const RowProblem& p, const Context& context) {
  const auto by = [&](const char* name, const Grid& grid, auto kernel) {
    launch(name, kernel, grid, stream_of(context), small_rows(p));
  };
  with_gradient(p.op, [&]<template <class> class Gradient>() {
    launch_small<16>(
        p,
        [&]<class Access, int kLanes, int kCount>(const Grid& grid) {
          by("backward_small_rows", grid, backward_small_rows<Access, kLanes, kCount, Gradient>);
        },
        [&]<class Access, int kChunks>(const Grid& grid) {
          by("backward_small_blocks", grid, backward_small_blocks<Access, kChunks, Gradient>);
        });
  });
}

}  // namespace

const RowKernel backward_small_rows_kernel{"backward_small_rows", refuses_small, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
