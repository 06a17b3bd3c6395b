// The blocks that sample from one row: what they tell each other, and the part of the row that each of them looks at.
#pragma once

#include "cuda/sample_row.cuh"
#include "softfold/fold/topk.hpp"
#include "softfold/lift/cluster.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Of a row's cluster; a block that has a row to itself may have more warps.
inline constexpr int kSampleWarps = 8, kMostSampleBlocks = 16, kMostSampleWarps = 24;

/// How rows are cut.
struct SampleShare {
  int segments;  ///< blocks of a row: a cluster
  int warps;     ///< of a block
  int chunks;    ///< of a segment
  int places;    ///< chunks that a block has memory for: all of its own, which are read once then; else one a warp
};

/// A block of a row and its cluster, or a row's only block. Every function is called by all threads of all of them
/// together, unless it says otherwise.
class SampleTeam {
 public:
  using Word = unsigned long long;
  struct Mail {
    Word words[2][kMostSampleBlocks * kSampleWarps];  ///< of all warps, by turns
  };

  __device__ __forceinline__ SampleTeam(Mail& mail, int segments, int segment)
      : mail_(mail), segments_(segments), segment_(segment) {
    if (segments_ > 1) lift::Cluster::arrive_relaxed();
  }
  /// All blocks have begun; once before the end, too.
  __device__ __forceinline__ void begin() {
    if (segments_ > 1 && !begun_) lift::Cluster::wait();
    begun_ = true;
  }

  __device__ __forceinline__ int segments() const { return segments_; }
  __device__ __forceinline__ int segment() const { return segment_; }
  __device__ __forceinline__ bool leads() const { return segment_ == 0; }
  /// Warps of a block, and where this one stands among those of all blocks.
  static __device__ __forceinline__ int warps() { return static_cast<int>(blockDim.x) / 32; }
  __device__ __forceinline__ int place() const { return segment_ * warps() + static_cast<int>(threadIdx.x) / 32; }

  __device__ __forceinline__ void sync() {
    begin();
    if (segments_ == 1) return __syncthreads();
    lift::Cluster::arrive();
    lift::Cluster::wait();
  }
  /// By one thread: to that place in the shared memory of all blocks; before a sync().
  __device__ __forceinline__ void tell(Word& local, Word a) const {
    if (segments_ == 1) local = a;
    for (int to = 0; segments_ > 1 && to < segments_; ++to)
      lift::Cluster::store(lift::Cluster::map(&local, static_cast<unsigned>(to)), std::uint64_t{a});
  }
  /// By one thread: to that place in the first block's shared memory; before a sync().
  __device__ __forceinline__ void tell_first(unsigned& local, unsigned a) const {
    if (segments_ == 1) {
      local = a;
    } else {
      lift::Cluster::store(lift::Cluster::map(&local, 0), static_cast<int>(a));
    }
  }
  /// The word at that place in the shared memory of one of the blocks.
  static __device__ __forceinline__ unsigned of(const unsigned& local, int block, int blocks) {
    if (blocks == 1) return local;
    return lift::Cluster::load(lift::Cluster::map(&local, static_cast<unsigned>(block)));
  }
  /// The words of all warps in the order of place(), each of which its lanes bring alike.
  __device__ __forceinline__ const Word* gather(Word own) {
    begin();  // before another block's memory is written to
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Word* words = mail_.words[turn_];
    turn_ ^= 1;
    if (segments_ == 1) {
      if (lane == 0) words[place()] = own;
    } else if (lane < segments_) {
      lift::Cluster::store(lift::Cluster::map(words + place(), static_cast<unsigned>(lane)), std::uint64_t{own});
    }
    sync();
    return words;
  }
  __device__ __forceinline__ Word largest(Word own) {
    const Word* words = gather(own);
    Word all = 0;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < segments_ * warps(); i += 32) all = max(all, words[i]);
    for (int distance = 16; distance > 0; distance /= 2)
      all = max(all, __shfl_xor_sync(lift::kWholeWarp, all, distance));
    return all;
  }
  /// Of all lanes' elements; of NaN it is the largest.
  __device__ __forceinline__ float largest_element(float own) {
    const std::uint32_t key = __reduce_max_sync(lift::kWholeWarp, fold::Ranked<float>::of(own, 0).key);
    return fold::Ranked<float>{static_cast<std::uint32_t>(largest(key)), 0}.value();
  }
  __device__ __forceinline__ Word sum(Word own) {
    const Word* words = gather(own);
    Word all = 0;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < segments_ * warps(); i += 32) all += words[i];
    return add_lanes(all);
  }
  /// By a warp.
  static __device__ __forceinline__ Word add_lanes(Word a) {
    for (int distance = 16; distance > 0; distance /= 2) a += __shfl_xor_sync(lift::kWholeWarp, a, distance);
    return a;
  }

 private:
  Mail& mail_;
  int segments_, segment_;
  int turn_ = 0;
  bool begun_ = false;
};

