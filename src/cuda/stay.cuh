// What kernels share whose clusters stay for many rows: each warp's part of the next row arrives in shared memory while
// it works on this one, and no block waits for another but by what the row's chunks send it. Kernels whose clusters
// take one row use the same mail.
#pragma once

#include "cuda/stay_rows.cuh"

#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// How warps of a cluster share a row's chunks.
struct ChunkShare {
  int chunk, chunks;  ///< the warp's first chunk, and how many it has
  __device__ __forceinline__ ChunkShare(int first, int count) : chunk(first), chunks(count) {}
  /// Evenly.
  __device__ __forceinline__ ChunkShare(int of_row) {
    const int warps = static_cast<int>(blockDim.x) / 32, all = warps * static_cast<int>(lift::Cluster::size());
    const int warp = static_cast<int>(lift::Cluster::rank()) * warps + static_cast<int>(threadIdx.x) / 32;
    chunk = warp * of_row / all;
    chunks = (warp + 1) * of_row / all - chunk;
  }
  /// One to each, of which the last ones may have none.
  static __device__ __forceinline__ ChunkShare one_each(int of_row) {
    const int warp = static_cast<int>(lift::Cluster::rank() * (blockDim.x / 32) + threadIdx.x / 32);
    return {warp, warp < of_row ? 1 : 0};
  }
};

/// The barriers of mail that goes, row after row, to two places by turns: who sends a row's has received that of the
/// row before from every warp, and with it the word that they have read the row before that. turn: how many rows' mail
/// has been exchanged before; bytes: of a row's.
struct MailTurns {
  CopyBarrier arrived[2];

  /// Where a row's mail goes, and in which phase of that place's barrier it comes. (Of signed numbers, which turns are,
  /// remainders take three instructions.)
  static __device__ __forceinline__ unsigned place(int turn) { return static_cast<unsigned>(turn) % 2; }
  static __device__ __forceinline__ unsigned parity(int turn) { return static_cast<unsigned>(turn) / 2 % 2; }
  __device__ __forceinline__ CopyBarrier& barrier(int turn) { return arrived[place(turn)]; }

  /// By all threads of the block; then CopyBarrier::publish() and expect().
  __device__ __forceinline__ void init() {
    if (threadIdx.x < 2) arrived[threadIdx.x].init(1);
  }
  __device__ __forceinline__ void expect(int bytes) {
    if (threadIdx.x < 2) arrived[threadIdx.x].expect(bytes);
  }
  /// kKeepsCache: as of wait_for_words().
  template <bool kKeepsCache = false>
  __device__ __forceinline__ void wait(int turn, int bytes) {
    const bool first = thread_index() == 0;  // known before, as what is found out behind the mail all blocks wait for
    wait_for_words<kKeepsCache>(barrier(turn), parity(turn));
    if (first) barrier(turn).expect(bytes);
  }
};

/// What a chunk sends to all blocks of its row's cluster.
struct alignas(16) StayMail {
  lift::Node node;
  double far;  ///< m where the node is kFar: its state is then (m, node.d)
  static __device__ __forceinline__ int bytes(int chunks) { return chunks * static_cast<int>(sizeof(StayMail)); }
};

/// The mail of one row. Lanes read runs of up to 8 neighbours: with a gap after every 8 they hardly meet in a bank.
struct StayBox {
  StayMail* mail;
  __device__ __forceinline__ StayMail& operator[](int chunk) const { return mail[chunk + chunk / 8]; }
  static constexpr SOFTFOLD_HD int bytes(int chunks) {
    return (chunks + chunks / 8) * static_cast<int>(sizeof(StayMail));
  }
  /// Of up to kMost chunks.
  template <int kMost = 256>
  __device__ __forceinline__ lift::Root merge(int chunks) const {
    const auto node = [&](int i) {
      asm volatile("" : "+r"(i));  // or places are found once for all rows, and spilled
      return (*this)[i].node;
    };
    lift::Root root{kMost > 256 ? lift::merge_run<kMost / 32>(node, chunks) : lift::merge_some(node, chunks), {}};
    if (root.node.z == lift::kFar) root.far = lift::merge_states_wide(State{mail}, chunks);
    return root;
  }

