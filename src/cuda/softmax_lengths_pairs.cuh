// softmax of rows up to 2048 that a length or a causal limit cuts short, wherever they begin: a warp a row, of which it
// folds no more than there is. softmax_lengths_warp is faster for what it takes.
#pragma once

#include "cuda/chunk_part.cuh"
#include "cuda/in_order.cuh"
#include "cuda/ragged_any.cuh"
#include "cuda/short_place.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A row, and how much of it exists.
struct alignas(16) CutPair {
  const char* x;
  char* y;
  int n;

  CutPair() = default;
  __device__ __forceinline__ CutPair(const RowProblem& p, std::int64_t row) {
    const RowPlace place(p, row);
    const Operand& given = p[Slot::length];
    std::int64_t length = p.n;
    if (given.given) length = clamp(integer_at(given.dtype, given.data + place.offset(given)), length);
    if (p.causal) length = clamp(place.last() + 1 + p.n - p.outer[static_cast<std::size_t>(p.outer_rank - 1)], length);
    x = p[Slot::x].data + place.offset(p[Slot::x]);
    y = p[Slot::y].data + place.offset(p[Slot::y]);
    n = static_cast<int>(length);
  }
};

template <class E, bool kOnVectors>
__global__ void __maxnreg__(sizeof(E) == 4 ? 128 : 112)
    softmax_lengths_pairs(const __grid_constant__ ShortRows rows, int pitch, int runs) {
  begin_in_order();
  using Part = ChunkPart<E, kOnVectors>;
  using S = fold::Scalar<float>;
  using Frame = RaisedFrame<E>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kPairRuns];
  __shared__ CutPair found[kPairRuns];
  __shared__ VectorMasks<E> masks;
  __shared__ AnyStorage any;
  const RowProblem& p = rows.p;
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * runs;
  const auto place_of = [&](int run, const char* x) { return place_in_sectors(landing_memory + run * pitch, x); };
  if (const auto run = static_cast<int>(threadIdx.x); run < runs && base + run < p.rows) {
    const CutPair own(p, base + run);
    found[run] = own;
    landed[run].init(1);
    CopyBarrier::publish();
    fetch_run<E>(place_of(run, own.x), landed[run], own.x, own.n, rows.x);
  }
  masks.make();
  __syncthreads();
  const unsigned mask_at = settled(shared_address(&masks));
  const float inverse = __fdividef(1.F, rows.factor.c);
  const auto all = static_cast<int>(p.n);
  unsigned left = 0;
#pragma unroll 1
  for (int run = 0; run < runs && base + run < p.rows; ++run) {
    const CutPair row = found[run];
    landed[run].wait(0);
    char* place = place_of(run, row.x);
    const char* x = place + reinterpret_cast<std::uintptr_t>(row.x) % 16;
    const int full = row.n > lift::kChunk ? 1 : 0;
    const Part part(x, row.n, 0, full);
    typename Part::Chunk front, back;
    float multiplier = 0.F;
    bool vanishes = false;
    if (row.n > 0) {
      const Frame frame(fold::widen(*reinterpret_cast<const E*>(x)), rows.factor.c, inverse);
      const auto terms = frame.terms();
      VectorExtremes<E> extremes(frame.filler);
      const auto see = [&](const uint4& raw) { extremes.see(raw); };
      part.find_terms(full, part.end, back, frame, terms, mask_at, see);
      float sum = Part::sum_of(back);
      if (full != 0) sum = S::add(part.fold_full(0, front, frame, terms, see), sum);
      const auto reach = frame.reach(extremes.all());
      if (!holds_part(reach, part, full, frame, mask_at)) {
        left |= 1U << run;
        continue;
      }
      multiplier = reciprocal_of_normal(sum);
      vanishes = Frame::may_vanish(reach.low, sum);
    } else {
#pragma unroll
      for (float& e : back) e = 0.F;
    }
    const auto scale = [&](typename Part::Chunk& v) { Part::to_results(v, multiplier, vanishes); };
    // What does not exist is written beside what does: its terms are 0.
    const bool has_second = all > lift::kChunk;
    uint4 before{};
    scale(back);
    if (full != 0) {
      scale(front);
      part.write_full(0, row.y, front, before);
    } else {
      part.write(0, part.shift + min(all, lift::kChunk), !has_second, row.y, back, before);
#pragma unroll
      for (float& e : back) e = 0.F;
    }
    if (has_second) part.write(1, part.shift + all - lift::kChunk, true, row.y, back, before);
  }
#pragma unroll 1
  for (int run = 0; left >> run != 0; ++run)
    if ((left >> run & 1U) != 0) any_row<E, RaggedLeaves::softmax>(p, base + run, any, 1);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
