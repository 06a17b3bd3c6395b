// One frame for all chunks of a row, guessed from the row before: its terms wait for no maximum, its chunks' sums are
// plain floats that add up as they are, and one reciprocal serves them all. Any frame in which no term is flushed or
// subnormal gives the canonical tree's bits, because every rescale is then an exact product.
#pragma once

#include "cuda/reciprocal.cuh"
#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// An even frame. It holds a row if all of the row's exponents n are within kBelow under it and kAbove over it, or
/// those of absent elements: no two are then further apart than terms of one chunk may be (fold::Real::kFlush). In
/// chunks that are not full elements as low as what stands for absent ones (hides()) are held, too; of float32 all that
/// are so low that no other is near them (Seen).
struct GuessedFrame {
  static constexpr int kAbove = 24, kBelow = 100, kLead = 12;
  static_assert(kAbove + kBelow < -fold::Real<float>::kFlush);
  static constexpr float kLeastTerm = 0x1p-101F;                         ///< of elements that the frame holds
  static constexpr float kHighest = fold::Real<float>::kMagic + kAbove;  ///< z

  float magic = fold::Real<float>::kMagic;  ///< kMagic less the frame

  __device__ __forceinline__ float z(float x, float c) const { return fold::Scalar<float>::fma(x, c, magic); }
  static __device__ __forceinline__ bool holds(float low, float high) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    return high <= kHighest && low >= kMagic - kBelow;
  }
  /// What stands where no element is: a number about kHidden under the frame, rounded to E, which may be an element's,
  /// too. Up to 2^18 terms of up to 2^(8 - kHidden) add nothing to a sum of others, kSeen under it at most: they are
  /// less than half of its last place. So a chunk's sum is right if any other is in it.
  static constexpr int kHidden = 118, kSeen = 66, kRounded = 6;
  static constexpr float kLeastSeen = 0x1p-67F, kLeastHidden = 0x1p-125F;  ///< terms
  static_assert(8 - kHidden + 18 < -kSeen - 1 - 24);
  template <class E>
  __device__ __forceinline__ float hidden(float c) const {
    return fold::widen(Packed<E>::narrow(__fdividef(static_cast<float>(s() - kHidden), c)));
  }
  /// Whether that holds: `rest` is its z, `low` that of the lowest number, which may be itself, `seen` that of the
  /// lowest other.
  static __device__ __forceinline__ bool hides(float rest, float low, float seen) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    return rest >= kMagic - kHidden - kRounded && rest <= kMagic - kHidden + kRounded && low >= rest &&
           seen >= kMagic - kSeen;
  }
  /// Whether an element of 0 is no lower than that.
  __device__ __forceinline__ bool sees_zero() const { return magic >= fold::Real<float>::kMagic - kSeen; }

  /// What the z of elements seen one by one say, of terms that are 0 where z is low. Elements kUnseen or more below
  /// the frame are 0 in their own chunk's frame, too, if that holds any others; those above them, but below kBelow, may
  /// not be.
  class Seen {
   public:
    template <bool kSecond>
    __device__ __forceinline__ void see(float z) {
      const int bits = __float_as_int(z);
      if constexpr (kSecond) {
        high_ = __vimax3_s32(high_, first_, bits);
      } else {
        first_ = bits;
      }
      between_ = __viaddmin_u32(static_cast<unsigned>(bits), static_cast<unsigned>(-kLowest), between_);
    }
    __device__ __forceinline__ bool holds() const {
      return high_ <= __float_as_int(kHighest) && between_ >= static_cast<unsigned>(kUnseen - 1 - kBelow);
    }
    __device__ __forceinline__ float high() const { return __int_as_float(high_); }

   private:
    static constexpr int kUnseen = kBelow - static_cast<int>(fold::Real<float>::kFlush) + 1;
    static constexpr int kLowest = 0x4B400000 - kUnseen + 1;
    int high_ = 0, first_ = 0;
    unsigned between_ = ~0U;
  };

  __device__ __forceinline__ lift::FrameTerms terms(float c) const { return lift::FrameTerms::in_even_frame(c, magic); }

  /// To where a row of this sum in the frame `of` would have been kLead under it, unless it was about there.
  __device__ __forceinline__ void follow(float sum, const GuessedFrame& of) {
    if (sum >= 0x1p-20F && sum < 0x1p-4F) return;
    follow(of.s() + (__float_as_int(sum) >> 23) - 127);
  }
  __device__ __forceinline__ void follow(const lift::Root& root) {
    const int z = root.node.z;
    if (z == lift::kFar) {
      if (root.far.d > 0.F) follow(exponent(static_cast<float>(root.far.m)));
    } else if (z != lift::kNone) {
      follow(exponent(fold::Scalar<float>::sub(__int_as_float(z), fold::Real<float>::kMagic)));
    }
  }
  /// The node in its own frame of a row of this sum; top: the bits of its largest z.
  __device__ __forceinline__ lift::Node node(float sum, int top) const {
    const int above = top - __float_as_int(fold::Real<float>::kMagic);
    const float own = fold::Real<float>::kMagic + static_cast<float>(s() + above);
    return {__float_as_int(own), __int_as_float(__float_as_int(sum) - (above << 23))};
  }

 private:
  static __device__ __forceinline__ int exponent(float whole) { return __float2int_rn(whole); }
  __device__ __forceinline__ int s() const {
    return exponent(fold::Scalar<float>::sub(fold::Real<float>::kMagic, magic));
  }
  __device__ __forceinline__ void follow(int logsumexp) {
    constexpr int kFarthest = 1 << 21;
    const int to = logsumexp < -kFarthest || logsumexp > kFarthest ? 0 : (logsumexp + kLead) & ~1;
    magic = fold::Scalar<float>::sub(fold::Real<float>::kMagic, static_cast<float>(to));
  }
};