 private:
  struct State {
    StayMail* mail;
    __device__ fold::LogSumExp<float>::State operator()(int i) const {
      const StayMail& m = StayBox{mail}[i];
      return m.node.z == lift::kFar ? fold::LogSumExp<float>::State{m.far, m.node.d} : lift::state_of(m.node);
    }
  };
};

/// What a folded chunk has to send.
template <class Folded>
__device__ __forceinline__ StayMail mail_of(const Folded& own) {
  return {{own.node.z, own.node.z == lift::kFar ? own.state.d : own.node.d}, own.state.m};
}
/// By the kLanes lanes that hold a chunk: its mail to the place of `mine` in every block of the cluster.
template <int kLanes>
__device__ __forceinline__ void send_mail(StayMail& mine, CopyBarrier& arrived, const StayMail& mail) {
  for (unsigned to = thread_index() % kLanes; to < lift::Cluster::size(); to += kLanes)
    send_words(lift::Cluster::map(&mine, to), lift::Cluster::map(&arrived, to), fold::bits_as<std::uint64_t>(mail.node),
               fold::bits_as<std::uint64_t>(mail.far));
}

/// Packed<E>::extremes, of 16-bit elements by half as many instructions where a lane has numbers of both signs: as
/// integers the positive numbers order by value, and above them, taken as unsigned, the negative ones by size. Maxima
/// of three then serve, two numbers at a time.
template <class E, int kVectors>
__device__ __forceinline__ lift::Extremes extremes_by_integers(const uint4 (&raw)[kVectors]) {
  if constexpr (sizeof(E) == 2) {
    using Pair = std::conditional_t<std::is_same_v<E, fold::BFloat16>, __nv_bfloat162, __half2>;
    const auto word = [&](int i) {
      const unsigned words[4] = {raw[i / 4].x, raw[i / 4].y, raw[i / 4].z, raw[i / 4].w};
      return words[i % 4];
    };
    const auto swapped = [](unsigned pair) { return __byte_perm(pair, pair, 0x1032); };
    constexpr int last = 4 * kVectors - 1;
    unsigned positive = word(0), negative = word(0);
#pragma unroll
    for (int i = 1; i < last; i += 2) {
      positive = __vimax3_s16x2(positive, word(i), word(i + 1));
      negative = __vimax3_u16x2(negative, word(i), word(i + 1));
    }
    positive = __vimax3_s16x2(positive, word(last), swapped(positive));
    negative = __vimax3_u16x2(negative, word(last), swapped(negative));
    positive = __vmaxs2(positive, swapped(positive));
    negative = __vmaxu2(negative, swapped(negative));
    if ((positive & 0x8000U) == 0 && (negative & 0x8000U) != 0) {
      const float top = static_cast<float>(reinterpret_cast<const Pair*>(&positive)->x);
      const float bottom = static_cast<float>(reinterpret_cast<const Pair*>(&negative)->x);
      const float sum = top + bottom;  // NaN if one of them is, or of two infinities
      return sum == sum || (top == top && bottom == bottom) ? lift::Extremes{bottom, top} : lift::Extremes{sum, sum};
    }
  }
  return Packed<E>::extremes(raw);
}

/// A warp's part of a row, `chunks` chunks of which the last may be cut short by the row's end, on its way to shared
/// memory and there: kLanes lanes a chunk, kCount elements each.
template <class E, int kLanes, int kCount>
struct WarpPart {
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = kCount / kWidth;
  static constexpr int kGroups = 32 / kLanes;
  static constexpr int kBytes = 32 * kCount * kSize + 16 + 16 * kGroups;
  static_assert(kLanes * kCount == lift::kChunk && kGroups * kWidth <= 32);

  char* place;
  const char* first;  ///< the part's first element
  int n, chunks;
  bool whole = false;  ///< known: all of its chunks are full, and begin at vectors

