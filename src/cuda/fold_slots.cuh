// Runs of up to 1024 neighbouring elements to states, at reading speed: kLanes lanes a run and 16 vectors a lane, taken
// straight from shared memory as they are packed, in a frame that is guessed from the run's first element. Any frame in
// which nothing is rounded or flushed has the same bits, and none is if no element lies further than 2^60 from it; runs
// of which that is not so are folded again by the definition's way.
#pragma once

#include "cuda/softmax_plain.cuh"
#include "cuda/term_table.cuh"

#include <algorithm>
#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The extremes of packed numbers, a few at a time.
template <class E>
class RunningExtremes {
 public:
  __device__ __forceinline__ explicit RunningExtremes(const uint4& a) : low_(pair(a.x)), high_(low_) {}
  __device__ __forceinline__ void look(const uint4& a, const uint4& b) {
    look(a.x, b.x), look(a.y, b.y), look(a.z, b.z), look(a.w, b.w);
  }
  __device__ __forceinline__ void look(const uint4& a) { look(a.x, a.y), look(a.z, a.w); }
  __device__ __forceinline__ lift::Extremes all() const {
    return {static_cast<float>(__hmin_nan(low_.x, low_.y)), static_cast<float>(__hmax_nan(high_.x, high_.y))};
  }

 private:
  using Pair = std::conditional_t<std::is_same_v<E, fold::BFloat16>, __nv_bfloat162, __half2>;
  static __device__ __forceinline__ Pair pair(unsigned word) { return *reinterpret_cast<const Pair*>(&word); }
  /// One instruction takes the extreme of three pairs.
  __device__ __forceinline__ void look(unsigned a, unsigned b) {
    low_ = __hmin2_nan(__hmin2_nan(low_, pair(a)), pair(b));
    high_ = __hmax2_nan(__hmax2_nan(high_, pair(a)), pair(b));
  }
  Pair low_, high_;
};
template <>
class RunningExtremes<float> {
 public:
  __device__ __forceinline__ explicit RunningExtremes(const uint4& a) { all_.low = all_.high = __uint_as_float(a.x); }
  __device__ __forceinline__ void look(const uint4& a, const uint4& b) { look(a), look(b); }
  __device__ __forceinline__ void look(const uint4& a) {
    const uint4 raw[1] = {a};
    const lift::Extremes own = Packed<float>::extremes(raw);
    all_ = {lift::least(all_.low, own.low), lift::most(all_.high, own.high)};
  }
  __device__ __forceinline__ lift::Extremes all() const { return all_; }

 private:
  lift::Extremes all_;
};

/// A run in the guessed frame.
struct GuessedState {
  float m, d;
  bool right;  ///< as far as this lane's elements tell; if not of all lanes, the rest is nothing
};

/// The largest exponent of a run's terms, and the smallest of this lane's.
struct Range {
  float top, bottom;
};
template <int kLanes>
__device__ __forceinline__ Range range_of(const lift::Extremes& own, float c) {
  using S = fold::Scalar<float>;
  constexpr float kMagic = fold::Real<float>::kMagic;
  const float low = S::fma(c > 0.F ? own.low : own.high, c, kMagic);
  float high = S::fma(c > 0.F ? own.high : own.low, c, kMagic);
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2)
    high = lift::most(high, __shfl_xor_sync(lift::kWholeWarp, high, distance));
  return {S::sub(high, kMagic), S::sub(low, kMagic)};
}
/// d / 2^k, of normal numbers.
__device__ __forceinline__ float lowered(float d, float k) {
  return __int_as_float(__float_as_int(d) - (static_cast<int>(k) << 23));
}

/// The frame that a run is folded in: of its first element, made even.
class GuessedFrame {
 public:
  __device__ __forceinline__ GuessedFrame(float first, float c) : GuessedFrame(frame_of(first, c), c, 0) {}
  __device__ __forceinline__ const lift::FrameTerms& terms() const { return terms_; }

