// bfloat16 attention on AMX's tiles: q, k and v as they are stored, weights rounded to bfloat16, sums in float32.
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

/// x0 and x1 to nearest bfloat16 numbers, side by side. There are no subnormal ones: they would become zero.
HWY_INLINE void store_rounded(Lanes<float>::V x0, Lanes<float>::V x1, std::uint16_t* to) {
  const hn::ScalableTag<std::uint16_t> d;
  hn::Vec<decltype(d)> y;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(y.raw) : "v"(x1.raw), "v"(x0.raw));
  hn::Store(y, d, to);
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

/// The weights of at most 16 rows from `row` on, as bfloat16 in place of their scores; frames, sums and o move on.
template <bool Whole>
HWY_INLINE void round_weights(const RowTile<float>& tile, int row, int keys, float factor) {
  using A = Lanes<float>;
  const A::D d;
  const int rows = std::min(A::kCount, tile.rows - row);
  float *scores = tile.scores + row * kTileKeys, *rescale = tile.rescale + row, *sum = tile.state.sum + row;
  HWY_ALIGN float frame[A::kCount];
  A::V x[A::kCount];
  // Of rows that only fill the tile up scores are zero, and what is made of them is not read.
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
    store_rounded(p.x[0], p.x[1], to);
    store_rounded(p.x[2], p.x[3], to + 2 * A::kCount);
    hn::Store(A::add(A::add(p.x[0], p.x[1]), A::add(p.x[2], p.x[3])), d, scores + r * kTileKeys + 2 * A::kCount);
  }
  unrolled<A::kCount>([&](auto r)
                          SOFTFOLD_LANES_INLINE { x[r] = hn::Load(d, scores + r * kTileKeys + 2 * A::kCount); });
  const auto total = fold_lanes(x, [](auto a, auto b) SOFTFOLD_LANES_INLINE { return A::add(a, b); });
  hn::Store(A::add(A::mul(hn::Load(d, sum), hn::Load(d, rescale)), total), d, sum);
  for (int r = 0; r < rows; ++r) {
    float* o = tile.state.o + (row + r) * tile.stride;
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
    const char* p = reinterpret_cast<const char*>(weights) + s * 64;
    cpu::amx_load<4>(p, kScoreBytes);
    cpu::amx_multiply<0, 4, 6>(), cpu::amx_multiply<1, 4, 7>();
    cpu::amx_load<5>(p + kPairs * kScoreBytes, kScoreBytes);
    cpu::amx_multiply<2, 5, 6>(), cpu::amx_multiply<3, 5, 7>();
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
    for (const int half : {r, r + kPairs})
      count == kTileKeys ? round_weights<true>(tile, half, count, factor)
                         : round_weights<false>(tile, half, count, factor);
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