/// A row's state as a kernel in whose loop nothing is to wait leaves it, where that of a row in no frame would lie: the
/// sum of its terms in the row's frame, and its largest z.
struct alignas(16) FramedState {
  using State = fold::LogSumExp<float>::State;
  static constexpr unsigned kMark = 0xFFF8'6672U;  ///< where State has the upper half of m, which is no NaN

  float magic;  ///< of the frame
  unsigned mark;
  float sum;
  int top;  ///< the bits of the largest z

  static __device__ __forceinline__ void put(State* to, const GuessedFrame& frame, float sum, int top) {
    *reinterpret_cast<FramedState*>(to) = {frame.magic, kMark, sum, top};
  }
  /// The state of a row that was left in either way.
  __device__ __forceinline__ operator State() const {
    return mark == kMark ? lift::state_of(GuessedFrame{magic}.node(sum, top)) : *reinterpret_cast<const State*>(this);
  }
  static __device__ __forceinline__ State state(const State* from) {
    return *reinterpret_cast<const FramedState*>(from);
  }
};
static_assert(sizeof(FramedState) == sizeof(FramedState::State));

/// Who needs to know the rows' own m, and so their largest z: nobody, one thread of a cluster, or all.
enum class Tops { none, first_block, all };

/// What the chunks of two rows by turns send: sums in the row's frame, NaN where that does not hold a chunk, and what
/// no chunk sends to is zero. Tops::first_block: the largest z of all warps is found there; Tops::all: a chunk's sum
/// comes with its warp's.
template <int kChunks, Tops kTops>
struct FrameMail {
  struct alignas(8) Topped {
    float sum;
    int top;
  };
  using Sum = std::conditional_t<kTops == Tops::all, Topped, float>;
  /// Neighbouring chunks, which a lane adds up first: 8, 16 or 32 runs in all.
  static constexpr int kRun = kChunks / 32;
  /// With a gap behind it, so that lanes do not meet in a bank.
  struct alignas(16) Run {
    Sum of[kRun];
    float gap[4];
  };
  struct alignas(16) Row {
    Run sums[32];
  } rows[2];
  int tops[2];  ///< the rows' largest z
  MailTurns turns;
  int bytes;  ///< of a row's mail

