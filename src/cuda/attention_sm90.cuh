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

/// tanh(s * scale / cap) for |s| <= near: c1 s + c3 s^3 + c5 s^5 + c7 s^7.
struct SoftCap {
  float near, c1, c3, c5, c7;
};

/// How a problem is cut, and its factors in base 2.
struct AttentionCut {
  int tiles, q_tiles;   ///< tiles in all; of a head
  int heads, sections;  ///< heads of all sequences, and the sections that they are cut into
  int left, right;      ///< query i sees keys i + shift - left .. i + shift + right; kNoBound
  float scale_log2;     ///< scale * log2(e), > 0; of a soft cap: cap * log2(e)
  SoftCap cap;
  int* counter;  ///< how many tiles were taken beyond each block's first; null: they are dealt in turn
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
  static constexpr int kShared = kQBytes + kStages * (kKBytes + kVBytes) + 1024;  // panels begin at multiples of 1024
  /// Scores outlive their terms where the registers hold both.
  static constexpr bool kKeepsScores = kKeys + kDv / 2 <= (kGroups == 2 ? 192 : 128);
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
  AttentionWork* work;  ///< [kWorks], of tiles in turn; written before q_full and read until the tile is written
  static constexpr int kWorks = 4;
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
struct Producer {
  const AttentionProblem& p;
  const AttentionCut& cut;
  const CUtensorMap &q_map, &k_map, &v_map;
  const AttentionShared<C>& shared;
  int group = static_cast<int>(p.q_heads / p.kv_heads);
  Ring<C::kStages> k_at{}, v_at{};

  __device__ __forceinline__ AttentionWork& work(int tile) const {
    return shared.work[tile % AttentionShared<C>::kWorks];
  }

  /// Where a tile's keys begin.
  struct Source {
    int row, head, batch;
  };
  __device__ __forceinline__ Source source_of(const AttentionWork& w) const {
    return {w.kv_begin, w.head / group, w.kv_batch};
  }

  __device__ __forceinline__ void load(const Source& s, unsigned to, int bytes, int panels, const CUtensorMap& map,
                                       CopyBarrier* full, CopyBarrier* free, Ring<C::kStages>& at, int block) {
    free[at.stage].wait(at.parity ^ 1);
    full[at.stage].expect(bytes);
#pragma unroll 1
    for (int i = 0; i < panels; ++i)
      load_tile(to + at.stage * bytes + i * C::kKVPanel, map, full[at.stage], 64 * i, s.row + block * C::kKeys, s.head,
                s.batch);
    at.next();
  }
  __device__ __forceinline__ void load_k(const Source& s, int block) {
    auto& b = *shared.barriers;
    load(s, shared.k, C::kKBytes, C::kPanelsK, k_map, b.k_full, b.k_free, k_at, block);
  }
  __device__ __forceinline__ void load_v(const Source& s, int block) {
    auto& b = *shared.barriers;
    load(s, shared.v, C::kVBytes, C::kPanelsV, v_map, b.v_full, b.v_free, v_at, block);
  }

  /// A tile's first block of K, its Q, and its work to the warp-groups.
  __device__ __forceinline__ void begin(int tile, const Source& s) {
    const AttentionWork& w = work(tile);
    CopyBarrier &full = shared.barriers->q_full, &free = shared.barriers->q_free;
    if (w.blocks > 0) load_k(s, w.first + w.blocks - 1);
    free.wait(tile % 2 ^ 1);
    if (w.blocks <= 0) return full.arrive();
    full.expect(C::kQBytes);
    for (int i = 0; i < C::kPanelsK; ++i)
      load_tile(shared.q + i * C::kQPanel, q_map, full, 64 * i, w.begin + w.row, w.head, w.batch);
  }

