// The gradients of rows whose results are known, by a second read: of cross_entropy and of entropy.
#pragma once

#include "cuda/elements.hpp"
#include "cuda/in_order.cuh"
#include "cuda/levels.cuh"
#include "cuda/loss.cuh"
#include "cuda/plain_chunk.cuh"

#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// v to f(v). The registers turn by one place a step, which keeps their names constant.
template <int kCount, class F>
__device__ __forceinline__ void for_each_turned(float (&v)[kCount], const F& f) {
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) {
    const float result = f(v[0]);
#pragma unroll
    for (int j = 0; j + 1 < kCount; ++j) v[j] = v[j + 1];
    v[kCount - 1] = result;
  }
}

inline lift::Factor factor_of(const LossProblem& p) { return lift::Factor(fold::make_scale<float>(p.scale).c); }

/// From the end: what the first read has left in the L2 cache is the end.
template <class E, class RowResult>
__global__ void __launch_bounds__(256, 4)
    write_plain_gradient(const __grid_constant__ LossProblem p, std::int64_t chunks, lift::Factor factor,
                         const RowResult* rows) {
  begin_in_order();
  using Elements = Tile<E, 32>;
  const std::int64_t item =
      p.rows * chunks - 1 - (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item < 0) return;
  const PlainChunk<E> chunk(p, item, chunks);
  const int n = chunk.n;
  const char* x = chunk.in(p, p[Slot::x]);
  char* dx = chunk.in(p, p[Slot::y]);
  const Elements tile(x);
  uint4 raw[Elements::kVectors];
  tile.gather(raw, x, n, lift::absent(factor.c));
  const RowResult row = rows[chunk.row];
  if (row.kind != RowKind::regular) {
    const float value = row.kind == RowKind::nan ? fold::canonical_nan<float>() : 0.F;
    for (int i = tile.lane; i < n; i += 32) reinterpret_cast<E*>(dx)[i] = fold::narrow<E>(value);
    return;
  }
  std::int64_t target = -1;
  float at_target = 0.F;
  if constexpr (std::is_same_v<RowResult, CrossEntropyRow<float>>) {
    target = row.target - chunk.begin;
    if (target >= 0 && target < n) {  // before dx, which may be x, is written
      const float element = fold::widen(reinterpret_cast<const E*>(x)[target]);
      at_target = row.gradient.at_target(factor.plain ? element : fold::Scalar<float>::mul(element, factor.times),
                                         weight_at<float>(p, p.shard.offset + row.target));
    }
  }
  float v[lift::kPerLane];
  const float low = tile.unpack(v, raw, n, factor).low;
  to_gradients(v, low, row);
  __syncwarp();
  tile.store_checked(dx, n, v);
  if (target < 0 || target >= n) return;
  __syncwarp();
  if (tile.lane == 0) reinterpret_cast<E*>(dx)[target] = fold::narrow<E>(at_target);
}

/// The gradients of rows whose results are known. `plain`: vectors may move it, where RowResult has a form for them.
/// items: of others, Items::results().
template <class T, class RowResult>
void write_gradients(const LossProblem& p, const RowResult* rows, bool plain, const GenericItems& items,
                     Stream stream) {
  if constexpr (requires(float(&v)[lift::kPerLane]) { to_gradients(v, 0.F, *rows); }) {
    if (plain && p.n > 0) {
      const std::int64_t chunks = lift::chunk_count(p.n);
      return with_element(p[Slot::x].dtype, [&]<class E>() {
        launch("write_plain_gradient", write_plain_gradient<E, RowResult>, {ceil_div(p.rows * chunks, 8), 256}, stream,
               p, chunks, factor_of(p), rows);
      });
    }
  }
  launch("write_loss_gradient", write_loss_gradient<T, RowResult>, warps_for(items.count), stream, p, items, rows);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