  __device__ __forceinline__ int shift() const {
    return whole ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16) / kSize;
  }
  using Span = typename Landing<E, 32>::Span;

  /// Elements of a group's chunk. (Of a chunk alone without a minimum: from that, a maximum with 0 and a comparison
  /// with kChunk ptxas of CUDA 13.0 makes one VIMNMX.RELU, and takes a predicate that does not mean the last.)
  __device__ __forceinline__ int count(int group) const {
    if constexpr (kGroups == 1) return n;
    return group < chunks ? min(n - group * lift::kChunk, lift::kChunk) : 0;
  }

  /// By one lane. What lies outside [begin, end), the operand's memory, is not touched.
  __device__ __forceinline__ void fetch(CopyBarrier& barrier, const char* begin, const char* end) const {
    if (whole) return barrier.copy(place, first, bytes(begin, end));
    const Span span(first, n, begin, end);
    if (span.bytes() > 0)
      barrier.copy(place + (span.begin - span.from), reinterpret_cast<const void*>(span.begin), span.bytes());
  }
  __device__ __forceinline__ int bytes(const char* begin, const char* end) const {
    return whole ? kGroups * (lift::kChunk * kSize) : Span(first, n, begin, end).bytes();
  }

  /// Once it has landed, by all lanes: the vectors of the lane's chunk. `missing` stands where no element is. Lanes
  /// without a chunk get the vectors of the first.
  __device__ __forceinline__ void read(uint4 (&raw)[kVectors], float missing, const char* begin,
                                       const char* end) const {
    mend(missing, begin, end);
    read_again(raw);
  }
  /// The same, but the part's first element stands where none is.
  __device__ __forceinline__ void read_filled(uint4 (&raw)[kVectors], const char* begin, const char* end) const {
    mend<true>(0.F, begin, end);
    read_again(raw);
  }
  /// The same vectors, as long as nothing else is fetched there.
  __device__ __forceinline__ void read_again(uint4 (&raw)[kVectors]) const {
    const int lane = lane_index(), group = whole || lane / kLanes < chunks ? lane / kLanes : 0;
    read_again(raw, group * (lift::kChunk * kSize) + lane % kLanes * 16);
  }
  /// from: bytes from the place to the lane's first vector.
  __device__ __forceinline__ void read_again(uint4 (&raw)[kVectors], int from) const {
    const auto vector = [&](int j) { return *reinterpret_cast<const uint4*>(place + from + 16 * kLanes * j); };
#pragma unroll
    for (int j = 0; j < kVectors; ++j) raw[j] = vector(j);
    // A chunk that begins inside a vector has its last elements behind its last slot: they go before its first.
    if (shift() == 0) return;
    const uint4 behind = vector(kVectors);
    if (lane_index() % kLanes == 0) raw[0] = joined(raw[0], behind, shift() * kSize);
  }

  /// Before read_again(), of a part of whole vectors: what stands behind its end, where no copy writes; if parts of
  /// rows do not all land in one place a vector more, for those that end one further on.
  template <bool kMoves>
  __device__ __forceinline__ void fill_rest(float rest) const {
    E all[kWidth];
#pragma unroll
    for (E& e : all) e = Packed<E>::narrow(rest);
#pragma unroll 1
    for (int j = n / kWidth + lane_index(); j < chunks * (lift::kChunk / kWidth) + (kMoves ? 1 : 0); j += 32)
      reinterpret_cast<uint4*>(place)[j] = Packed<E>::join(all);
    __syncwarp();
  }
  /// The same, of a part whose last chunk is not full, where a row has landed since that ended a vector further on.
  __device__ __forceinline__ void fill_next(float rest) const {
    E all[kWidth];
#pragma unroll
    for (E& e : all) e = Packed<E>::narrow(rest);
    if (lane_index() == 0) reinterpret_cast<uint4*>(place)[n / kWidth] = Packed<E>::join(all);
    fence_for_copy();  // which may write here next
    __syncwarp();
  }
  /// Before read_again(): what the copy may have left out, and what is beyond the row's end; kFilled: the part's first
  /// element stands there instead of `missing`.
  template <bool kFilled = false>
  __device__ __forceinline__ void mend(float missing, const char* begin, const char* end) const {
    const auto cut = [&] { return first < begin + 16 || first + chunks * (lift::kChunk * kSize) + 16 > end; };
    if (!whole && (n < chunks * lift::kChunk || (shift() != 0 && cut()))) repair<kFilled>(missing, cut());
  }

  /// 0, but known only once the vectors are there: a fetch to their place must wait for that. A load from shared memory
  /// is only sent on its way, and behind many stores the copy engine overtakes it.
  /// kWhole: their words may have come by several loads.
  template <bool kWhole = false>
  static __device__ __forceinline__ int loaded(const uint4 (&raw)[kVectors]) {
    unsigned all = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) all |= kWhole ? raw[j].x | raw[j].w : raw[j].x;
    return static_cast<int>(all & threadIdx.y);  // of which the compiler does not know that it is 0
  }

  /// Results to y, which lies to 16-byte boundaries as x does; they are where read() gave the elements. What is not
  /// whole goes by the place where the elements landed: call bulk_drain() before the block ends.
  __device__ __forceinline__ void write(char* y, const uint4 (&raw)[kVectors]) const {
    const int lane = lane_index(), group_lane = lane % kLanes, group = lane / kLanes;
    const auto put = [&](uint4* to, uint4* top) {
      to += group * (lift::kChunk / kWidth) + group_lane;
      *(top == nullptr ? to : top) = raw[0];
#pragma unroll
      for (int j = 1; j < kVectors; ++j) to[kLanes * j] = raw[j];
    };
    if (whole || (n == kGroups * lift::kChunk && shift() == 0)) return put(reinterpret_cast<uint4*>(y), nullptr);
    put(reinterpret_cast<uint4*>(place), group_lane == 0 ? tops(place) + group : nullptr);
    send(place, n, shift(), y);
  }

 private:
  /// Where results wait of chunks that begin inside their first vector: its first bytes belong behind the chunk's end.
  static __device__ __forceinline__ uint4* tops(char* place) {
    return reinterpret_cast<uint4*>(place + kBytes) - kGroups;
  }
  /// From the place to y: whole vectors by the copy engine, the ends an element at a time.
  static __device__ __noinline__ void send(char* place, int n, int shift, char* y) {
    const int lane = lane_index(), group = lane / kWidth, k = lane % kWidth;
    E* e = reinterpret_cast<E*>(place);
    E* to = reinterpret_cast<E*>(y);
    __syncwarp();
    if (group < kGroups)
      e[group * lift::kChunk + k + (k < shift ? lift::kChunk : 0)] = reinterpret_cast<const E*>(tops(place) + group)[k];
    e += shift;
    fence_for_copy();
    __syncwarp();
    const int head = min(n, (kWidth - shift) % kWidth), tail = max(head, (n + shift) / kWidth * kWidth - shift);
    if (lane == 0 && tail > head) bulk_store(to + head, e + head, (tail - head) * kSize);
    if (lane < head) to[lane] = e[lane];
    if (tail + lane < n) to[tail + lane] = e[tail + lane];
  }
  /// What the copy may have left out, of a part at the ends of the operand's memory, and what is beyond the row's end.
  template <bool kFilled>
  __device__ __forceinline__ void repair(float missing, bool cut) const {
    const int lane = lane_index(), begin = shift(), end = n + begin;
    E* e = reinterpret_cast<E*>(place);
    E nothing = Packed<E>::narrow(missing);
    if (cut && lane < kWidth) {
      const E* x = reinterpret_cast<const E*>(first);
      if (lane < n) e[lane + begin] = x[lane];
      if (lane < n) e[end - 1 - lane] = x[n - 1 - lane];
    }
    if constexpr (kFilled) {
      __syncwarp();
      nothing = e[begin];
    }
    const int whole = (end + kWidth - 1) / kWidth;
    if (end + lane < whole * kWidth) e[end + lane] = nothing;
    E none[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) none[k] = nothing;
#pragma unroll 1
    for (int j = whole + lane; j <= chunks * (lift::kChunk / kWidth); j += 32)
      reinterpret_cast<uint4*>(place)[j] = Packed<E>::join(none);
    fence_for_copy();  // which will write here next
    __syncwarp();
  }
};

