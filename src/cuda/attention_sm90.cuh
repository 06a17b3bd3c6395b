// Attention forward on Hopper: one producer warp drives the copy engine, two or three warp-groups of 64 query rows each
// multiply, exponentiate and multiply again. While one warp-group is at its exponentials, the tensor cores have
// another's products. docs/performance.md has the steps that led here.
#pragma once

#include "cuda/attention_sequence.cuh"
#include "cuda/sm90/tma.cuh"
#include "cuda/sm90/warpgroup.cuh"
#include "cuda/sm90/wgmma.cuh"

#include <climits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// How a problem is cut, and its factors in base 2.
struct AttentionCut {
  int tiles, q_tiles;   ///< tiles in all; of a head
  int heads, sections;  ///< heads of all sequences, and the sections that they are cut into
  int left, right;      ///< query i sees keys i + shift - left .. i + shift + right; kNoBound
  float scale_log2;     ///< scale * log2(e), > 0; of a soft cap: cap * log2(e)
  float cap_scale;      ///< 0, or scale * 2 log2(e) / cap
  int* counter;         ///< how many tiles were taken beyond each block's first; null: they are dealt in turn
  static constexpr int kNoBound = INT_MAX;
};

/// A tile shape: E elements; kDk, kDv columns of k and v, multiples of 16; kGroups warp-groups of 64 query rows; kKeys
/// a step; kStages of K and of V.
template <class E_, int kDk_, int kDv_, int kGroups_, int kKeys_, int kStages_ = 2>
struct AttentionTile {
  using E = E_;
  static constexpr int kDk = kDk_, kDv = kDv_, kGroups = kGroups_, kKeys = kKeys_;
  static constexpr int kRows = 64 * kGroups, kThreads = kWarpgroup * (kGroups + 1);
  static constexpr int kStages = kStages_;
  static constexpr int kPanelsK = (kDk + 63) / 64, kPanelsV = (kDv + 63) / 64;
  static constexpr int kQPanel = kRows * 128, kKVPanel = kKeys * 128;  // bytes
  static constexpr int kQBytes = kPanelsK * kQPanel, kKBytes = kPanelsK * kKVPanel, kVBytes = kPanelsV * kKVPanel;
  static constexpr int kShared = kQBytes + kStages * (kKBytes + kVBytes) + 1024 + 128;
  static constexpr int kProducerRegisters = kGroups == 2 ? 40 : 32, kConsumerRegisters = kGroups == 2 ? 232 : 160;
};

/// The barriers between the producer and the warp-groups: "full" when the engine has written, "free" when every
/// consumer warp has read.
template <class C>
struct AttentionBarriers {
  CopyBarrier q_full, q_free, k_full[C::kStages], k_free[C::kStages], v_full[C::kStages], v_free[C::kStages];
};

/// A tile of query rows, and the blocks of keys that they see: the producer's note to the warp-groups.
struct AttentionWork {
  int batch, begin, head;  ///< row i of the sequence is row begin + i of q
  int kv_batch, kv_begin;  ///< key j is row kv_begin + j of k
  int row, rows;           ///< the tile's first row; the sequence has `rows`
  int start, end, shift;   ///< keys [start, end) exist; query i stands at key i + shift
  int first, blocks;       ///< blocks first + blocks - 1 down to first; blocks < 0: no more tiles
};

template <class C>
struct AttentionShared {
  unsigned q, k, v;  ///< addresses of the tiles
  AttentionBarriers<C>* barriers;
  AttentionWork* work;  ///< [2], of tiles in turn; written before q_full and read until the next q_free
};

/// Row i sees the keys [first_key, last_key).
__device__ __forceinline__ int first_key(const AttentionCut& cut, const AttentionWork& w, int i) {
  return cut.left == AttentionCut::kNoBound ? w.start : min(max(i + w.shift - cut.left, w.start), w.end);
}
__device__ __forceinline__ int last_key(const AttentionCut& cut, const AttentionWork& w, int i) {
  return cut.right == AttentionCut::kNoBound ? w.end : min(max(i + w.shift + cut.right + 1, w.start), w.end);
}

