// What a result of x's shape holds where no ragged row is, for kernels that do not write it themselves.
#include "cuda/outside.cuh"

#include "cuda/in_order.cuh"
#include "cuda/launch.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int kThreads = 256;

template <class S>
__global__ void __launch_bounds__(kThreads) fill_outside(const __grid_constant__ RowProblem p, S bits) {
  begin_in_order();
  fill_outside_rows(p, bits);
}

}  // namespace
}  // namespace cuda

void cuda_fill_outside(const RowProblem& p, const Context& context) {
  const cuda::DeviceOf device(p[Slot::y].data);
  const std::int64_t most = (p.ragged_elements + cuda::kThreads - 1) / cuda::kThreads;
  const std::int64_t blocks = std::min<std::int64_t>(most, cuda::traits_of(device.device()).processors);
  cuda::with_outside_bits(p, [&]<class S>(S bits) {
    cuda::launch("fill_outside", cuda::fill_outside<S>, {blocks, cuda::kThreads}, cuda::stream_of(context), p, bits);
  });
}

}  // namespace v0
}  // namespace softfold