/// Elements [0, n) of a chunk to y, vector(j) the lane's j-th in the layout of WarpPart::read. All lanes of the warp
/// call it.
template <class E, int kLanes, int kVectors, class Vector>
__device__ __forceinline__ void write_vectors(char* y, int n, const Vector& vector) {
  constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize;
  const int group_lane = lane_index() % kLanes;
  const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(y) % 16) / kSize;
  const int first = kWidth * group_lane - shift;
  const auto put = [&](int j, const uint4& v) {
    *reinterpret_cast<uint4*>(y + (first + kWidth * kLanes * j) * kSize) = v;
  };
  // What whole vectors cannot hold are elements of the first one, and of the one that the end lies in.
  const int end = (n + shift) / kWidth % (lift::kChunk / kWidth);
  const uint4 top = vector(0);
  uint4 last = top;
  if (__all_sync(lift::kWholeWarp, n == lift::kChunk)) {
    if (first >= 0) put(0, top);
#pragma unroll
    for (int j = 1; j < kVectors; ++j) put(j, vector(j));
    if (shift == 0) return;
  } else {
    if (first >= 0 && first <= n - kWidth) put(0, top);
#pragma unroll
    for (int j = 1; j < kVectors; ++j) {
      const uint4 own = vector(j);
      if (first + kWidth * kLanes * j <= n - kWidth) put(j, own);
      if (j == end / kLanes) last = own;
    }
  }
  const auto from = [&](const uint4& a, int lane) {
    const auto word = [&](unsigned w) { return __shfl_sync(lift::kWholeWarp, w, lane, kLanes); };
    return uint4{word(a.x), word(a.y), word(a.z), word(a.w)};
  };
  const auto put_one = [&](const uint4& a, int i) {
    const int byte = (i + shift) % kWidth * kSize, word = byte / 4;
    const unsigned bits = word == 0 ? a.x : word == 1 ? a.y : word == 2 ? a.z : a.w;
    if constexpr (kSize == 4) {
      reinterpret_cast<unsigned*>(y)[i] = bits;
    } else {
      reinterpret_cast<std::uint16_t*>(y)[i] = static_cast<std::uint16_t>(bits >> (byte % 4 * 8));
    }
  };
  const uint4 head_of = from(top, 0), tail_of = from(last, end % kLanes);
  const int head = min(n, (kWidth - shift) % kWidth), tail = max(head, (n + shift) / kWidth * kWidth - shift);
  if (group_lane < head) put_one(head_of, group_lane);
  if (tail + group_lane < n && group_lane < kWidth) put_one(tail_of, tail + group_lane);
}

