// softmax_across_tiles, as kernels.cc puts it in its place.
#pragma once

#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// softmax and log_softmax along an outer axis, of plain rows that the copy engine can read.
extern const RowKernel softmax_across_tiles_kernel;

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