/// Tile `index`: heads in sections; in a section the longest tiles (the last rows, where a mask cuts the others) of all
/// its heads first.
template <class C>
__device__ __forceinline__ AttentionWork work_at(const AttentionProblem& p, const AttentionCut& cut, int index) {
  AttentionWork w{};
  if (index >= cut.tiles) {
    w.blocks = -1;
    return w;
  }
  const std::int64_t heads = cut.heads, sections = cut.sections, about = index / cut.q_tiles;
  const std::int64_t section = ((about + 1) * sections - 1) / heads;
  const int from = static_cast<int>(section * heads / sections),
            to = static_cast<int>((section + 1) * heads / sections);
  const int rest = index - from * cut.q_tiles, tile = rest / (to - from), head = from + rest - tile * (to - from);
  const int q_heads = static_cast<int>(p.q_heads), b = head / q_heads;
  const AttentionSequence s = sequence_of(p, b);
  w.batch = static_cast<int>(s.q_batch), w.begin = static_cast<int>(s.q_begin), w.head = head - b * q_heads;
  w.kv_batch = static_cast<int>(s.kv_batch), w.kv_begin = static_cast<int>(s.kv_begin);
  w.row = (cut.q_tiles - 1 - tile) * C::kRows, w.rows = static_cast<int>(s.tq);
  w.start = static_cast<int>(s.start), w.end = static_cast<int>(s.end), w.shift = w.end - w.rows;
  if (w.row >= w.rows) return w;
  const int low = first_key(cut, w, w.row), high = last_key(cut, w, min(w.row + C::kRows, w.rows) - 1);
  if (low >= high) return w;
  w.first = low / C::kKeys;
  w.blocks = (high + C::kKeys - 1) / C::kKeys - w.first;
  return w;
}

/// Which of the stages is next, and the parity of the phase that fills it.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

/// By one thread: brings every tile's Q and blocks of K and V, as far ahead as the stages allow.
template <class C>
__device__ __forceinline__ void produce(const AttentionProblem& p, const AttentionCut& cut, const CUtensorMap& q_map,
                                        const CUtensorMap& k_map, const CUtensorMap& v_map,
                                        const AttentionShared<C>& shared) {
  auto& barriers = *shared.barriers;
  Ring<C::kStages> k_at, v_at;
  const int group = static_cast<int>(p.q_heads / p.kv_heads), blocks = static_cast<int>(gridDim.x);
  for (int index = static_cast<int>(blockIdx.x), turn = 0;; ++turn) {
    const AttentionWork w = work_at<C>(p, cut, index);
    const int next = cut.counter == nullptr ? index + blocks : blocks + atomicAdd(cut.counter, 1);
    const int head = w.head / group;
    const auto load = [&](unsigned to, int bytes, int panels, const CUtensorMap& map, CopyBarrier& full,
                          CopyBarrier& free, Ring<C::kStages>& at, int block) {
      free.wait(at.parity ^ 1);
      full.expect(bytes);
#pragma unroll 1
      for (int i = 0; i < panels; ++i)
        load_tile(to + at.stage * bytes + i * C::kKVPanel, map, full, 64 * i, w.kv_begin + block * C::kKeys, head,
                  w.kv_batch);
      at.next();
    };
    const auto load_k = [&](int block) {
      load(shared.k, C::kKBytes, C::kPanelsK, k_map, barriers.k_full[k_at.stage], barriers.k_free[k_at.stage], k_at,
           block);
    };
    const auto load_v = [&](int block) {
      load(shared.v, C::kVBytes, C::kPanelsV, v_map, barriers.v_full[v_at.stage], barriers.v_free[v_at.stage], v_at,
           block);
    };
    const int last = w.first + w.blocks - 1;
    if (w.blocks > 0) load_k(last);
    barriers.q_free.wait(turn % 2 ^ 1);
    shared.work[turn % 2] = w;
    if (w.blocks <= 0) {
      barriers.q_full.arrive();
    } else {
      barriers.q_full.expect(C::kQBytes);
      for (int i = 0; i < C::kPanelsK; ++i)
        load_tile(shared.q + i * C::kQPanel, q_map, barriers.q_full, 64 * i, w.begin + w.row, w.head, w.batch);
      for (int block = last; block > w.first; --block) load_k(block - 1), load_v(block);
      load_v(w.first);
    }
    if (w.blocks < 0) return;
    index = next;
  }
}

// What one warp-group holds of its 64 rows: a thread has columns 8i + 2(lane%4) + {0, 1} of rows lane/4 and lane/4 + 8
// of its warp's 16. Scores are the accumulator of q k, and packed to 16 bit the operand of p v.
template <class C>
struct AttentionRows {
  float scores[C::kKeys / 2], out[C::kDv / 2];
  std::uint32_t packed[C::kKeys / 4];
  float m[2], d[2];  ///< the shift (an integer), the sum of this thread's columns
  float factor[2];   ///< what `out` is still to be multiplied by: a power of two
};

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 2^k for an integer k <= 0; below the normal numbers, and for the NaN of two empty folds, 0.
__device__ __forceinline__ float power_of_two(float k) {
  return __int_as_float((static_cast<int>(fmaxf(k, -127.F)) + 127) << 23);
}