/// Rows that refuses_plain() accepts, without bias and bitmask. A chunk's place holds the slots of its Tile.
template <class E>
struct PlainElements {
  using Row = SampleRowAt<PlainPlace>;
  using Chunk = Tile<E, 32>;
  static constexpr bool kNeighbours = true;  ///< in a place's vectors
  static constexpr int kWidth = Chunk::kWidth, kSize = static_cast<int>(sizeof(E));
  const Row& row;
  Chunk tile;

  __device__ __forceinline__ explicit PlainElements(const Row& row_) : row(row_), tile(row_.row.x) {}
  __device__ __forceinline__ bool has_raw() const { return false; }
  __device__ __forceinline__ int slot_of(int i) const { return (i + tile.shift) % lift::kChunk; }
  /// A chunk that lies in memory as a place would hold it; null: it does not.
  __device__ __forceinline__ const uint4* as_they_lie(std::int64_t begin) const {
    if (tile.shift != 0 || row.row.length - begin < lift::kChunk) return nullptr;
    return reinterpret_cast<const uint4*>(row.row.x + begin * kSize);
  }
  /// Has a chunk fetched to the L2 cache.
  __device__ __forceinline__ void ask(std::int64_t begin) const {
    constexpr int kLine = 128;
    const std::int64_t at = begin * kSize + kLine * tile.lane;
    if (at < (begin + lift::kChunk) * kSize && at < row.row.length * kSize)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(row.row.x + at));
  }
  __device__ __forceinline__ void bring(uint4* place, std::int64_t begin, bool) const {
    bring_from(place, row.row.x + begin * kSize, static_cast<int>(clamp(row.row.length - begin, lift::kChunk)));
  }
  static __device__ __forceinline__ float value(const void* place, int slot) {
    return fold::widen(static_cast<const E*>(place)[slot]);
  }
  static __device__ __forceinline__ void unpack(uint4 raw, float* v) { Packed<E>::unpack(raw, v); }

 private:
  static __device__ __noinline__ void bring_from(uint4* place, const char* x, int n) {
    const Chunk tile(x);
    uint4 raw[Chunk::kVectors];
    tile.gather(raw, x, n, Row::kAll);
#pragma unroll
    for (int j = 0; j < Chunk::kVectors; ++j) place[tile.lane + 32 * j] = raw[j];
  }
};

/// Any rows, as floats. A lane has every 32nd element of a chunk, four in a vector.
struct AnyElements {
  using Row = SampleRow;
  static constexpr bool kNeighbours = false;
  static constexpr int kWidth = 1, kSize = 4;
  const Row& row;

  __device__ __forceinline__ explicit AnyElements(const Row& row_) : row(row_) {}
  /// Whether elements before bias and bitmask are others than those after them.
  __device__ __forceinline__ bool has_raw() const {
    return row.p[SampleSlot::bias].given || row.p[SampleSlot::bitmask].given;
  }
  __device__ __forceinline__ const uint4* as_they_lie(std::int64_t) const { return nullptr; }
  __device__ __forceinline__ void ask(std::int64_t) const {}
  static __device__ __forceinline__ int slot_of(int i) { return i / 128 * 128 + i % 32 * 4 + i / 32 % 4; }
  __device__ __noinline__ void bring(uint4* place, std::int64_t begin, bool of_raw) const {
    switch (row.p[Slot::x].dtype) {
      case DType::float16: return bring_as<DType::float16>(place, begin, of_raw);
      case DType::bfloat16: return bring_as<DType::bfloat16>(place, begin, of_raw);
      default: return bring_as<DType::float32>(place, begin, of_raw);
    }
  }
  static __device__ __forceinline__ float value(const void* place, int slot) {
    return static_cast<const float*>(place)[slot];
  }
  static __device__ __forceinline__ void unpack(uint4 raw, float* v) { Packed<float>::unpack(raw, v); }

 private:
  static constexpr int kAtOnce = 16;

