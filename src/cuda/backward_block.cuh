// The gradients of softmax and log_softmax of plain rows of 2 to 16 chunks: a block a row, a chunk a warp. y and dy fly
// to shared memory on their own, where other blocks' do while one waits.
#pragma once

#include "cuda/gradient_vectors.cuh"
#include "cuda/in_order.cuh"
#include "cuda/odd_rows.cuh"
#include "cuda/plain_gradient.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kGradientWarps = 16;
/// A thread's, so that several blocks find a place on a processor: a bound by threads and blocks would have to know the
/// row's length.
template <class E>
inline constexpr int kGradientRegisters = sizeof(E) == 2 ? 80 : 96;

template <class E, template <class> class Gradient>
__global__ void __maxnreg__(kGradientRegisters<E>) backward_block_rows(const __grid_constant__ PlainGradient p) {
  begin_in_order();
  constexpr int kSize = static_cast<int>(sizeof(E));
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kGradientWarps];
  __shared__ lift::SumNode sums[kGradientWarps];
  __shared__ CopyBarrier met;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = blockIdx.x, begin = static_cast<std::int64_t>(warp) * (lift::kChunk * kSize);
  const int n = min(static_cast<int>(p.y.n) - warp * lift::kChunk, lift::kChunk);
  const char *y_first = p.y.x + row * p.y.x_stride + begin, *dy_first = p.dy.x + row * p.dy.x_stride + begin;
  char* rooms = landing_memory + warp * (2 * kGradientRoom<E>);
  char *y_place = place_in_sectors(rooms, y_first), *dy_place = place_in_sectors(rooms + kGradientRoom<E>, dy_first);
  if (threadIdx.x == 0) met.init(static_cast<int>(blockDim.x) / 32);
  if (lane == 0) {
    landed[warp].init(2);
    CopyBarrier::publish();
    fetch_run<E>(y_place, landed[warp], y_first, n, {p.y.x_begin, p.y.x_end});
    fetch_run<E>(dy_place, landed[warp], dy_first, n, {p.dy.x_begin, p.dy.x_end});
  }
  __syncthreads();
  const char* y_at = y_place + reinterpret_cast<std::uintptr_t>(y_first) % 16;
  const char* dy_at = dy_place + reinterpret_cast<std::uintptr_t>(dy_first) % 16;
  landed[warp].wait(0);
  const auto put = [&]<int kVectors>() {
    using Chunk = OddTile<E, 32, kVectors, 0>;
    using Vectors = GradientVectors<E, Gradient, 32, kVectors>;
    const Chunk tile(y_at, n);
    typename Vectors::Vectors y, dy;
    tile.gather_only(y, y_at, Packed<E>::narrow(Gradient<float>::nothing()));
    tile.gather_only(dy, dy_at, Packed<E>::narrow(-0.F));
    lift::SumNode own = Vectors::sum(y, dy);
    Vectors::stay_packed(y), Vectors::stay_packed(dy);
    own.any = __any_sync(lift::kWholeWarp, own.any != 0) ? 1U : 0U;
    if (lane == 0) {
      sums[warp] = own;
      met.arrive();
    }
    met.wait(0);  // no barrier of the block: other warps may be in another form of this
    const lift::SumNode all = lift::sum_some([&](int i) { return sums[i]; }, static_cast<int>(blockDim.x) / 32);
    const Gradient<float> through{all.sum, p.scale};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) y[j] = Vectors::result(through, all.any != 0, y[j], dy[j]);
    tile.write_vectors(p.y.y + row * p.y.y_stride + begin, [&](int j) { return y[j]; });
  };
  // A row's last chunk may be short: with a quarter of the slots it costs half as much.
  constexpr int kVectors = lift::kPerLane * kSize / 16;
  const int slots = static_cast<int>(reinterpret_cast<std::uintptr_t>(y_first) % 16) / kSize + n;
  if (slots <= lift::kChunk / 4) return put.template operator()<kVectors / 4>();
  if (slots <= lift::kChunk / 2) return put.template operator()<kVectors / 2>();
  put.template operator()<kVectors>();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
