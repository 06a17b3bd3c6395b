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

/// A row's scores, -inf for keys that are not there.
struct RowScores {
  using A = Lanes<float>;
  static constexpr int kVectors = kTileKeys / A::kCount;
  A::V x[kVectors];

  HWY_INLINE RowScores(const float* scores, int keys, float factor) {
    const A::D d;
    unrolled<kVectors>(
        [&](auto n) SOFTFOLD_LANES_INLINE { x[n] = A::mul(hn::Load(d, scores + n * A::kCount), A::set(factor)); });
    if (keys == kTileKeys) return;
    unrolled<kVectors>([&](auto n) SOFTFOLD_LANES_INLINE {
      const auto there = hn::Lt(hn::Iota(d, static_cast<float>(n * A::kCount)), A::set(static_cast<float>(keys)));
      x[n] = hn::IfThenElse(there, x[n], A::set(-fold::infinity<float>()));
    });
  }
};

/// The weights of at most 32 rows from `row` on, each as the sum of two bfloat16 numbers, a row's high parts before its
/// low ones, in place of its scores; frames, sums and o move on.
HWY_INLINE void split_weights(const RowTile<float>& tile, int row, int keys, float factor) {
  using A = Lanes<float>;
  const A::D d;
  const int rows = std::min(2 * kPairs, tile.rows - row);
  HWY_ALIGN float most[2 * kPairs] = {}, frame[2 * kPairs];
  float *scores = tile.scores + row * kTileKeys, *rescale = tile.rescale + row, *sum = tile.state.sum + row;
  for (int r = 0; r < rows; ++r) {
    const RowScores s(scores + r * kTileKeys, keys, factor);
    most[r] = A::max_of_lanes(A::max(A::max(s.x[0], s.x[1]), A::max(s.x[2], s.x[3])));
  }
  for (int r = 0; r < rows; r += A::kCount)
    hn::Store(move_frames<float>(hn::Load(d, most + r), tile.state.m + row + r, rescale + r), d, frame + r);
  for (int r = 0; r < rows; ++r) {
    float* o = tile.state.o + (row + r) * tile.stride;
    for (int c = 0; c < tile.stride; c += kPairs) __builtin_prefetch(o + c, 1);  // the tiles are to find it near
    RowScores p(scores + r * kTileKeys, keys, factor);
    auto* to = reinterpret_cast<std::uint16_t*>(scores + r * kTileKeys);
    unrolled<RowScores::kVectors>([&](auto n)
                                      SOFTFOLD_LANES_INLINE { p.x[n] = weight_of<float>(p.x[n], A::set(frame[r])); });
    store_split(p.x[0], p.x[1], to, to + kTileKeys);
    store_split(p.x[2], p.x[3], to + 2 * A::kCount, to + kTileKeys + 2 * A::kCount);
    sum[r] = sum[r] * rescale[r] + A::halve(A::add(A::add(p.x[0], p.x[1]), A::add(p.x[2], p.x[3])));
    if (rescale[r] == 1) continue;
    for (int c = 0; c < tile.stride; c += A::kCount)
      hn::Store(A::mul(hn::Load(d, o + c), A::set(rescale[r])), d, o + c);
  }
}

/// The second operands of sums over a tile's keys: tile (column / 16, keys / 32) has 16 columns, keys by pairs, zeros
/// for keys that are not there.
HWY_INLINE void pack_values(const fold::BFloat16* v, std::int64_t stride, int count, int steps, int dv,
                            fold::BFloat16* to) {
  using A = Lanes<float>;
  const hn::Rebind<std::uint16_t, A::D> half;
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
    }
  }
}

/// o += weights . v for 32 rows and 32 columns.
HWY_INLINE void amx_block(const float* weights, const fold::BFloat16* v, int steps, float* o, int stride) {
  const std::ptrdiff_t o_bytes = stride * std::ptrdiff_t{sizeof(float)};
  float* below = o + kPairs * stride;
  cpu::amx_load<0>(o, o_bytes), cpu::amx_load<1>(o + kPairs, o_bytes);
  cpu::amx_load<2>(below, o_bytes), cpu::amx_load<3>(below + kPairs, o_bytes);
  for (int s = 0; s < steps; ++s, v += kTile) {
    cpu::amx_load<6>(v, 64), cpu::amx_load<7>(v + steps * kTile, 64);
    for (const int part : {0, kLowPart}) {
      const char* p = reinterpret_cast<const char*>(weights) + part + s * 64;
      cpu::amx_load<4>(p, kScoreBytes);
      cpu::amx_multiply<0, 4, 6>(), cpu::amx_multiply<1, 4, 7>();
      cpu::amx_load<5>(p + kPairs * kScoreBytes, kScoreBytes);
      cpu::amx_multiply<2, 5, 6>(), cpu::amx_multiply<3, 5, 7>();
    }
  }
  cpu::amx_store<0>(o, o_bytes), cpu::amx_store<1>(o + kPairs, o_bytes);
  cpu::amx_store<2>(below, o_bytes), cpu::amx_store<3>(below + kPairs, o_bytes);
}

/// TileOps::amx_push.
inline void amx_push(const RowTile<float>& tile, const fold::BFloat16* v, std::int64_t stride, int count, float factor,
                     fold::BFloat16* packed) {
  const int steps = (count + 2 * kPairs - 1) / (2 * kPairs);
  pack_values(v, stride, count, steps, tile.dv, packed);
  const cpu::AmxTiles tiles;
  for (int r = 0; r < tile.rows; r += 2 * kPairs) {
    split_weights(tile, r, count, factor);
    for (int c = 0; c < tile.dv; c += 2 * kPairs)
      amx_block(tile.scores + r * kTileKeys, packed + c / kPairs * steps * kTile, steps,
                tile.state.o + r * tile.stride + c, tile.stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
