// bfloat16 attention on AMX's tiles: q, k and v as they are stored, weights as two bfloat16 parts, sums in float32.
// Read once per target, and empty but for AVX-512.
//
// Scores lie row by row, kTileKeys apart, as those of few rows do (attention_few-inl.hpp). A row's bits depend on no
// other row of its tile.
#include "cpu/amx.hpp"
#include "cpu/attention_few-inl.hpp"

#if defined(SOFTFOLD_CPU_ATTENTION_AMX_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SOFTFOLD_CPU_ATTENTION_AMX_INL_HPP
#undef SOFTFOLD_CPU_ATTENTION_AMX_INL_HPP
#else
#define SOFTFOLD_CPU_ATTENTION_AMX_INL_HPP
#endif

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

inline constexpr int kPairs = cpu::kAmxRows;                        ///< of bfloat16 in a tile's row
inline constexpr int kTile = cpu::kAmxTileBytes / 2;                ///< bfloat16 numbers in a tile
inline constexpr int kScoreBytes = kTileKeys * int{sizeof(float)};  ///< from row to row
inline constexpr int kLowPart =
    kTileKeys * int{sizeof(fold::BFloat16)};  ///< bytes from a weight's high part to its low

/// The first operands of products over keys [first, first + 16): tile s has their elements 32 s and on, by pairs.
HWY_INLINE void pack_keys(const fold::BFloat16* k, std::int64_t stride, int first, int count, int d,
                          fold::BFloat16* to) {
  using A = Lanes<float>;
  for (int c = 0; c < d; c += 2 * kPairs, to += kTile) {
    A::V x[kPairs];
    unrolled<kPairs>([&](auto j) SOFTFOLD_LANES_INLINE {
      // A key that is not there repeats the last one; a pair is moved as a float is.
      const fold::BFloat16* key = k + std::min<std::int64_t>(first + j, count - 1) * stride + c;
      x[j] = hn::LoadU(A::D(), reinterpret_cast<const float*>(key));
    });
    transpose<float>(x);
    unrolled<kPairs>(
        [&](auto i) SOFTFOLD_LANES_INLINE { hn::Store(x[i], A::D(), reinterpret_cast<float*>(to + i * 2 * kPairs)); });
  }
}

/// TileOps::amx_products. q lies row by row, d apart, with zeros up to a multiple of 32 rows.
inline void amx_products(const RowTile<float>& tile, const fold::BFloat16* k, std::int64_t stride, int count,
                         fold::BFloat16* packed) {
  const int steps = tile.d / (2 * kPairs);
  const auto* q = reinterpret_cast<const fold::BFloat16*>(tile.q);
  const std::ptrdiff_t q_bytes = tile.d * std::ptrdiff_t{sizeof(fold::BFloat16)};
  const int keys = (count + 2 * kPairs - 1) / (2 * kPairs) * 2 * kPairs;
  for (int j = 0; j < keys; j += kPairs) pack_keys(k, stride, j, count, tile.d, packed + j * tile.d);
  const cpu::AmxTiles tiles;
  for (int r = 0; r < tile.rows; r += 2 * kPairs)
    for (int j = 0; j < keys; j += 2 * kPairs) {
      const fold::BFloat16 *a = q + r * tile.d, *b = packed + j * tile.d;
      cpu::amx_zero<0>(), cpu::amx_zero<1>(), cpu::amx_zero<2>(), cpu::amx_zero<3>();
      for (int s = 0; s < steps; ++s, a += 2 * kPairs, b += kTile) {
        cpu::amx_load<4>(a, q_bytes);
        cpu::amx_load<6>(b, 64);
        cpu::amx_multiply<0, 4, 6>();
        cpu::amx_load<7>(b + steps * kTile, 64);
        cpu::amx_multiply<1, 4, 7>();
        cpu::amx_load<5>(a + kPairs * tile.d, q_bytes);
        cpu::amx_multiply<2, 5, 6>();
        cpu::amx_multiply<3, 5, 7>();
      }
      float* to = tile.scores + r * kTileKeys + j;
      cpu::amx_store<0>(to, kScoreBytes);
      cpu::amx_store<1>(to + kPairs, kScoreBytes);
      cpu::amx_store<2>(to + kPairs * kTileKeys, kScoreBytes);
      cpu::amx_store<3>(to + kPairs * kTileKeys + kPairs, kScoreBytes);
    }
}

