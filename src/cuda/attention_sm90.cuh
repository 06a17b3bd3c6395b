// Attention forward on Hopper: one producer warp drives the copy engine, two or three warp-groups of 64 query rows each
// multiply, exponentiate and multiply again. While one warp-group is at its exponentials, the tensor cores have
// another's products. docs/performance.md has the steps that led here.
#pragma once

#include "cuda/attention_sequence.cuh"
#include "cuda/sm90/tma.cuh"
#include "cuda/sm90/warpgroup.cuh"

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
  int tiles, q_tiles;  ///< tiles in all; of a head
  int heads, section;  ///< heads of all sequences; of a section, the last one may have fewer
  int left, right;     ///< query i sees keys i + shift - left .. i + shift + right; kNoBound
  float scale_log2;    ///< scale * log2(e), > 0; of a soft cap: cap * log2(e)
  SoftCap cap;
  int look;      ///< a tile's blocks that are still to be loaded when the next tile is taken, or all but one
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
  const int from = index / cut.q_tiles / cut.section * cut.section, heads = min(cut.section, cut.heads - from);
  const int rest = index - from * cut.q_tiles, tile = rest / heads, head = from + rest - tile * heads;
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

/// Whether the tile begins after its sequence's last row: as many are counted for each as the longest one has.
__device__ __forceinline__ bool is_past_end(const AttentionWork& w) { return w.blocks >= 0 && w.row >= w.rows; }

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

  __device__ __forceinline__ int tile_after(int index) const {
    const int grid = static_cast<int>(gridDim.x);
    return cut.counter == nullptr ? index + grid : grid + atomicAdd(cut.counter, 1);
  }
  /// Tile `index`, or the block's next one that is not past the end of its sequence: those are nobody's.
  __device__ __forceinline__ void look_at(int tile, int& index) const {
    for (;; index = tile_after(index)) {
      work(tile) = work_at<C>(p, cut, index);
      if (!is_past_end(work(tile))) return;
    }
  }

  __device__ __forceinline__ void run() {
    int index = static_cast<int>(blockIdx.x);
    look_at(0, index);
    Source source = source_of(work(0));
    begin(0, source);
    for (int tile = 0;; ++tile) {
      const int first = work(tile).first, blocks = work(tile).blocks;
      if (blocks < 0) return;
      int block = first + blocks - 1;
      // The next tile is taken while the engine is busy.
      const int look = max(min(first + cut.look, block - 1), first);
      for (; block > look; --block) load_k(source, block - 1), load_v(source, block);
      index = tile_after(index);
      if (cut.counter != nullptr && block > first)  // it takes its time to answer
        load_k(source, block - 1), load_v(source, block), --block;
      look_at(tile + 1, index);
      for (; block > first; --block) load_k(source, block - 1), load_v(source, block);
      if (blocks > 0) load_v(source, first);
      source = source_of(work(tile + 1));
      begin(tile + 1, source);
    }
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