template <class E>
__device__ __forceinline__ std::uint32_t pack_two(float low, float high) {
  std::uint32_t r;
  if constexpr (std::is_same_v<E, fold::BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  }
  return r;
}

/// -inf for every score of a key that its row does not see. `key` is that of this thread's first column.
template <class C>
__device__ __forceinline__ void hide(const AttentionCut& cut, const AttentionWork& w, AttentionRows<C>& rows, int row,
                                     int key) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int low = first_key(cut, w, row + 8 * r) - key, high = last_key(cut, w, row + 8 * r) - key;
#pragma unroll
    for (int i = 0; i < C::kKeys / 4; ++i)
      if (i / 2 * 8 + i % 2 >= high) rows.scores[i / 2 * 4 + 2 * r + i % 2] = -INFINITY;
    if (low <= 0) continue;
#pragma unroll
    for (int i = 0; i < C::kKeys / 4; ++i)
      if (i / 2 * 8 + i % 2 < low) rows.scores[i / 2 * 4 + 2 * r + i % 2] = -INFINITY;
  }
}

/// scores to cap * tanh(scores * scale / cap), but for the factor cap; tanh x = 1 - 2 / (e^2x + 1).
template <class C>
__device__ __forceinline__ void soft_cap(float cap_scale, AttentionRows<C>& rows) {
#pragma unroll
  for (float& s : rows.scores) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(exp2_fast(s * cap_scale) + 1.F));
    s = __fmaf_rn(-2.F, inverse, 1.F);
  }
}

/// Scores to exponentials; true if some row of the warp has a new shift.
template <class C>
__device__ __forceinline__ bool exponentiate(float scale, AttentionRows<C>& rows) {
  float shift[2], sum[2] = {0, 0};
  bool moved = false, huge = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Four chains: one would wait for each of its links.
    float tops[4];
#pragma unroll
    for (int i = 0; i < C::kKeys / 4; ++i) {
      const float score = rows.scores[4 * (i / 2) + 2 * r + i % 2];
      tops[i % 4] = i < 4 ? score : fmaxf(tops[i % 4], score);
    }
    float top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
    top = fmaxf(top, __shfl_xor_sync(~0U, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0U, top, 2));
    const float m = fmaxf(rows.m[r], rintf(top * scale));
    moved |= m > rows.m[r];
    rows.factor[r] = power_of_two(rows.m[r] - m);
    rows.m[r] = m;
    shift[r] = m == -INFINITY ? 0.F : -m;
    huge |= fabsf(shift[r]) > 0x1p24F;
  }
  // m is rint of a rounded product. Where that is coarser than 1, the terms' exponents are of rounded products too.
  if (__any_sync(~0U, huge)) {
#pragma unroll
    for (float& s : rows.scores) s *= scale;
    scale = 1;
  }
#pragma unroll
  for (int i = 0; i < C::kKeys / 2; ++i) {
    rows.scores[i] = exp2_fast(__fmaf_rn(rows.scores[i], scale, shift[i / 2 % 2]));
    sum[i / 2 % 2] += rows.scores[i];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.d[r] = __fmaf_rn(rows.d[r], rows.factor[r], sum[r]);
  return __any_sync(~0U, moved);
}

template <class C>
__device__ __forceinline__ void pack(AttentionRows<C>& rows) {
#pragma unroll
  for (int i = 0; i < C::kKeys / 4; ++i)
    rows.packed[i] = pack_two<typename C::E>(rows.scores[2 * i], rows.scores[2 * i + 1]);
}

template <class C>
__device__ __forceinline__ void issue_scores(AttentionRows<C>& rows, unsigned q, unsigned k) {
  const std::uint64_t a = tile_descriptor(q, 0), b = tile_descriptor(k, 0);
#pragma unroll
  for (int i = 0; i < C::kDk / 16; ++i)
    Product<typename C::E, C::kKeys / 2>::multiply(rows.scores, a + ((i / 4 * C::kQPanel + i % 4 * 32) >> 4),
                                                   b + ((i / 4 * C::kKVPanel + i % 4 * 32) >> 4), i > 0);
}

template <class C>
__device__ __forceinline__ void issue_out(AttentionRows<C>& rows, unsigned v) {
  const std::uint64_t b = tile_descriptor(v, C::kKVPanel);
#pragma unroll
  for (int i = 0; i < C::kKeys / 16; ++i)
    Product<typename C::E, C::kDv / 2>::multiply_add(rows.out, rows.packed + 4 * i, b + (i * 2048 >> 4));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
