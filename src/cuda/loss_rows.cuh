// cross_entropy's loss and gradient of plain rows with one read from memory. Folding a row and writing its gradient are
// pieces of work of their own, handed out in one order: a row is written some hundred pieces after it was folded, when
// its state is known and its elements are still in the L2 cache. Nothing waits in registers, and no block for another.
#pragma once

#include "cuda/loss.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kPieceChunks = 8;            ///< of a piece of work: a chunk a warp
inline constexpr int kMostStreamedChunks = 1024;  ///< of a row

/// What the blocks share in global memory.
struct LossStream {
  fold::LogSumExp<float>::State* nodes;  ///< [rows][chunks]
  unsigned* folded;                      ///< [rows], chunks folded so far; 0 at first
  unsigned* ready;                       ///< [rows], 1 once the row's result is there; 0 at first
  unsigned long long* next;              ///< the next piece; 0 at first
  std::int64_t pieces;                   ///< of folding, and as many of writing
  std::int64_t ahead;                    ///< pieces that folding is ahead of writing: more than a row has
  int chunks;                            ///< of a row
};

/// The t-th piece of work: `ahead` to fold, then one to write and one to fold by turns, then the rest to write.
struct LossPiece {
  std::int64_t at;
  bool writes;
  __device__ __forceinline__ LossPiece(const LossStream& s, std::int64_t t) {
    const std::int64_t both = 2 * (s.pieces - s.ahead), after = t - s.ahead;
    writes = after >= 0 && (after >= both || after % 2 == 0);
    at = after < 0 ? t : after < both ? (writes ? after / 2 : s.ahead + after / 2) : after - both / 2;
  }
};

/// A chunk of a plain problem.
template <class E>
struct LossChunk {
  std::int64_t row, begin;
  int n;
  __device__ __forceinline__ LossChunk(const LossProblem& p, const LossStream& s, std::int64_t item) {
    row = item / s.chunks;
    begin = (item - row * s.chunks) * lift::kChunk;
    n = static_cast<int>(clamp(p.n - begin, lift::kChunk));
  }
  __device__ __forceinline__ char* in(const LossProblem& p, const Operand& o) const {
    return o.data + (p.outer_rank == 0 ? 0 : row * o.strides[0]) + begin * static_cast<std::int64_t>(sizeof(E));
  }
};

/// By the warp that folded a row's last chunk: the row's state from all of them, and what follows from it.
static __device__ __noinline__ void finish_streamed(const LossProblem& p, const LossStream& s,
                                                    const LossWork<float, CrossEntropyRow<float>>& work,
                                                    std::int64_t row) {
  using State = fold::LogSumExp<float>::State;
  const State* nodes = s.nodes + row * s.chunks;
  const State state = lift::merge_blocks(
      [&](int i) -> State {
        return {__ldcg(&nodes[i].m), __ldcg(&nodes[i].d)};
      },
      s.chunks);
  if (threadIdx.x % 32 != 0) return;
  const LossRow<float> r(p, row, state);
  finish_row(p, row, r, work);
  const Operand& states = p[Slot::states];
  if (states.given)
    *reinterpret_cast<StoredState*>(states.data + r.place.offset(states)) = {
        state.m, fold::canonical(static_cast<double>(state.d)), r.row.scale, fold::Real<float>::kDigits};
  asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(s.ready + row) : "memory");
}

template <class E>
__device__ __forceinline__ void fold_piece(const LossProblem& p, const LossStream& s, const lift::Factor& factor,
                                           const LossWork<float, CrossEntropyRow<float>>& work, std::int64_t item) {
  using Elements = Tile<E, 32>;
  const LossChunk<E> chunk(p, s, item);
  const char* first = chunk.in(p, p[Slot::x]);
  const Elements tile(first);
  uint4 raw[Elements::kVectors];
  float v[lift::kPerLane];
  tile.gather(raw, first, chunk.n, lift::absent(factor.c));
  const auto extremes = tile.unpack(v, raw, chunk.n, factor);
  const auto state = lift::WarpFold<Elements::kWidth>::terms(v, factor.c, extremes).state;
  unsigned before = 0;
  if (threadIdx.x % 32 == 0) {
    s.nodes[item] = state;
    __threadfence();
    before = atomicAdd(s.folded + chunk.row, 1U);
    __threadfence();
  }
  before = __shfl_sync(lift::kWholeWarp, before, 0);
  if (before + 1 == static_cast<unsigned>(s.chunks)) finish_streamed(p, s, work, chunk.row);
}

/// A row's gradient where nothing is special: a fast frame, no smoothing, factors that overflow nothing. In an even
/// frame the low bits of z are the exponent, as in lift::WarpFold.
struct StreamedGradient {
  float c, magic, lowest, dense, multiplier, pull, factor;