  static __device__ __forceinline__ int warps() { return static_cast<int>(lift::Cluster::size() * (blockDim.x / 32)); }
  /// MailTurns::init; more: bytes that come besides.
  __device__ __forceinline__ void init(int chunks, int more) {
    turns.init();
    const int tops_too = kTops == Tops::first_block && lift::Cluster::rank() == 0 ? warps() : 0;
    if (threadIdx.x < 2)
      bytes = chunks * static_cast<int>(sizeof(Sum)) + tops_too * static_cast<int>(sizeof(int)) + more;
    if (threadIdx.x < 2) tops[threadIdx.x] = 0;
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kChunks; i += static_cast<int>(blockDim.x))
      rows[i / kChunks].sums[i % kChunks / kRun].of[i % kRun] = {};
  }
  __device__ __forceinline__ void expect() {
    if (threadIdx.x < 2) turns.expect(bytes);  // others have not seen them yet
  }
  template <bool kKeepsCache>
  __device__ __forceinline__ void wait(int turn) {
    turns.template wait<kKeepsCache>(turn, bytes);
  }
  /// By a warp: what a chunk of this sum sends; z: the lane's largest.
  static __device__ __forceinline__ Sum sum_with_top(float sum, float z) {
    if constexpr (kTops == Tops::all) {
      return {sum, top_of_warp(z)};
    } else {
      return sum;
    }
  }
  /// By the kLanes lanes that hold a chunk, to all blocks of the cluster.
  template <int kLanes>
  __device__ __forceinline__ void send_sum(int turn, unsigned chunk, const Sum& sum) {
    static_assert(kLanes >= 16);  // blocks of a cluster
    const unsigned to = thread_index() % kLanes;
    if (to >= lift::Cluster::size()) return;
    const unsigned place = lift::Cluster::map(&rows[MailTurns::place(turn)].sums[chunk / kRun].of[chunk % kRun], to),
                   barrier = lift::Cluster::map(&turns.barrier(turn), to);
    if constexpr (kTops == Tops::all) {
      send_word(place, barrier, fold::bits_as<std::uint64_t>(sum));
    } else {
      send_u32(place, barrier, __float_as_uint(sum));
    }
  }
  /// By a warp.
  __device__ __forceinline__ void send_top(int turn, float z) {
    const int top = top_of_warp(z);
    if (lane_index() == 0)
      send_largest(lift::Cluster::map(&tops[MailTurns::place(turn)], 0), lift::Cluster::map(&turns.barrier(turn), 0),
                   top);
  }
  static __device__ __forceinline__ int runs(int n) {
    return n <= 8 * kRun * lift::kChunk ? 8 : n <= 16 * kRun * lift::kChunk ? 16 : 32;
  }
  /// Of a row of n elements, the lane's; before its mail has come.
  __device__ __forceinline__ const Run& own_run(int turn, int n) const {
    return rows[MailTurns::place(turn)].sums[lane_index() & (runs(n) - 1)];
  }
  /// Then the sum over its chunks, in every lane.
  static __device__ __forceinline__ float sum(const Run& run, int n) {
    using S = fold::Scalar<float>;
    float of[kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i) of[i] = sum_of(run.of[i]);
#pragma unroll
    for (int stride = 1; stride < kRun; stride *= 2) {
#pragma unroll
      for (int i = 0; i + stride < kRun; i += 2 * stride) of[i] = S::add(of[i], of[i + stride]);
    }
    float sum = of[0];
    const auto across = [&](int distance) { sum = S::add(sum, __shfl_xor_sync(lift::kWholeWarp, sum, distance)); };
    across(1), across(2), across(4);
    if (runs(n) > 8) across(8);
    if (runs(n) > 16) across(16);
    return sum;
  }
  /// And its largest z.
  static __device__ __forceinline__ int top(const Run& run) requires(kTops == Tops::all) {
    int top = 0;
#pragma unroll
    for (int i = 0; i < kRun; ++i) top = max(top, run.of[i].top);
    return __reduce_max_sync(lift::kWholeWarp, top);
  }
  /// By every warp, once for each row whose mail has come: whether the thread is the one that takes the row's largest
  /// z, and makes its place ready for the row after the next. In the cluster's first block it is of the last warp, as
  /// the first has the rows' source to look after.
  __device__ __forceinline__ bool takes_top(int turn, int& top) {
    if (thread_index() != blockDim.x - 32 || lift::Cluster::rank() != 0) return false;
    int& place = tops[MailTurns::place(turn)];
    top = place;
    place = 0;
    return true;
  }

 private:
  static __device__ __forceinline__ int top_of_warp(float z) {
    return __reduce_max_sync(lift::kWholeWarp, __float_as_int(z));
  }
  static __device__ __forceinline__ float sum_of(const Sum& sum) {
    if constexpr (kTops == Tops::all) {
      return sum.sum;
    } else {
      return sum;
    }
  }
};

/// The element of least x*c of those above `rest`, which no element is below; infinite if there is none. `enough`: 0
/// will do for those that are not below it.
template <class E, int kVectors>
__device__ __forceinline__ float least_above(const uint4 (&raw)[kVectors], float rest, float c, bool enough) {
  static_assert(sizeof(E) == 2);
  const unsigned flip = c < 0.F ? 0x8000U : 0U, flips = flip * 0x10001U, below = Packed<E>::narrow(rest).bits ^ flip;
  const auto over_words = [&](const auto& take) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      for (const unsigned word : {raw[j].x, raw[j].y, raw[j].z, raw[j].w}) take(word ^ flips);
  };
  const auto element = [flip](unsigned bits) { return fold::widen(E{static_cast<std::uint16_t>(bits ^ flip)}); };
  // As unsigned integers negative numbers order by size, and what is added makes 0 of the rest, which is above them.
  if (below >= 0x8000U) {
    const unsigned past = 0x10000U - below;
    unsigned largest = 0;
    over_words([&](unsigned word) { largest = __viaddmax_u16x2(word, past * 0x10001U, largest); });
    largest = max(largest & 0xFFFFU, largest >> 16);
    if (largest >= 0x8000U + past) return element(largest - past);
    if (enough) return 0.F;
  }
  // Positive numbers are below all others, but for the rest, of which this makes the highest.
  const unsigned past = below >= 0x8000U ? 0U : 0xFFFFU - below;
  unsigned smallest = ~0U;
  over_words([&](unsigned word) { smallest = __viaddmin_u16x2(word, past * 0x10001U, smallest); });
  smallest = min(smallest & 0xFFFFU, smallest >> 16);
  if (smallest >= 0x8000U) return copysignf(fold::infinity<float>(), c);
  return element(smallest - past);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
