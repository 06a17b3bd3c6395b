// The warp-groups that multiply, and the kernel.
#pragma once

#include "cuda/attention_sm90_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A 4 x 4 transpose of words among the 4 lanes of a quad: lane t's x[j] becomes lane j's x[t].
__device__ __forceinline__ void transpose_quad(std::uint32_t (&x)[4], int lane) {
  const bool odd = lane & 1, upper = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t other = __shfl_xor_sync(~0U, odd ? x[i] : x[i + 1], 1);
    x[i] = odd ? other : x[i];
    x[i + 1] = odd ? x[i + 1] : other;
  }
  // Lane t has words t & ~1 and t | 1 of groups t % 2 and 2 + t % 2.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t other = __shfl_xor_sync(~0U, upper ? x[i] : x[i + 2], 2);
    x[i] = upper ? other : x[i];
    x[i + 2] = upper ? x[i + 2] : other;
  }
}

/// out and lse of a finished tile; a row without keys gives 0 and -inf.
template <class C>
__device__ __forceinline__ void write_tile(const AttentionProblem& p, const AttentionWork& w,
                                           const AttentionRows<C>& rows, int row, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float d = rows.d[r];
    d += __shfl_xor_sync(~0U, d, 1);
    d += __shfl_xor_sync(~0U, d, 2);
    float m = rows.m[r], factor = 1;
    if (p.sink.given) {
      const auto joined = join_sink(p, w.head, m, d);
      m = joined.m, d = joined.d, factor = joined.factor;
    }
    const float inverse = d == 0.F ? 0.F : factor / d;
    const bool exists = row + 8 * r < w.rows;
    const auto row_of = [&](const AttentionTensor& x) {
      return w.batch * x.batch + w.head * x.head + (w.begin + row + 8 * r) * x.token;
    };
    if (p.lse.given && lane % 4 == 0 && exists)
      put(p.lse.dtype, p.lse.data + row_of(p.lse) * static_cast<std::int64_t>(size_of(p.lse.dtype)),
          d == 0.F ? -INFINITY : (m + log2f(d)) * 0.693147181F);
    auto* to = reinterpret_cast<typename C::E*>(p.out.data) + row_of(p.out);
#pragma unroll
    for (int i = 0; i < C::kDv / 32; ++i) {
      std::uint32_t x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* pair = &rows.out[16 * i + 4 * j + 2 * r];
        x[j] = pack_two<typename C::E>(pair[0] * inverse, pair[1] * inverse);
      }
      transpose_quad(x, lane);
      const int column = 32 * i + 8 * (lane % 4);
      if (exists && column < p.dv) *reinterpret_cast<uint4*>(to + column) = make_uint4(x[0], x[1], x[2], x[3]);
    }
  }
}

/// Rows [0, from) and [to, kKeys) of a block of V, which the copy engine brought along and the sequence does not have,
/// become 0: 0 * NaN must not leak.
template <class C>
__device__ __forceinline__ void clear_outside(unsigned v, int from, int to, int thread, int group) {
  for (int i = thread; i < C::kKeys * 8 * C::kPanelsV; i += kWarpgroup) {
    const int row = i / 8 % C::kKeys;
    if (row < from || row >= to)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(v + i * 16), "r"(0) : "memory");
  }
  fence_for_copy();
  named_sync(8 + group, kWarpgroup);
}