  /// SampleRowAt::raw or processed of the lane's elements. What is known of the row is found out before, so that loads
  /// are on their way together.
  template <DType kType>
  __device__ __forceinline__ void bring_as(uint4* place, std::int64_t begin, bool of_raw) const {
    const Operand &x = row.p[Slot::x], &bias = row.p[SampleSlot::bias], &bitmask = row.p[SampleSlot::bitmask];
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (row.row.mask != nullptr || begin + lift::kChunk > row.row.length) {
#pragma unroll 1
      for (int k = lane; k < lift::kChunk; k += 32)
        reinterpret_cast<float*>(place)[slot_of(k)] =
            begin + k < row.row.length ? row.at(begin + k, of_raw) : Row::kAll;
      return;
    }
#pragma unroll 1
    for (int first = 0; first < lift::kPerLane; first += kAtOnce) {
      const std::int64_t i = begin + lane + 32 * first;
      float v[kAtOnce];
      load<kType>(v, row.row.x + i * x.axis_stride, x.axis_stride);
      if (bias.given && !of_raw) add(v, bias, bias.data + row.place.offset(bias) + i * bias.axis_stride);
      // Neighbouring lanes have neighbouring elements, so that a word is of all of them.
      if (bitmask.given && !of_raw) {
        const char* word = bitmask.data + row.place.offset(bitmask) + (begin / 32 + first) * bitmask.axis_stride;
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
          if (!Row::allowed(word + k * bitmask.axis_stride, lane)) v[k] = Row::kAll;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; k += 4) place[lane + 8 * (first + k)] = Packed<float>::pack(v + k);
    }
  }
  template <DType kType>
  static __device__ __forceinline__ void load(float (&v)[kAtOnce], const char* at, std::int64_t stride) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) v[k] = element_at<float>(kType, at + 32 * k * stride);
  }
  static __device__ __forceinline__ void add(float (&v)[kAtOnce], const Operand& bias, const char* at) {
    float b[kAtOnce];
    switch (bias.dtype) {
      case DType::float16: load<DType::float16>(b, at, bias.axis_stride); break;
      case DType::bfloat16: load<DType::bfloat16>(b, at, bias.axis_stride); break;
      case DType::float32: load<DType::float32>(b, at, bias.axis_stride); break;
      default: load<DType::float64>(b, at, bias.axis_stride);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) v[k] = Row::with_bias(v[k], b[k]);
  }
};

/// A block's segment of a row. A warp has every so-manieth of its chunks and calls every function together; only it
/// looks at their places. What is not there is -inf.
template <class Elements>
class SamplePart {
 public:
  using Row = typename Elements::Row;
  static constexpr int kBytes = lift::kChunk * Elements::kSize;  ///< of a place
  static constexpr int kPer = 16 / Elements::kSize, kVectors = lift::kPerLane / kPer;

  __device__ __forceinline__ SamplePart(const Row& row, const SampleShare& share, int segment, char* places)
      : elements_(row),
        share_(share),
        places_(places),
        first_(std::int64_t{segment} * share.chunks),
        chunks_(static_cast<int>(clamp(lift::chunk_count(row.row.length) - first_, share.chunks))) {}