  /// The state of kLanes lanes' run: d is its sum of terms, `own` this lane's extremes.
  template <int kLanes>
  __device__ __forceinline__ GuessedState state(float d, const lift::Extremes& own) const {
    const Range range = range_of<kLanes>(own, terms_.c);
    const bool right = sound_ && range.top - frame_ <= kFurthest && range.bottom - frame_ >= -kFurthest;
    return {range.top, lowered(d, range.top - frame_), right};
  }

 private:
  using S = fold::Scalar<float>;
  static constexpr float kMagic = fold::Real<float>::kMagic, kFurthest = 60.F;
  static __device__ __forceinline__ float frame_of(float x, float c) { return S::sub(S::fma(x, c, kMagic), kMagic); }
  __device__ __forceinline__ GuessedFrame(float guess, float c, int)
      : sound_(fabsf(guess) < -fold::Real<float>::kFastLowest - 2.F * kFurthest),
        terms_(c, sound_ ? guess : 0.F),
        frame_(terms_.unit == 1.F ? guess : S::sub(guess, 1.F)) {}

  bool sound_;
  lift::FrameTerms terms_;
  float frame_;
};

/// A lane's part of a run in shared memory: the vectors of Tile, and one more for what a run that begins inside a
/// vector has behind its last slot.
template <class E, int kLanes>
struct Slots {
  static constexpr int kVectors = 16, kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize;
  static constexpr int kSlots = kVectors * kWidth * kLanes, kRuns = 32 / kLanes;
  /// From a run's place to the next one's. Eight lanes read their vectors at a time and want a bank each: runs that lie
  /// apart are a vector more than a multiple of 8 apart; of those that lie as in x, each lane takes its vectors in an
  /// order of its own, which the tree does not see (vectors j and j + 8, whatever they are called, meet first).
  static constexpr int kDense = kSlots * kSize, kLoose = kDense + 16;
  /// Of a tile's place. Runs that lie as in x lie so to a line of memory, too: measured, that takes a twelfth less time
  /// where rows begin inside lines.
  static constexpr int kBytes = whole_lines(std::max(kRuns * kLoose, kRuns* kDense + kCopyLine));
  static constexpr int kTurns = 8 / kLanes;

  const char* at;  ///< the lane's first vector
  int turn;        ///< bytes, by which the offsets of vectors differ from their order
  uint4 first;     ///< with what the run has behind its last slot

  /// shift: elements from the place to the run's first one.
  __device__ __forceinline__ Slots(const char* place, int shift, bool dense)
      : at(place + 16 * (threadIdx.x % kLanes)),
        turn(dense ? static_cast<int>(threadIdx.x) / kLanes % kTurns * kLanes * 16 : 0),
        first(stored(0)) {
    if (__any_sync(lift::kWholeWarp, shift != 0) && threadIdx.x % kLanes == 0)
      first = joined(first, stored(kVectors), shift * kSize);
  }
  __device__ __forceinline__ uint4 stored(int j) const {
    return *reinterpret_cast<const uint4*>(at + (16 * kLanes * (j % kTurns) ^ turn) + 128 * (j / kTurns));
  }
  /// Vectors fewer apart than this are added by loops: of less code fewer instructions have to come from their cache.
  static constexpr int kLooped = 2;
  /// Whether vector j holds elements of the run.
  __device__ __forceinline__ bool has(int) const { return true; }
  /// The sum of vectors j and j + stride, component by component.
  template <int stride, class Terms>
  __device__ __forceinline__ void add_pair(float (&s)[kWidth], int j, const Terms& terms,
                                           RunningExtremes<E>& extremes) const {
    const uint4 one = j == 0 ? first : stored(j), two = stored(j + stride);
    float t[kWidth];
    extremes.look(one, two);
    terms(one, s);
    terms(two, t);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) s[k] = fold::Scalar<float>::add(s[k], t[k]);
  }
};