  __device__ __forceinline__ void run() {
    int index = static_cast<int>(blockIdx.x);
    const int grid = static_cast<int>(gridDim.x);
    work(0) = work_at<C>(p, cut, index);
    Source source = source_of(work(0));
    begin(0, source);
    for (int tile = 0;; ++tile) {
      const int first = work(tile).first, blocks = work(tile).blocks;
      if (blocks < 0) return;
      int block = first + blocks - 1;
      if (block > first) load_k(source, block - 1), load_v(source, block), --block;
      // The engine is busy: time to look at the next tile.
      index = cut.counter == nullptr ? index + grid : grid + atomicAdd(cut.counter, 1);
      work(tile + 1) = work_at<C>(p, cut, index);
      for (; block > first; --block) load_k(source, block - 1), load_v(source, block);
      if (blocks > 0) load_v(source, first);
      source = source_of(work(tile + 1));
      begin(tile + 1, source);
    }
  }
};

// What one warp-group holds of its 64 rows: a thread has columns 8i + 2(lane%4) + {0, 1} of rows lane/4 and lane/4 + 8
// of its warp's 16. Scores are the accumulator of q k, and packed to 16 bit the operand of p v.
template <class C>
struct AttentionRows {
  using Terms = std::uint32_t[C::kKeys / 4];
  float scores[C::kKeys / 2], out[C::kDv / 2];
  float m[2], d[2];  ///< the shift (an integer), the sum of this thread's columns
  float factor[2];   ///< what `out` is still to be multiplied by: a power of two
};

constexpr float kExactShift = 0x1p24F;  ///< larger shifts are not exact to 1

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

/// Scores to tanh(scores * scale / cap) within 2e-7: a polynomial near 0, else 1 - 2 / (e^2x + 1). Which formula an
/// element gets is its own affair; a warp without large ones skips the dearer.
template <class C>
__device__ __forceinline__ void soft_cap(const SoftCap& cap, AttentionRows<C>& rows) {
  const auto near = [&](float s) {
    const float square = s * s;
    return s * __fmaf_rn(__fmaf_rn(__fmaf_rn(cap.c7, square, cap.c5), square, cap.c3), square, cap.c1);
  };
  const auto far = [&](float s) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(exp2_fast(s * cap.c1 * 2.88539008F) + 1.F));
    return __fmaf_rn(-2.F, inverse, 1.F);
  };
  float largest[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < C::kKeys / 2; ++i) largest[i % 4] = fmaxf(largest[i % 4], fabsf(rows.scores[i]));
  if (__any_sync(~0U, fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3])) > cap.near)) {
#pragma unroll
    for (float& s : rows.scores) s = fabsf(s) > cap.near ? far(s) : near(s);
  } else {
#pragma unroll
    for (float& s : rows.scores) s = near(s);
  }
}

/// Terms 2^(score * scale + shift), and their sums over this thread's columns. Packed, or, where registers are short,
/// in place of the scores.
template <class C>
__device__ __forceinline__ void make_terms(AttentionRows<C>& rows, const float (&scale)[2], const float (&shift)[2],
                                           typename AttentionRows<C>::Terms& terms, float (&sum)[2]) {
  sum[0] = sum[1] = 0;
#pragma unroll
  for (int i = 0; i < C::kKeys / 4; ++i) {
    const int r = i % 2;
    const float low = exp2_fast(__fmaf_rn(rows.scores[2 * i], scale[r], shift[r])),
                high = exp2_fast(__fmaf_rn(rows.scores[2 * i + 1], scale[r], shift[r]));
    sum[r] += low;
    sum[r] += high;
    if constexpr (C::kKeepsScores) {
      terms[i] = pack_two<typename C::E>(low, high);
    } else {
      rows.scores[2 * i] = low, rows.scores[2 * i + 1] = high;
    }
  }
}

template <class C>
__device__ __forceinline__ void pack(const AttentionRows<C>& rows, typename AttentionRows<C>::Terms& terms) {
#pragma unroll
  for (int i = 0; i < C::kKeys / 4; ++i) terms[i] = pack_two<typename C::E>(rows.scores[2 * i], rows.scores[2 * i + 1]);
}

/// The largest of this thread's scores of row r; four chains: one would wait for each of its links.
template <class C>
__device__ __forceinline__ float largest_score(const AttentionRows<C>& rows, int r) {
  float tops[4];
#pragma unroll
  for (int i = 0; i < C::kKeys / 4; ++i) {
    const float score = rows.scores[4 * (i / 2) + 2 * r + i % 2];
    tops[i % 4] = i < 4 ? score : fmaxf(tops[i % 4], score);
  }
  return fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
}