/// Two vectors as the sums of two bfloat16 numbers each: the first cut off, the second rounded from what is left.
/// Subnormal numbers become zero.
HWY_INLINE void store_split(Lanes<float>::V x0, Lanes<float>::V x1, std::uint16_t* high, std::uint16_t* low) {
  using A = Lanes<float>;
  const hn::ScalableTag<std::uint16_t> d;
  hn::Store(hn::ConcatOdd(d, hn::BitCast(d, x1), hn::BitCast(d, x0)), d, high);
  const auto left = [](A::V x) SOFTFOLD_LANES_INLINE {
    const auto cut = hn::And(hn::BitCast(A::DBits(), x), hn::Set(A::DBits(), 0xFFFF0000U));
    return A::sub(x, hn::BitCast(A::D(), cut));
  };
  hn::Vec<decltype(d)> y;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(y.raw) : "v"(left(x1).raw), "v"(left(x0).raw));
  hn::Store(y, d, low);
}

/// Lane j of the result is the fold of all lanes of x[j].
template <class Op>
HWY_INLINE Lanes<float>::V fold_lanes(Lanes<float>::V (&x)[Lanes<float>::kCount], const Op& op) {
  const Lanes<float>::D d;
  unrolled<4>([&](auto round) SOFTFOLD_LANES_INLINE {
    unrolled<(8 >> round)>([&](auto i) SOFTFOLD_LANES_INLINE {
      x[i] = op(hn::ConcatEven(d, x[2 * i + 1], x[2 * i]), hn::ConcatOdd(d, x[2 * i + 1], x[2 * i]));
    });
  });
  return x[0];
}

/// A row's scores, -inf for keys that are not there. Of a `Whole` tile all are.
template <bool Whole>
struct RowScores {
  using A = Lanes<float>;
  static constexpr int kVectors = kTileKeys / A::kCount;
  A::V x[kVectors];

  HWY_INLINE RowScores(const float* scores, int keys, float factor) {
    const A::D d;
    unrolled<kVectors>(
        [&](auto n) SOFTFOLD_LANES_INLINE { x[n] = A::mul(hn::Load(d, scores + n * A::kCount), A::set(factor)); });
    if constexpr (Whole) return;
    unrolled<kVectors>([&](auto n) SOFTFOLD_LANES_INLINE {
      const auto there = hn::Lt(hn::Iota(d, static_cast<float>(n * A::kCount)), A::set(static_cast<float>(keys)));
      x[n] = hn::IfThenElse(there, x[n], A::set(-fold::infinity<float>()));
    });
  }
};

/// o += weights . v for 32 rows at a time, in pieces that run beside other rows' weights: the products are AMX's work,
/// the weights that of the vectors. `low` is what the weights' low parts are multiplied by: one that is zero must not
/// meet an infinity.
class AmxSums {
 public:
  AmxSums(const RowTile<float>& tile, const fold::BFloat16* values, const fold::BFloat16* low, int steps)
      : tile_(tile), values_(values), low_(low), steps_(steps) {}

  /// The next rows, whose weights are there. Those before are done.
  HWY_INLINE void begin(int row) { row_ = row, column_ = step_ = 0; }
  /// Does as much as leaves `rest` of 32 shares.
  HWY_INLINE void advance(int rest) {
    const int columns = tile_.dv / (2 * kPairs);
    while (row_ >= 0 && ((columns - column_) * steps_ - step_) * 2 * kPairs > rest * columns * steps_) step();
  }