/// The same of a run of fewer elements than slots. Slots that hold none show the run's first element.
template <class E, int kLanes>
struct CutSlots : Slots<E, kLanes> {
  using Whole = Slots<E, kLanes>;
  using Whole::kWidth;
  static constexpr int kLooped = 4;
  static constexpr int kRow = kWidth * kLanes;  ///< slots of all lanes' j-th vectors

  int end;        ///< slots from the lane's first to the run's end
  unsigned hole;  ///< bits: slots of the lane's first vector before the run, without what it has behind its last one
  int whole;      ///< vectors a lane before which every lane of a run of n elements has all, but for its first
  int rows;       ///< vectors a lane that any run of n elements reaches
  uint4 filler;

  __device__ __forceinline__ CutSlots(const char* place, int shift, int n)
      : Whole(place, 0, false),
        end(shift + n - kWidth * static_cast<int>(threadIdx.x % kLanes)),
        hole(0),
        whole(n / kRow),
        rows(min(Whole::kVectors, (n + 2 * (kWidth - 1)) / kRow + 1)) {
    const E one = reinterpret_cast<const E*>(place)[shift];
    E all[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) all[k] = one;
    filler = Packed<E>::join(all);
    this->first = vector_to_end(0);
    if (shift == 0 || threadIdx.x % kLanes != 0) return;
    const int wrapped = max(0, shift + n - Whole::kSlots);
    hole = (1U << shift) - (1U << min(wrapped, shift));
    uint4 behind = filler;
    if (wrapped > 0) behind = joined(filler, this->stored(Whole::kVectors), wrapped * Whole::kSize);
    this->first = joined(this->first, behind, shift * Whole::kSize);
  }
  __device__ __forceinline__ bool has(int j) const { return j < rows; }
  template <int stride, class Terms>
  __device__ __forceinline__ void add_pair(float (&s)[kWidth], int j, const Terms& terms,
                                           RunningExtremes<E>& extremes) const {
    find(s, j, terms, extremes);
    if (!has(j + stride)) return;
    float t[kWidth];
    find(t, j + stride, terms, extremes);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) s[k] = fold::Scalar<float>::add(s[k], t[k]);
  }

 private:
  __device__ __forceinline__ uint4 vector_to_end(int j) const {
    const int here = end - kRow * j;
    return here >= kWidth ? this->stored(j) : joined(filler, this->stored(j), here * Whole::kSize);
  }
  /// The terms of vector j, 0 where it holds no element.
  template <class Terms>
  __device__ __forceinline__ void find(float (&s)[kWidth], int j, const Terms& terms,
                                       RunningExtremes<E>& extremes) const {
    const bool is_whole = j > 0 && j < whole;
    const uint4 raw = is_whole ? this->stored(j) : j == 0 ? this->first : vector_to_end(j);
    extremes.look(raw);
    terms(raw, s);
    if (is_whole) return;
    const int here = end - kRow * j;
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      if (k >= here) s[k] = 0.F;
    if (j > 0) return;
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      if ((hole >> k & 1U) != 0) s[k] = 0.F;
  }
};

/// The terms of a vector, each computed.
template <class E>
struct ComputedTerms {
  lift::FrameTerms frame;
  template <int kWidth>
  __device__ __forceinline__ void operator()(const uint4& raw, float (&s)[kWidth]) const {
    Packed<E>::unpack(raw, s);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) s[k] = frame.term<false>(s[k]);
  }
};
/// Some computed, some looked up: the one is bound by instructions, the other by shared memory, and they overlap.
struct MixedTerms {
  const TermTable& table;
  lift::FrameTerms frame;
  __device__ __forceinline__ void operator()(const uint4& raw, float (&s)[8]) const {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
    Packed<fold::BFloat16>::unpack(raw, s);
#pragma unroll
    for (int k = 0; k < 4; ++k) s[k] = frame.term<false>(s[k]);
#pragma unroll
    for (int k = 4; k < 8; k += 2) table.look_up(words[k / 2], s[k], s[k + 1]);
  }
};