/// Results of a warp's full chunks, of which the lane's begins at y, to where they may begin inside a vector: one that
/// two chunks share is written once, and of what is left at both ends a lane writes an element. ends: the warp's, in
/// shared memory.
template <class E, int kLanes, int kVectors>
__device__ __forceinline__ void write_whole_chunks(char* y, const uint4 (&raw)[kVectors], bool has_chunk, uint4& ends) {
  constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize;
  const int lane = lane_index(), group_lane = lane % kLanes;
  const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(y) % 16);
  uint4* to = reinterpret_cast<uint4*>(y - shift) + group_lane;
  const bool two = kLanes < 32 && __all_sync(lift::kWholeWarp, has_chunk);
  const auto other = [&](unsigned w) { return __shfl_sync(lift::kWholeWarp, w, two ? lane ^ kLanes : lane); };
  const uint4& own = raw[0];
  const uint4 before{other(own.x), other(own.y), other(own.z), other(own.w)};
  const uint4 first = group_lane == 0 ? joined(own, before, shift) : own;
  if (lane == 0) ends = first;
  if (has_chunk) {
    if (lane != 0 || shift == 0) to[0] = first;
#pragma unroll
    for (int j = 1; j < kVectors; ++j) to[kLanes * j] = raw[j];
  }
  __syncwarp();
  if (lane >= kWidth || shift == 0) return;
  const int at = lane * kSize - shift, behind = (two ? 2 : 1) * (lift::kChunk * kSize);
  *reinterpret_cast<E*>(y + (at < 0 ? at + behind : at)) = reinterpret_cast<const E*>(&ends)[lane];
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
