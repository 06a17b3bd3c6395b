// Few query rows against many keys, as in decoding: K and V are read once, in place, in the type they are stored as,
// and asked for ahead of time. Read once per target.
//
// Lanes run across keys for the products and across columns for the values. Each sum is the chain that a panel's lane
// would have made (attention_tile.hpp), so the bits are those of a panel.
#include "cpu/attention_tile.hpp"
#include "softfold/lift/lanes.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#if defined(SOFTFOLD_CPU_ATTENTION_FEW_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SOFTFOLD_CPU_ATTENTION_FEW_INL_HPP
#undef SOFTFOLD_CPU_ATTENTION_FEW_INL_HPP
#else
#define SOFTFOLD_CPU_ATTENTION_FEW_INL_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

using cpu::kTileKeys;
using cpu::RowTile;

/// f(0), f(1), ... f(N - 1), each with its own constant: arrays indexed by it stay in registers.
template <int N, class F>
HWY_INLINE void unrolled(const F& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) SOFTFOLD_LANES_INLINE { (f(std::integral_constant<int, I>()), ...); }
  (std::make_integer_sequence<int, N>());
}

/// The most rows that are few: registers hold a vector of keys, transposed, and each row's sums.
template <class T>
inline constexpr int kFewRows = std::min(Lanes<T>::kCount, HWY_TARGET == HWY_AVX3 ? 8 : 4);

/// Asks for what lies `ahead` bytes behind x.
HWY_INLINE void prefetch_at(const void* x, std::int64_t ahead) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::intptr_t>(x) + ahead), 0, 2);
}

#if HWY_TARGET != HWY_SCALAR
/// x[i] lane j <-> x[j] lane i. Each round moves the lowest bit of an element's place (vector, lane) to the top.
template <class T>
HWY_INLINE void transpose(typename Lanes<T>::V (&x)[Lanes<T>::kCount]) {
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  const typename A::D d;
  unrolled<std::bit_width(static_cast<unsigned>(w)) - 1>([&](auto) SOFTFOLD_LANES_INLINE {
    typename A::V y[w];
    unrolled<w / 2>([&](auto i) SOFTFOLD_LANES_INLINE {
      y[i] = hn::ConcatEven(d, x[2 * i + 1], x[2 * i]);
      y[i + w / 2] = hn::ConcatOdd(d, x[2 * i + 1], x[2 * i]);
    });
    unrolled<w>([&](auto i) SOFTFOLD_LANES_INLINE { x[i] = y[i]; });
  });
}

/// The scores of `count` keys, at most a vector of them, for Rows rows of the one panel, `width` wide.
template <int Rows, class S, class T>
HWY_INLINE void few_products_of(const RowTile<T>& tile, const S* k, std::int64_t stride, int count, T* scores) {
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  const std::int64_t ahead = kTileKeys * stride * static_cast<std::int64_t>(sizeof(S));
  typename A::V sum[Rows];
  unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE { sum[r] = A::zero(); });
  for (int c = 0; c < tile.d; c += w) {
    const bool new_line = static_cast<std::size_t>(c) * sizeof(S) % 64 == 0;
    typename A::V x[w];
    unrolled<w>([&](auto j) SOFTFOLD_LANES_INLINE {
      // A key that is not there repeats the last one.
      const S* key = k + std::min<std::int64_t>(j, count - 1) * stride + c;
      x[j] = load(key);
      if (new_line) prefetch_at(key, ahead);
    });
    transpose<T>(x);
    unrolled<w>([&](auto i) SOFTFOLD_LANES_INLINE {
      const T* q = tile.q + (c + i) * w;
      unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE { sum[r] = A::fma(x[i], A::set(q[r]), sum[r]); });
    });
  }
  HWY_ALIGN T row[w];
  unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE {
    hn::Store(sum[r], typename A::D(), row);
    for (int j = 0; j < count; ++j) scores[j * w + r] = row[j];
  });
}

/// TileOps::few_products. Rows that only fill up are computed too.
template <class S, class T>
void few_products(const RowTile<T>& tile, const void* k, std::int64_t stride, int count) {
  constexpr int w = Lanes<T>::kCount;
  const auto all = [&]<class R>(R) HWY_ATTR {
    for (int j = 0; j < count; j += w)
      few_products_of<R::value>(tile, static_cast<const S*>(k) + j * stride, stride, std::min(w, count - j),
                                tile.scores + j * w);
  };
  if (tile.rows == 1) return all(std::integral_constant<int, 1>());
  if (tile.rows == 2) return all(std::integral_constant<int, 2>());
  if constexpr (kFewRows < T >> 4)
    if (tile.rows > 4) return all(std::integral_constant<int, 8>());
  if constexpr (kFewRows < T >> 2) all(std::integral_constant<int, 4>());
}
#endif

/// o = rescale * o + weights . v for Rows rows and Vectors vectors of v's columns.
template <int Rows, int Vectors, bool Ahead, class S, class T>
HWY_INLINE void block_values(const T* HWY_RESTRICT weights, int width, int keys, const S* HWY_RESTRICT v,
                             std::int64_t v_stride, const T* HWY_RESTRICT rescale, T* HWY_RESTRICT o, int stride) {
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  const typename A::D d;
  typename A::V sum[Rows * Vectors];
  unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE {
    const auto factor = A::set(rescale[r]);
    unrolled<Vectors>([&](auto n) SOFTFOLD_LANES_INLINE {
      sum[r * Vectors + n] = A::mul(factor, hn::Load(d, o + r * stride + n * w));
    });
  });
  for (int j = 0; j < keys; ++j, weights += width, v += v_stride) {
    typename A::V x[Vectors];
    unrolled<Vectors>([&](auto n) SOFTFOLD_LANES_INLINE {
      x[n] = load(v + n * w);
      if constexpr (Ahead && n * w * sizeof(S) % 64 == 0)
        prefetch_at(v + n * w, kTileKeys * v_stride * static_cast<std::int64_t>(sizeof(S)));
    });
    unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE {
      const auto p = A::set(weights[r]);
      unrolled<Vectors>([&](auto n)
                            SOFTFOLD_LANES_INLINE { sum[r * Vectors + n] = A::fma(p, x[n], sum[r * Vectors + n]); });
    });
  }
  unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE {
    unrolled<Vectors>([&](auto n)
                          SOFTFOLD_LANES_INLINE { hn::Store(sum[r * Vectors + n], d, o + r * stride + n * w); });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
