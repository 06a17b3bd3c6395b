// The warp-groups that multiply, and the kernel.
#pragma once

#include "cuda/attention_sm90.cuh"
#include "cuda/generic.cuh"

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
__device__ __forceinline__ void write_tile(const AttentionProblem& p, const AttentionWork& w, AttentionRows<C>& rows,
                                           int row, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float d = rows.d[r];
    d += __shfl_xor_sync(~0U, d, 1);
    d += __shfl_xor_sync(~0U, d, 2);
    float m = rows.m[r], factor = 1;
    if (p.sink.given) {
      const auto at = w.head * p.sink.stride * static_cast<std::int64_t>(size_of(p.sink.dtype));
      const float t = element_at<float>(p.sink.dtype, p.sink.data + at) * 1.44269504F, joint = fmaxf(m, rintf(t));
      factor = m == -INFINITY ? 0.F : power_of_two(m - joint);
      d = __fmaf_rn(d, factor, joint == -INFINITY ? 0.F : exp2f(t - joint));
      m = joint;
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

template <class C>
__device__ __forceinline__ void consume(const AttentionProblem& p, const AttentionCut& cut,
                                        const AttentionShared<C>& shared, int group) {
  auto& barriers = *shared.barriers;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const unsigned q = shared.q + group * 64 * 128;
  const Turn<C> turn{group};
  turn.open();
  const auto release = [&](CopyBarrier& barrier) {
    if (lane == 0) barrier.arrive();
  };
  Ring<C::kStages> k_at, v_at;
  AttentionRows<C> rows;
  const bool has_strangers = p.packed || p.kv_lengths.given || p.kv_starts.given;
  for (int tile = 0;; ++tile) {
    barriers.q_full.wait(tile % 2);
    const AttentionWork& w = shared.work[tile % 2];
    int block = w.first + w.blocks - 1;
    const int first = w.first, group_row = w.row + 64 * group, row = group_row + thread / 32 * 16 + lane / 4;
    if (w.blocks < 0) return;
#pragma unroll
    for (float& o : rows.out) o = 0;
    rows.m[0] = rows.m[1] = -INFINITY;
    rows.d[0] = rows.d[1] = 0;
    if (w.blocks == 0) {
      release(barriers.q_free);
      write_tile<C>(p, w, rows, row, lane);
      continue;
    }
    // Blocks whose keys all rows of this warp-group see need no mask.
    const int clear_from = first_key(cut, w, group_row + 63), clear_to = last_key(cut, w, group_row);
    const auto scores_to_terms = [&](int at) {
      if (cut.cap_scale != 0.F) soft_cap<C>(cut.cap_scale, rows);
      const int key = at * C::kKeys;
      if (key < clear_from || key + C::kKeys > clear_to) hide<C>(cut, w, rows, row, key + 2 * (lane % 4));
      return exponentiate<C>(cut.scale_log2, rows);
    };
    const auto await_v = [&](int at) {
      barriers.v_full[v_at.stage].wait(v_at.parity);
      if (!has_strangers) return;
      const int from = w.start - at * C::kKeys, to = w.end - at * C::kKeys;
      if (from > 0 || to < C::kKeys) clear_outside<C>(shared.v + v_at.stage * C::kVBytes, from, to, thread, group);
    };
    // The scores of a block are in registers: its K is free, and after the last block's so is Q.
    const auto scores_arrived = [&](int at) {
      pin(rows.scores);
      release(barriers.k_free[k_at.stage]);
      if (at == first) release(barriers.q_free);
      k_at.next();
    };
    barriers.k_full[k_at.stage].wait(k_at.parity);
    turn.take();
    products_fence();
    issue_scores<C>(rows, q, shared.k + k_at.stage * C::kKBytes);
    products_commit();
    turn.pass();
    products_wait<0>();
    scores_arrived(block);
    scores_to_terms(block);
    pack<C>(rows);
    for (; block > first; --block) {
      barriers.k_full[k_at.stage].wait(k_at.parity);
      await_v(block);
      turn.take();
      pin(rows.scores), pin(rows.packed), pin(rows.out);
      products_fence();
      issue_scores<C>(rows, q, shared.k + k_at.stage * C::kKBytes);
      products_commit();
      issue_out<C>(rows, shared.v + v_at.stage * C::kVBytes);
      products_commit();
      turn.pass();
      products_wait<1>();
      scores_arrived(block - 1);
      const bool moved = scores_to_terms(block - 1);
      hold_for(fminf(rows.d[0], rows.d[1]));
      products_wait<0>();
      pin(rows.out), pin(rows.packed), pin(rows.scores);
      release(barriers.v_free[v_at.stage]);
      v_at.next();
      if (moved) {
#pragma unroll
        for (int i = 0; i < C::kDv / 2; ++i) rows.out[i] *= rows.factor[i / 2 % 2];
      }
      pack<C>(rows);
    }
    await_v(block);
    pin(rows.packed), pin(rows.out);
    products_fence();
    issue_out<C>(rows, shared.v + v_at.stage * C::kVBytes);
    products_commit();
    products_wait<0>();
    pin(rows.out);
    release(barriers.v_free[v_at.stage]);
    v_at.next();
    write_tile<C>(p, w, rows, row, lane);
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_forward_sm90(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                           const __grid_constant__ CUtensorMap v_map, const __grid_constant__ AttentionProblem p,
                           const __grid_constant__ AttentionCut cut) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  __shared__ AttentionBarriers<C> barriers;
  __shared__ AttentionWork work[2];
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
    if (threadIdx.x == 0) produce<C>(p, cut, q_map, k_map, v_map, shared);
  } else {
    take_registers<C::kConsumerRegisters>();
    consume<C>(p, cut, shared, group - 1);
  }
#endif
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