  __device__ __forceinline__ explicit StreamedGradient(const fold::CrossEntropyGradient<float>& g)
      : c(g.c), pull(g.pull), factor(g.factor) {
    using S = fold::Scalar<float>;
    const float m = fold::LogSumExp<float>::narrow(g.row.m);
    const int even = static_cast<int>(m) & ~1;
    magic = S::sub(fold::Real<float>::kMagic, static_cast<float>(even));
    multiplier = S::mul(g.row.reciprocal, static_cast<float>(even) == m ? 1.F : 0.5F);
    lowest = S::add(S::add(magic, m), fold::Real<float>::kFlush);
    dense = S::add(S::add(magic, m), -60.F);
  }
  static __device__ __forceinline__ bool fits(const fold::CrossEntropyGradient<float>& g) {
    return fold::LogSumExp<float>::is_fast(g.row.m) && g.spread == 0.F && fabsf(g.pull) <= 0x1p40F &&
           fabsf(g.factor) <= 0x1p40F && g.c > 0.F;
  }
  template <bool kDense>
  __device__ __forceinline__ float operator()(float x) const {
    using S = fold::Scalar<float>;
    const float z = S::fma(x, c, magic);
    const float power = fold::exp2_fraction<S>(S::fma(x, c, -S::sub(z, magic)));
    float y = S::mul(__int_as_float(__float_as_int(power) + (__float_as_int(z) << 23)), multiplier);
    if (!kDense && (!(z >= lowest) || y < fold::Real<float>::kSmallest)) y = 0.F;
    return S::mul(S::mul(pull, y), factor);
  }
};

template <class E>
__device__ __forceinline__ void write_piece(const LossProblem& p, const LossStream& s, const lift::Factor& factor,
                                            const CrossEntropyRow<float>* rows, std::int64_t item) {
  using Elements = Tile<E, 32>;
  const LossChunk<E> chunk(p, s, item);
  const char* first = chunk.in(p, p[Slot::x]);
  char* dx = chunk.in(p, p[Slot::y]);
  const Elements tile(first);
  uint4 raw[Elements::kVectors];
  tile.gather(raw, first, chunk.n, lift::absent(factor.c));
  if (threadIdx.x % 32 == 0) {
    unsigned ready = 0;
    while (ready == 0)
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ready) : "l"(s.ready + chunk.row) : "memory");
  }
  __syncwarp();
  const CrossEntropyRow<float>& row = rows[chunk.row];
  if (row.kind != RowKind::regular) {
    const float value = row.kind == RowKind::nan ? fold::canonical_nan<float>() : 0.F;
    for (int i = tile.lane; i < chunk.n; i += 32) reinterpret_cast<E*>(dx)[i] = fold::narrow<E>(value);
    return;
  }
  const fold::CrossEntropyGradient<float> gradient = row.gradient;
  const std::int64_t target = row.target - chunk.begin;
  const bool here = target >= 0 && target < chunk.n;
  float at_target = 0.F;
  if (here) {  // before dx, which may be x, is written
    const float x = fold::widen(reinterpret_cast<const E*>(first)[target]);
    at_target = gradient.at_target(factor.plain ? x : fold::Scalar<float>::mul(x, factor.times),
                                   weight_at<float>(p, target + chunk.begin));
  }
  float v[lift::kPerLane];
  const float low = tile.unpack(v, raw, chunk.n, factor).low;
  if (StreamedGradient::fits(gradient)) {
    const StreamedGradient of(gradient);
    if (__all_sync(lift::kWholeWarp, fold::Scalar<float>::fma(low, of.c, of.magic) >= of.dense)) {
#pragma unroll
      for (int i = 0; i < lift::kPerLane; ++i) v[i] = of.operator()<true>(v[i]);
    } else {
#pragma unroll
      for (int i = 0; i < lift::kPerLane; ++i) v[i] = of.operator()<false>(v[i]);
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < lift::kPerLane; ++i) {
      const float result = gradient(v[0], 1.F);
#pragma unroll
      for (int j = 0; j + 1 < lift::kPerLane; ++j) v[j] = v[j + 1];
      v[lift::kPerLane - 1] = result;
    }
  }
  __syncwarp();
  tile.store(dx, chunk.n, v);
  if (!here) return;
  __syncwarp();
  if (threadIdx.x % 32 == 0) reinterpret_cast<E*>(dx)[target] = fold::narrow<E>(at_target);
}

template <class E>
__global__ void __launch_bounds__(kPieceChunks * 32, 4)
    cross_entropy_stream(const __grid_constant__ LossProblem p, const __grid_constant__ LossStream s,
                         const __grid_constant__ LossWork<float, CrossEntropyRow<float>> work, lift::Factor factor) {
  __shared__ std::int64_t taken[2];
  const auto take = [&](int turn) {
    if (threadIdx.x == 0) taken[turn] = static_cast<std::int64_t>(atomicAdd(s.next, 1ULL));
  };
  take(0);
#pragma unroll 1
  for (int turn = 0;; turn ^= 1) {
    __syncthreads();
    const std::int64_t t = taken[turn];
    if (t >= 2 * s.pieces) return;
    take(turn ^ 1);
    const LossPiece piece(s, t);
    const std::int64_t item = piece.at * kPieceChunks + threadIdx.x / 32;
    if (item >= p.rows * s.chunks) continue;
    if (piece.writes) {
      write_piece<E>(p, s, factor, work.rows, item);
    } else {
      fold_piece<E>(p, s, factor, work, item);
    }
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