  /// Elements that a segment has at most.
  __device__ __forceinline__ std::int64_t most() const { return std::int64_t{share_.chunks} * lift::kChunk; }
  /// Warps of all segments that have a chunk.
  __device__ __forceinline__ int busy_warps(std::int64_t chunks) const {
    const std::int64_t full = chunks / share_.chunks, warps = SampleTeam::warps();
    return static_cast<int>(full * min(warps, std::int64_t{share_.chunks}) + min(warps, chunks - full * share_.chunks));
  }
  /// f(chunk, place) for the warp's chunks, `chunk` counted in the row.
  template <class F>
  __device__ __forceinline__ void for_chunks(bool of_raw, const F& f) {
    const bool raw = of_raw && elements_.has_raw(), stays = share_.places >= share_.chunks;
    const Held wanted = raw ? Held::raw : Held::processed;
#pragma unroll 1
    for (int i = warp(); i < chunks_; i += SampleTeam::warps()) {
      const std::int64_t begin = (first_ + i) * lift::kChunk;
      const uint4* place = stays ? nullptr : elements_.as_they_lie(begin);
      if (!stays) {  // the warp's next chunk, or its first one for the next look
        const int next = i + SampleTeam::warps();
        elements_.ask((first_ + (next < chunks_ ? next : warp())) * lift::kChunk);
      }
      if (place == nullptr) {
        auto* own = reinterpret_cast<uint4*>(places_ + (stays ? i : warp()) * kBytes);
        if (!stays || held_ != wanted) elements_.bring(own, begin, raw);
        place = own;
      }
      __syncwarp();
      f(first_ + i, place);
      __syncwarp();
    }
    held_ = wanted;
  }
  /// f(elements) for the vectors of the lane, kPer elements each.
  template <class F>
  __device__ __forceinline__ void for_vectors(bool of_raw, const F& f) {
    for_chunks(of_raw, [&](std::int64_t, const uint4* place) { for_vectors_at(place, f); });
  }
  template <class F>
  __device__ __forceinline__ void for_each(bool of_raw, const F& f) {
    for_chunks(of_raw, [&](std::int64_t, const uint4* place) { for_each_at(place, f); });
  }
  /// The same of a chunk's place, four vectors at a time, as they may come from afar.
  template <class F>
  static __device__ __forceinline__ void for_vectors_at(const uint4* place, const F& f) {
#pragma unroll 1
    for (int j = 0; j < kVectors; j += 4) {
      uint4 raw[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) raw[i] = place[lane() + 32 * (j + i)];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float v[kPer];
        Elements::unpack(raw[i], v);
        f(v);
      }
    }
  }
  template <class F>
  static __device__ __forceinline__ void for_each_at(const uint4* place, const F& f) {
    for_vectors_at(place, [&](const float(&v)[kPer]) {
#pragma unroll
      for (int k = 0; k < kPer; ++k) f(v[k]);
    });
  }
  /// f(element, its index) for the lane's of those below n; beyond the row they are -inf. Neighbours by neighbouring
  /// lanes.
  template <class F>
  __device__ __forceinline__ void for_indices(std::int64_t n, const F& f) {
    for_chunks(false, [&](std::int64_t chunk, const uint4* place) { for_indices_at<1>(place, chunk, n, f); });
    for_indices_behind(n, f);
  }
  /// result(element) of all of them as T to `to`, `stride` bytes from one to the next.
  template <class T, class Result>
  __device__ __forceinline__ void write(std::int64_t n, char* to, std::int64_t stride, const Result& result) {
    struct alignas(sizeof(T) * kPer < 16 ? sizeof(T) * kPer : 16) Results {
      T of[kPer];
    };
    const auto put = [&](float x, std::int64_t i) {
      *reinterpret_cast<T*>(to + i * stride) = fold::narrow<T>(result(x));
    };
    const bool dense = Elements::kNeighbours && stride == sizeof(T) &&
                       reinterpret_cast<std::uintptr_t>(to) % sizeof(Results) == 0 && elements_.slot_of(0) == 0;
    for_chunks(false, [&](std::int64_t chunk, const uint4* place) {
      if (!dense || n - chunk * lift::kChunk < lift::kChunk) return for_indices_at<4>(place, chunk, n, put);
      auto* vectors = reinterpret_cast<Results*>(to + chunk * lift::kChunk * stride) + lane();
      for_vectors_at(place, [&](const float(&v)[kPer]) {
        Results all;
#pragma unroll
        for (int k = 0; k < kPer; ++k) all.of[k] = fold::narrow<T>(result(v[k]));
        *vectors = all;
        vectors += 32;
      });
    });
    for_indices_behind(n, put);
  }
  /// A chunk's elements as WarpFold<Elements::kWidth> wants them, -inf for those below `from`; whether there are
  /// others.
  static __device__ __forceinline__ bool read(float (&v)[lift::kPerLane], const uint4* place, float from) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Elements::unpack(place[lane() + 32 * j], v + j * kPer);
    if (from == Row::kAll) return true;
    bool some = false;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) {
      const bool stays = v[i] >= from;
      if (!stays) v[i] = Row::kAll;
      some |= stays;
    }
    return __any_sync(lift::kWholeWarp, some);
  }

 private:
  /// In a chunk's place, kAtOnce at a time.
  template <int kAtOnce, class F>
  __device__ __forceinline__ void for_indices_at(const uint4* place, std::int64_t chunk, std::int64_t n, const F& f) {
    const auto count = static_cast<int>(clamp(n - chunk * lift::kChunk, lift::kChunk));
#pragma unroll kAtOnce
    for (int i = lane(); i < count; i += 32) f(Elements::value(place, elements_.slot_of(i)), chunk * lift::kChunk + i);
  }
  /// Of the segment's elements beyond the row's end.
  template <class F>
  __device__ __forceinline__ void for_indices_behind(std::int64_t n, const F& f) const {
    const std::int64_t end = min(n, (first_ + share_.chunks) * lift::kChunk);
    for (std::int64_t i = (first_ + chunks_) * lift::kChunk + threadIdx.x; i < end; i += blockDim.x) f(Row::kAll, i);
  }

  enum class Held { nothing, processed, raw };
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  Elements elements_;
  const SampleShare& share_;
  char* places_;
  std::int64_t first_;
  int chunks_;
  Held held_ = Held::nothing;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