/// Scores to terms with new shifts for the rows of which some thread `wants` one; true if some row of the warp has one.
template <class C>
__device__ __forceinline__ bool shift_anew(float scale, AttentionRows<C>& rows, const bool (&wants)[2],
                                           typename AttentionRows<C>::Terms& terms) {
  float scales[2] = {scale, scale}, shift[2], sum[2], top[2] = {largest_score<C>(rows, 0), largest_score<C>(rows, 1)};
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2)
#pragma unroll
    for (float& t : top) t = fmaxf(t, __shfl_xor_sync(~0U, t, distance));
  bool moved = false, huge = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool wanted = __ballot_sync(~0U, wants[r]) >> (threadIdx.x & 28) & 15;
    const float m = wanted ? fmaxf(rows.m[r], rintf(top[r] * scale)) : rows.m[r];
    moved |= m > rows.m[r];
    rows.factor[r] = power_of_two(rows.m[r] - m);
    rows.m[r] = m;
    shift[r] = m == -INFINITY ? 0.F : -m;
    huge |= fabsf(shift[r]) > kExactShift;
  }
  // m is rint of a rounded product. Where that is coarser than 1, the terms' exponents are of rounded products too.
  if (__any_sync(~0U, huge)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (fabsf(shift[r]) > kExactShift) scales[r] = 1;
#pragma unroll
      for (int i = r; i < C::kKeys / 4; i += 2)
        if (scales[r] != scale) rows.scores[2 * i] *= scale, rows.scores[2 * i + 1] *= scale;
    }
  }
  make_terms<C>(rows, scales, shift, terms, sum);
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.d[r] = __fmaf_rn(rows.d[r], rows.factor[r], sum[r]);
  return __any_sync(~0U, moved);
}

/// What is added to exponents while a row keeps its shift; infinity, which makes every sum too large, for a row that
/// has none yet or one of too few digits.
template <class C>
__device__ __forceinline__ void kept_shift(const AttentionRows<C>& rows, float (&shift)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) shift[r] = fabsf(rows.m[r]) <= kExactShift ? -rows.m[r] : INFINITY;
}

/// Whether all rows of the warp may keep their shifts, and which of this thread's want another. While nothing over- or
/// underflows another shift changes no bit of a row's result, so a row keeps the one of its first block until a sum of
/// terms grows large: no maximum is looked for. A comparison with NaN says no, too.
__device__ __forceinline__ bool keeps_shift(const float (&sum)[2], bool (&wants)[2]) {
  constexpr float kLargestSum = 0x1p15F;  // below float16's largest
#pragma unroll
  for (int r = 0; r < 2; ++r) wants[r] = !(sum[r] < kLargestSum);
  return !__any_sync(~0U, wants[0] || wants[1]);
}

/// Scores to terms; true if some row of the warp has a new shift.
template <class C>
__device__ __forceinline__ bool exponentiate(float scale, AttentionRows<C>& rows, bool fresh,
                                             typename AttentionRows<C>::Terms& terms) {
  bool wants[2] = {true, true};
  if (C::kKeepsScores && !fresh) {
    const float scales[2] = {scale, scale};
    float shift[2], sum[2];
    kept_shift<C>(rows, shift);
    make_terms<C>(rows, scales, shift, terms, sum);
    if (keeps_shift(sum, wants)) {
      rows.d[0] += sum[0], rows.d[1] += sum[1];
      return false;
    }
  }
  return shift_anew<C>(scale, rows, wants, terms);
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
__device__ __forceinline__ void issue_out(AttentionRows<C>& rows, const typename AttentionRows<C>::Terms& terms,
                                          unsigned v) {
  const std::uint64_t b = tile_descriptor(v, C::kKVPanel);
#pragma unroll
  for (int i = 0; i < C::kKeys / 16; ++i)
    Product<typename C::E, C::kDv / 2>::multiply_add(rows.out, terms + 4 * i, b + (i * 2048 >> 4));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