 private:
  HWY_INLINE void step() {
    const int stride = tile_.stride, at = column_ * 2 * steps_ * kTile;
    const std::ptrdiff_t o_bytes = stride * std::ptrdiff_t{sizeof(float)};
    float *o = tile_.state.o + row_ * stride + column_ * 2 * kPairs, *below = o + kPairs * stride;
    if (step_ == 0) {
      cpu::amx_load<0>(o, o_bytes), cpu::amx_load<1>(o + kPairs, o_bytes);
      cpu::amx_load<2>(below, o_bytes), cpu::amx_load<3>(below + kPairs, o_bytes);
    }
    const auto* high = reinterpret_cast<const char*>(tile_.scores + row_ * kTileKeys) + step_ * 64;
    load_values(values_ + at), multiply(high);
    if (low_ != values_) load_values(low_ + at);
    multiply(high + kLowPart);
    if (++step_ < steps_) return;
    cpu::amx_store<0>(o, o_bytes), cpu::amx_store<1>(o + kPairs, o_bytes);
    cpu::amx_store<2>(below, o_bytes), cpu::amx_store<3>(below + kPairs, o_bytes);
    step_ = 0, ++column_;
    if (column_ * 2 * kPairs == tile_.dv) row_ = -1;
  }
  HWY_INLINE void load_values(const fold::BFloat16* v) {
    cpu::amx_load<6>(v + step_ * kTile, 64), cpu::amx_load<7>(v + (steps_ + step_) * kTile, 64);
  }
  HWY_INLINE static void multiply(const char* part) {
    cpu::amx_load<4>(part, kScoreBytes);
    cpu::amx_multiply<0, 4, 6>(), cpu::amx_multiply<1, 4, 7>();
    cpu::amx_load<5>(part + kPairs * kScoreBytes, kScoreBytes);
    cpu::amx_multiply<2, 5, 6>(), cpu::amx_multiply<3, 5, 7>();
  }

  const RowTile<float>& tile_;
  const fold::BFloat16 *values_, *low_;
  int steps_, row_ = -1, column_ = 0, step_ = 0;
};

/// The weights of 16 rows from `row` on, each as the sum of two bfloat16 numbers, a row's high parts before its low
/// ones, in place of its scores; frames, sums and o move on. Rows that only fill the tile up are computed too, and not
/// read. Beside them go the sums of the rows before, of which `done` shares of 32 are.
template <bool Whole>
HWY_INLINE void split_weights(const RowTile<float>& tile, int row, int keys, float factor, AmxSums& sums, int done) {
  using A = Lanes<float>;
  const A::D d;
  float *scores = tile.scores + row * kTileKeys, *rescale = tile.rescale + row, *sum = tile.state.sum + row;
  HWY_ALIGN float frame[A::kCount], totals[A::kCount * A::kCount];
  A::V x[A::kCount];
  unrolled<A::kCount>([&](auto r) SOFTFOLD_LANES_INLINE {
    const RowScores<Whole> s(scores + r * kTileKeys, keys, factor);
    x[r] = A::max(A::max(s.x[0], s.x[1]), A::max(s.x[2], s.x[3]));
  });
  const auto most = fold_lanes(x, [](auto a, auto b) SOFTFOLD_LANES_INLINE { return A::max(a, b); });
  hn::Store(move_frames<float>(most, tile.state.m + row, rescale), d, frame);
  for (int r = 0; r < A::kCount; ++r) {
    const float* o = tile.state.o + (row + r) * tile.stride;  // the tiles are to find it near
    for (int c = 0; c < tile.stride; c += kPairs) __builtin_prefetch(o + c, 1);
    RowScores<Whole> p(scores + r * kTileKeys, keys, factor);
    unrolled<p.kVectors>([&](auto n) SOFTFOLD_LANES_INLINE { p.x[n] = weight_of<float>(p.x[n], A::set(frame[r])); });
    auto* to = reinterpret_cast<std::uint16_t*>(scores + r * kTileKeys);
    store_split(p.x[0], p.x[1], to, to + kTileKeys);
    store_split(p.x[2], p.x[3], to + 2 * A::kCount, to + kTileKeys + 2 * A::kCount);
    hn::Store(A::add(A::add(p.x[0], p.x[1]), A::add(p.x[2], p.x[3])), d, totals + r * A::kCount);
    sums.advance(2 * kPairs - done - r - 1);
  }
  unrolled<A::kCount>([&](auto r) SOFTFOLD_LANES_INLINE { x[r] = hn::Load(d, totals + r * A::kCount); });
  const auto total = fold_lanes(x, [](auto a, auto b) SOFTFOLD_LANES_INLINE { return A::add(a, b); });
  hn::Store(A::add(A::mul(hn::Load(d, sum), hn::Load(d, rescale)), total), d, sum);
  for (int r = 0; r < std::min(A::kCount, tile.rows - row); ++r) {
    if (rescale[r] == 1) continue;
    float* o = tile.state.o + (row + r) * tile.stride;
    for (int c = 0; c < tile.stride; c += A::kCount)
      hn::Store(A::mul(hn::Load(d, o + c), A::set(rescale[r])), d, o + c);
  }
}