/// The turn of a warp-group at the tensor cores: they are handed round, so that exponentials overlap others' products.
template <class C>
struct Turn {
  int group;
  __device__ __forceinline__ void open() const {
    if (group == C::kGroups - 1) named_arrive(1, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void take() const { named_sync(1 + group, 2 * kWarpgroup); }
  __device__ __forceinline__ void pass() const {
    named_arrive(group == C::kGroups - 1 ? 1 : 2 + group, 2 * kWarpgroup);
  }
};

/// One warp-group's walk over its block's tiles; kCaps: the problem has a soft cap.
template <class C, bool kCaps>
struct Consumer {
  using Rows = AttentionRows<C>;
  using Terms = typename Rows::Terms;
  const AttentionProblem& p;
  const AttentionCut& cut;
  const AttentionShared<C>& shared;
  int group;
  int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  bool has_strangers = p.packed || p.kv_lengths.given || p.kv_starts.given;
  Turn<C> turn{group};
  Ring<C::kStages> k_at{}, v_at{};
  int block = 0, first = 0;          ///< the scores at work are, or were last, of this block; the tile's last to come
  int clear_from = 0, clear_to = 0;  ///< of the tile's blocks, those that every row of the warp-group sees whole
  Rows rows;

  __device__ __forceinline__ void release(CopyBarrier& barrier) const {
    if (lane == 0) barrier.arrive();
  }
  __device__ __forceinline__ int row_of(const AttentionWork& w) const {
    return w.row + 64 * group + thread / 32 * 16 + lane / 4;
  }

  /// Sets out on a tile that has blocks.
  __device__ __forceinline__ void enter(const AttentionWork& w) {
    first = w.first;
    block = first + w.blocks - 1;
    const int row = w.row + 64 * group;
    clear_from = (first_key(cut, w, row + 63) + C::kKeys - 1) / C::kKeys;
    clear_to = last_key(cut, w, row) / C::kKeys;
  }
  __device__ __forceinline__ void await_k() const { shared.barriers->k_full[k_at.stage].wait(k_at.parity); }
  __device__ __forceinline__ void await_v(const AttentionWork& w, int at) const {
    shared.barriers->v_full[v_at.stage].wait(v_at.parity);
    if (!has_strangers) return;
    const int from = w.start - at * C::kKeys, to = w.end - at * C::kKeys;
    if (from > 0 || to < C::kKeys) clear_outside<C>(shared.v + v_at.stage * C::kVBytes, from, to, thread, group);
  }
  /// Both at once, of a V without strangers; a look at a barrier takes its time.
  __device__ __forceinline__ void await_both() const {
    CopyBarrier &k = shared.barriers->k_full[k_at.stage], &v = shared.barriers->v_full[v_at.stage];
    const bool has_k = k.is_complete(k_at.parity), has_v = v.is_complete(v_at.parity);
    if (!has_k) k.wait(k_at.parity);
    if (!has_v) v.wait(v_at.parity);
  }
  __device__ __forceinline__ void multiply_k() {
    issue_scores<C>(rows, shared.q + group * 64 * 128, shared.k + k_at.stage * C::kKBytes);
    products_commit();
  }
  __device__ __forceinline__ void multiply_v(const Terms& terms) {
    issue_out<C>(rows, terms, shared.v + v_at.stage * C::kVBytes);
    products_commit();
  }
  /// The scores of a block are in registers: its K is free, and after the last block's Q is, too.
  __device__ __forceinline__ void scores_arrived() {
    pin(rows.scores);
    release(shared.barriers->k_free[k_at.stage]);
    k_at.next();
    if (block == first) release(shared.barriers->q_free);
  }
  __device__ __forceinline__ void out_arrived(Terms& last_terms, Terms& terms) {
    products_wait<0>();
    pin(rows.out), pin(last_terms);
    if (C::kKeepsScores) pin(terms);
    release(shared.barriers->v_free[v_at.stage]);
    v_at.next();
  }
  __device__ __forceinline__ bool scores_to_terms(const AttentionWork& w, bool fresh, Terms& terms) {
    if constexpr (kCaps) soft_cap<C>(cut.cap, rows);
    if (block < clear_from || block >= clear_to) hide<C>(cut, w, rows, row_of(w), block * C::kKeys + 2 * (lane % 4));
    return exponentiate<C>(cut.scale_log2, rows, fresh, terms);
  }

  /// A tile's first block, with nothing else to multiply.
  __device__ __forceinline__ void start(const AttentionWork& w, Terms& terms) {
    enter(w);
    await_k();
    turn.take();
    pin(rows.scores);
    products_fence();
    multiply_k();
    turn.pass();
    products_wait<0>();
    scores_arrived();
    scores_to_terms(w, true, terms);
    if (!C::kKeepsScores) pack<C>(rows, terms);
  }

  /// The scores of the block that comes now, and, behind them in the tensor cores, the last block's terms times V.
  __device__ __forceinline__ void multiply(Terms& last_terms) {
    turn.take();
    pin(rows.scores), pin(last_terms), pin(rows.out);
    products_fence();
    multiply_k();
    multiply_v(last_terms);
    turn.pass();
    products_wait<1>();
    scores_arrived();
  }
  __device__ __forceinline__ void rescale_out() {
#pragma unroll
    for (int i = 0; i < C::kDv / 2; ++i) rows.out[i] *= rows.factor[i / 2 % 2];
  }
  static __device__ __forceinline__ void copy(const Terms& from, Terms& to) {
#pragma unroll
    for (int i = 0; i < C::kKeys / 4; ++i) to[i] = from[i];
  }

  /// Whether the next block is one of those that every row sees whole, and nothing is to be done to V or the scores.
  __device__ __forceinline__ bool is_clear() const { return block > clear_from && block + has_strangers <= clear_to; }
  /// One of those: nothing but the chain.
  __device__ __forceinline__ void step_clear(Terms& last_terms, Terms& terms) {
    const float scales[2] = {cut.scale_log2, cut.scale_log2};
    float shift[2], sum[2];
    bool wants[2];
    --block;
    await_both();
    multiply(last_terms);
    if constexpr (kCaps) soft_cap<C>(cut.cap, rows);
    kept_shift<C>(rows, shift);
    make_terms<C>(rows, scales, shift, terms, sum);
    const bool kept = keeps_shift(sum, wants);
    hold_for(fminf(sum[0], sum[1]));
    out_arrived(last_terms, terms);
    if (kept) {
      rows.d[0] += sum[0], rows.d[1] += sum[1];
    } else if (shift_anew<C>(cut.scale_log2, rows, wants, terms)) {
      rescale_out();
    }
  }

  /// All of those, one after the other. The four warps go through the same products: which of the two sets of terms is
  /// at work must not depend on what one of them finds.
  __device__ __forceinline__ void run_clear(Terms& last_terms, Terms& terms) {
    for (;;) {
      step_clear(last_terms, terms);
      if (block <= clear_from) return copy(terms, last_terms);
      step_clear(terms, last_terms);
      if (block <= clear_from) return;
    }
  }

  /// The next block, whatever is to be done to it.
  __device__ __forceinline__ void step(const AttentionWork& w, Terms& last_terms, Terms& terms) {
    await_k();
    await_v(w, block);
    --block;
    multiply(last_terms);
    const bool moved = scores_to_terms(w, false, terms);
    if (!C::kKeepsScores) hold_for(fminf(rows.d[0], rows.d[1]));
    out_arrived(last_terms, terms);
    if (!C::kKeepsScores) pack<C>(rows, terms);
    if (moved) rescale_out();
  }

  /// The last block's terms times V.
  __device__ __forceinline__ void finish(const AttentionWork& w, Terms& terms) {
    await_v(w, block);
    pin(terms), pin(rows.out);
    products_fence();
    multiply_v(terms);
    out_arrived(terms, terms);
  }

  __device__ __forceinline__ void fold_tile(const AttentionWork& w) {
    Terms terms[2];
    start(w, terms[0]);
    while (block > first) {
      if constexpr (!C::kKeepsScores) {
        step(w, terms[0], terms[0]);
      } else if (is_clear()) {
        run_clear(terms[0], terms[1]);
      } else {
        step(w, terms[0], terms[1]);
        copy(terms[1], terms[0]);
      }
    }
    finish(w, terms[0]);
  }

  __device__ __forceinline__ void run() {
    turn.open();
    for (int tile = 0;; ++tile) {
      shared.barriers->q_full.wait(tile % 2);
      const AttentionWork& w = shared.work[tile % AttentionShared<C>::kWorks];
      if (w.blocks < 0) return;
      rows.m[0] = rows.m[1] = -INFINITY;
      rows.d[0] = rows.d[1] = 0;
#pragma unroll
      for (float& o : rows.out) o = 0;
      if (w.blocks > 0) {
        fold_tile(w);
      } else {
        release(shared.barriers->q_free);
      }
      write_tile<C>(p, w, rows, row_of(w), lane);
    }
  }
};

template <class C, bool kCaps>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_forward_sm90(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                           const __grid_constant__ CUtensorMap v_map, const __grid_constant__ AttentionProblem p,
                           const __grid_constant__ AttentionCut cut) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  __shared__ AttentionBarriers<C> barriers;
  __shared__ AttentionWork work[AttentionShared<C>::kWorks];
  AttentionShared<C> shared;
  shared.q = (shared_address(memory) + 1023) / 1024 * 1024;
  shared.k = shared.q + C::kQBytes;
  shared.v = shared.k + C::kStages * C::kKBytes;
  shared.barriers = &barriers;
  shared.work = work;
  // From here on the compiler takes the address as it is; it would work it out anew at every use.
  asm volatile("" : "+l"(shared.barriers));
  if (threadIdx.x == 0) {
    prefetch(q_map), prefetch(k_map), prefetch(v_map);
    barriers.q_full.init(1), barriers.q_free.init(4 * C::kGroups);
    for (int i = 0; i < C::kStages; ++i) {
      barriers.k_full[i].init(1), barriers.v_full[i].init(1);
      barriers.k_free[i].init(4 * C::kGroups), barriers.v_free[i].init(4 * C::kGroups);
    }
    CopyBarrier::publish();
  }
  __syncthreads();
  const int group = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == 0) {
    give_registers<C::kProducerRegisters>();
    if (threadIdx.x == 0) Producer<C>{p, cut, q_map, k_map, v_map, shared}.run();
  } else {
    take_registers<C::kConsumerRegisters>();
    Consumer<C, kCaps>{p, cut, shared, group - 1}.run();
  }
#endif
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
