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
                         float factor, fold::BFloat16* packed) {
  using A = Lanes<float>;
  const int steps = tile.d / (2 * kPairs);
  const auto* q = reinterpret_cast<const fold::BFloat16*>(tile.q);
  const std::ptrdiff_t q_bytes = tile.d * std::ptrdiff_t{sizeof(fold::BFloat16)};
  const int keys = (count + 2 * kPairs - 1) / (2 * kPairs) * 2 * kPairs;
  for (int j = 0; j < keys; j += kPairs) pack_keys(k, stride, j, count, tile.d, packed + j * tile.d);
  {
    const cpu::AmxTiles tiles;
    for (int j = 0; j < keys; j += 2 * kPairs)
      for (int r = 0; r < tile.rows; r += 2 * kPairs) {
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
  for (int r = 0; r < tile.rows; ++r)
    for (int j = 0; j < keys; j += A::kCount) {
      float* score = tile.scores + r * kTileKeys + j;
      hn::Store(A::mul(hn::Load(A::D(), score), A::set(factor)), A::D(), score);
    }
}

/// x rounded to bfloat16. Subnormal numbers become zero.
HWY_INLINE auto rounded_bfloat16(Lanes<float>::V x) {
  hn::Vec<hn::Rebind<std::uint16_t, Lanes<float>::D>> y;
  asm("vcvtneps2bf16 %1, %0" : "=v"(y.raw) : "v"(x.raw));
  return y;
}

/// A row's scores become weights in the frame of the larger of the old and the tile's maximum, each as the sum of two
/// bfloat16 numbers, the high parts before the low ones, in the scores' place.
HWY_INLINE void split_weights(float* scores, int keys, float* m, float* sum, float* rescale) {
  using A = Lanes<float>;
  using V = A::V;
  constexpr int vectors = kTileKeys / A::kCount;
  const A::D d;
  const auto nothing = A::set(-fold::infinity<float>());
  V x[vectors];
  unrolled<vectors>([&](auto n) SOFTFOLD_LANES_INLINE {
    const auto key = hn::Iota(d, static_cast<float>(n * A::kCount));
    x[n] = hn::IfThenElse(hn::Lt(key, A::set(static_cast<float>(keys))), hn::Load(d, scores + n * A::kCount), nothing);
  });
  const float most = A::max_of_lanes(A::max(A::max(x[0], x[1]), A::max(x[2], x[3])));
  const float now = std::max(*m, fold::Scalar<float>::round(most));
  const float frame = now == -fold::infinity<float>() ? 0 : now;
  *rescale = fold::Scalar<float>::times_power_of_two(1, *m - frame);
  *m = now;
  unrolled<vectors>([&](auto n) SOFTFOLD_LANES_INLINE { x[n] = weight_of<float>(x[n], A::set(frame)); });
  *sum = *sum * *rescale + A::halve(A::add(A::add(x[0], x[1]), A::add(x[2], x[3])));
  const hn::Rebind<std::uint16_t, A::D> half;
  auto* to = reinterpret_cast<std::uint16_t*>(scores);
  unrolled<vectors>([&](auto n) SOFTFOLD_LANES_INLINE {
    const auto high = rounded_bfloat16(x[n]);
    const auto back = hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(A::DBits(), high)));
    hn::Store(high, half, to + n * A::kCount);
    hn::Store(rounded_bfloat16(A::sub(x[n], back)), half, to + kTileKeys + n * A::kCount);
  });
}

/// The second operands of sums over a tile's keys: tile (column / 16, keys / 32) has 16 columns, keys by pairs, zeros
/// for keys that are not there.
HWY_INLINE void pack_values(const fold::BFloat16* v, std::int64_t stride, int count, int steps, int dv,
                            fold::BFloat16* to) {
  using A = Lanes<float>;
  const hn::Rebind<std::uint16_t, A::D> half;
  for (int j = 0; j < steps * 2 * kPairs; j += 2)
    for (int c = 0; c < dv; c += kPairs) {
      const auto row = [&](int key) SOFTFOLD_LANES_INLINE {
        if (key >= count) return hn::Zero(A::DBits());
        const auto* x = reinterpret_cast<const std::uint16_t*>(v + key * stride + c);
        return hn::PromoteTo(A::DBits(), hn::LoadU(half, x));
      };
      const auto pair = hn::Or(row(j), hn::ShiftLeft<16>(row(j + 1)));
      hn::Store(pair, A::DBits(),
                reinterpret_cast<std::uint32_t*>(to + (c / kPairs * steps + j / (2 * kPairs)) * kTile +
                                                 j % (2 * kPairs) * kPairs));
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
inline void amx_push(const RowTile<float>& tile, const fold::BFloat16* v, std::int64_t stride, int count,
                     fold::BFloat16* packed) {
  using A = Lanes<float>;
  const A::D d;
  const int steps = (count + 2 * kPairs - 1) / (2 * kPairs);
  for (int r = 0; r < tile.rows; ++r) {
    split_weights(tile.scores + r * kTileKeys, count, tile.state.m + r, tile.state.sum + r, tile.rescale + r);
    if (tile.rescale[r] == 1) continue;
    float* o = tile.state.o + r * tile.stride;
    for (int c = 0; c < tile.stride; c += A::kCount)
      hn::Store(A::mul(hn::Load(d, o + c), A::set(tile.rescale[r])), d, o + c);
  }
  pack_values(v, stride, count, steps, tile.dv, packed);
  const cpu::AmxTiles tiles;
  for (int c = 0; c < tile.dv; c += 2 * kPairs)
    for (int r = 0; r < tile.rows; r += 2 * kPairs)
      amx_block(tile.scores + r * kTileKeys, packed + c / kPairs * steps * kTile, steps,
                tile.state.o + r * tile.stride + c, tile.stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