/// The node of the canonical tree over vectors j, j + stride, j + 2 stride, …, component by component. Depth first: few
/// sums wait at a time.
template <class E, int stride, class From, class Terms, int kWidth>
__device__ __forceinline__ void add_vectors(float (&s)[kWidth], const From& from, int j, const Terms& terms,
                                            RunningExtremes<E>& extremes) {
  using A = fold::Scalar<float>;
  float t[kWidth];
  if constexpr (2 * stride == From::kVectors) {
    from.template add_pair<stride>(s, j, terms, extremes);
  } else if constexpr (stride < From::kLooped) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) s[k] = 0.F;
#pragma unroll 1
    for (int i = 0; i < 2 && from.has(j + i * stride); ++i) {
      add_vectors<E, 2 * stride>(t, from, j + i * stride, terms, extremes);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) s[k] = A::add(s[k], t[k]);
    }
  } else {
    add_vectors<E, 2 * stride>(s, from, j, terms, extremes);
    if (!from.has(j + stride)) return;
    add_vectors<E, 2 * stride>(t, from, j + stride, terms, extremes);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) s[k] = A::add(s[k], t[k]);
  }
}

/// The state of a run.
template <class E, int kLanes, class From>
__device__ __forceinline__ GuessedState fold_guessed(const From& from, float c) {
  float s[From::kWidth];
  Packed<E>::unpack(from.first, s);
  const GuessedFrame frame(kLanes == 1 ? s[0] : __shfl_sync(lift::kWholeWarp, s[0], 0, kLanes), c);
  RunningExtremes<E> extremes(from.first);
  add_vectors<E, 1>(s, from, 0, ComputedTerms<E>{frame.terms()}, extremes);
  const float d = lift::add_across<From::kWidth, kLanes>(s);
  return frame.state<kLanes>(d, extremes.all());
}

/// The same in the frame 0, with terms from the table.
template <int kLanes, class From>
__device__ __forceinline__ GuessedState fold_looked_up(const From& from, float c, const TermTable& table) {
  float s[From::kWidth];
  RunningExtremes<fold::BFloat16> extremes(from.first);
  add_vectors<fold::BFloat16, 1>(s, from, 0, MixedTerms{table, lift::FrameTerms(c, 0.F)}, extremes);
  const float d = lift::add_across<From::kWidth, kLanes>(s);
  const Range range = range_of<kLanes>(extremes.all(), c);
  const bool right = range.top <= TermTable::kFurthest && range.bottom >= -TermTable::kFurthest &&
                     range.bottom >= range.top - TermTable::kSpan;
  return {range.top, lowered(d, range.top), right};
}

/// The state of a run whose slots are not full, or whose elements are beyond the table: functions of their own, so that
/// others do not pay for them.
template <class E, int kLanes>
__device__ __noinline__ GuessedState fold_cut(const char* place, int shift, int n, float c) {
  return fold_guessed<E, kLanes>(CutSlots<E, kLanes>(place, shift, n), c);
}
template <int kLanes>
__device__ __noinline__ GuessedState fold_cut_looked_up(const char* place, int shift, int n, float c, TermTable table) {
  return fold_looked_up<kLanes>(CutSlots<fold::BFloat16, kLanes>(place, shift, n), c, table);
}

/// By the definition's way, from x, by the whole warp.
template <class E>
__device__ __noinline__ fold::LogSumExp<float>::State fold_exactly(const char* first, int n, const PlainRows& p) {
  const Tile<E, 32> tile(first);
  float v[lift::kPerLane];
  tile.load(v, first, n, p.factor);
  return lift::WarpFold<Tile<E, 32>::kWidth>::reduce(v, p.factor.c).state;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