/// The second operands of sums over a tile's keys: tile (column / 16, keys / 32) has 16 columns, keys by pairs, zeros
/// for keys that are not there. Gives whether all are finite.
HWY_INLINE bool pack_values(const fold::BFloat16* v, std::int64_t stride, int count, int steps, int dv,
                            fold::BFloat16* to) {
  using A = Lanes<float>;
  const hn::Rebind<std::uint16_t, A::D> half;
  const hn::ScalableTag<std::uint16_t> d;
  const auto infinity = hn::Set(d, std::uint16_t{0x7F80});
  auto most = hn::Zero(d);
  const auto wide = [&](const fold::BFloat16* x) SOFTFOLD_LANES_INLINE {
    return hn::PromoteTo(A::DBits(), hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(x)));
  };
  for (int j = 0; j < steps * 2 * kPairs; j += 2, v += 2 * stride) {
    auto* row = reinterpret_cast<std::uint32_t*>(to + j / (2 * kPairs) * kTile) + j % (2 * kPairs) / 2 * kPairs;
    for (int c = 0; c < dv; c += kPairs, row += steps * kTile / 2) {
      auto pair = hn::Zero(A::DBits());
      if (j < count) pair = wide(v + c);
      if (j + 1 < count) pair = hn::Or(pair, hn::ShiftLeft<16>(wide(v + stride + c)));
      hn::Store(pair, A::DBits(), row);
      most = hn::Max(most, hn::And(hn::BitCast(d, pair), infinity));
    }
  }
  return hn::AllFalse(d, hn::Eq(most, infinity));
}

/// A copy of `n` numbers with zeros in place of those that are not finite.
HWY_INLINE void copy_finite(const fold::BFloat16* from, int n, fold::BFloat16* to) {
  for (int i = 0; i < n; ++i) to[i] = (from[i].bits & 0x7F80) == 0x7F80 ? fold::BFloat16{0} : from[i];
}

/// TileOps::amx_push.
inline void amx_push(const RowTile<float>& tile, const fold::BFloat16* v, std::int64_t stride, int count, float factor,
                     fold::BFloat16* packed) {
  const int steps = (count + 2 * kPairs - 1) / (2 * kPairs), packed_size = 2 * kPairs * steps * tile.dv;
  const fold::BFloat16* low = packed;
  if (!pack_values(v, stride, count, steps, tile.dv, packed))
    copy_finite(packed, packed_size, packed + packed_size), low = packed + packed_size;
  const cpu::AmxTiles tiles;
  AmxSums sums(tile, packed, low, steps);
  for (int r = 0; r < tile.rows; r += 2 * kPairs) {
    for (const int half : {0, kPairs})
      count == kTileKeys ? split_weights<true>(tile, r + half, count, factor, sums, half)
                         : split_weights<false>(tile, r + half, count, factor, sums, half);
    sums.begin(r);
  }
  sums.advance(0);
}

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
