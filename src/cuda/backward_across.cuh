// The gradients of softmax and log_softmax along an outer axis, of plain rows: a block some tiles, a cluster those of
// rows of more than 1024 elements, a chunk a block.
#pragma once

#include "cuda/across.cuh"
#include "cuda/in_order.cuh"
#include "softfold/fold/gradient.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A thread has kRows rows beside each other, kAcrossCount elements of each. kCluster: rows of more than a chunk.
template <class E, template <class> class Gradient, int kRows, bool kCluster>
__global__ void __launch_bounds__(kAcrossThreads, 2)
    backward_across_rows(const __grid_constant__ RowProblem p, const __grid_constant__ AcrossShare share) {
  begin_in_order();
  using Rows = AcrossRows<E, false, kRows>;
  using Words = typename Rows::Words;
  constexpr int kCount = Rows::kCount;
  __shared__ typename Rows::Storage storage;
  const int size = share.columns * share.classes, tiles = kAcrossThreads / size;
  const unsigned blocks = kCluster ? lift::Cluster::size() : 1U;
  if (kCluster) lift::Cluster::arrive_relaxed();
  const std::int64_t tile =
      static_cast<std::int64_t>(blockIdx.x / blocks) * tiles + static_cast<int>(threadIdx.x) / size;
  const std::int64_t row = (tile * share.columns + static_cast<int>(threadIdx.x) % share.columns) * kRows;
  // Threads without a row of their own take part with the last one and write nothing.
  const RowPlace place(p, min(row, p.rows - kRows));
  const Operand &y = p[Slot::x], &dy = p[Slot::dy], &dx = p[Slot::y];
  const Row r{y.data + place.offset(y), dx.data + place.offset(dx), nullptr, p.n, p.n, p.scale, 0};
  const Rows rows(p, share, storage, r);
  typename Rows::Word raw[kCount], raw_dy[kCount];
  // Found anew where it is asked for: a register less between.
  const auto begin = [] { return std::int64_t{kCluster ? lift::Cluster::rank() : 0U} * lift::kChunk; };
  const int there = rows.load_words(raw, r.x, y.axis_stride, begin());
  rows.load_words(raw_dy, dy.data + place.offset(dy), dy.axis_stride, begin());
  const auto elements = [&](int j, float(&a)[kRows], float(&b)[kRows]) {
    Words::unpack(raw[j], a), Words::unpack(raw_dy[j], b);
  };
  float sums[kRows];
  lift::Extremes any[kRows];  // 1 where the row has anything in it
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    any[i] = {0.F, 0.F};
    sums[i] = Rows::add_own([&](int j) {
      float a[kRows], b[kRows];
      elements(j, a, b);
      if (j >= there) return fold::Sum<float>::identity();
      if (!(a[i] == Gradient<float>::nothing())) any[i].high = 1.F;
      return Gradient<float>::leaf(a[i], b[i]);
    });
  }
  rows.sums_over_classes(sums), rows.extremes_over_classes(any);
  GradientState<float> states[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) states[i] = {sums[i], any[i].high > 0.F ? 1U : 0U};
  if constexpr (kCluster) {
    lift::Cluster::wait();
    rows.template over_blocks<GradientFold<float>>(states);
  }
  if (row >= p.rows) return;
  rows.for_each_place(r.y + (begin() + rows.first) * dx.axis_stride, dx.axis_stride, [&](int j, char* to) {
    if (j >= there) return;
    float a[kRows], b[kRows];
    elements(j, a, b);
    E results[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Gradient<float> through{states[i].sum, static_cast<float>(p.scale)};
      results[i] = fold::narrow<E>(states[i].any != 0 ? through(a[i], b[i]) : 0.F);
    }
    if constexpr (kRows == 1) {
      *reinterpret_cast<E*>(to) = results[0];
    } else {
      struct alignas(2 * sizeof(E)) Two {
        E of[2];
      };
      *reinterpret_cast<Two*>(to) = {{results[0], results[1]}};
    }
  });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
