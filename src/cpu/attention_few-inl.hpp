// Few query rows against many keys, as in decoding: K and V are read once, in place, in the type they are stored as,
// and asked for ahead of time. Read once per target.
//
// Lanes run across keys for the scores, which lie row by row, kTileKeys apart, and across columns for the values. Each
// sum is the chain that a panel's lane would have made (attention_tile.hpp), so the bits are those of a panel.
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
using cpu::TileView;

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

/// Pairs of neighbouring bfloat16 numbers as floats: those at even places and those at odd ones.
template <class V>
HWY_INLINE void split_pairs(V pairs, V& even, V& odd) {
  using A = Lanes<float>;
  const auto bits = hn::BitCast(A::DBits(), pairs);
  even = hn::BitCast(A::D(), hn::ShiftLeft<16>(bits));
  odd = hn::BitCast(A::D(), hn::And(bits, hn::Set(A::DBits(), 0xFFFF0000U)));
}

/// The sums of products of Rows rows with a vector of keys move on by one transposed vector of their elements, c ahead
/// of the rows' first: as many as lanes, or twice as many bfloat16 numbers. A key that is not there, unless the vector
/// is `Whole`, repeats the last one.
template <int Rows, bool Pairs, bool Whole, class S, class T, class V = typename Lanes<T>::V>
HWY_INLINE void few_products_step(const S* k, std::int64_t stride, int count, const T* q, V (&sum)[Rows]) {
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  V x[w];
  unrolled<w>([&](auto j) SOFTFOLD_LANES_INLINE {
    const S* key = k + (Whole ? std::int64_t{j} : std::min<std::int64_t>(j, count - 1)) * stride;
    if constexpr (Pairs) {
      x[j] = hn::LoadU(typename A::D(), reinterpret_cast<const T*>(key));
    } else {
      x[j] = load(key);
    }
  });
  transpose<T>(x);
  unrolled<w>([&](auto i) SOFTFOLD_LANES_INLINE {
    const auto add = [&](V y, int c) SOFTFOLD_LANES_INLINE {
      unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE { sum[r] = A::fma(y, A::set(q[c * w + r]), sum[r]); });
    };
    if constexpr (Pairs) {
      V even, odd;
      split_pairs(x[i], even, odd);
      add(even, 2 * i), add(odd, 2 * i + 1);
    } else {
      add(x[i], i);
    }
  });
}

/// The scores of `count` keys, at most Groups vectors of them, for Rows rows of the one panel. Whole vectors are
/// written. The vectors' chains of FMAs run side by side, while as many keys of the next tile are asked for.
template <int Rows, int Groups, class S, class T>
HWY_INLINE void few_products_of(const RowTile<T>& tile, const S* k, std::int64_t stride, int count, T* scores) {
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  typename A::V sum[Groups][Rows];
  unrolled<Groups * Rows>([&](auto r) SOFTFOLD_LANES_INLINE { sum[r / Rows][r % Rows] = A::zero(); });
  constexpr std::int64_t size = sizeof(S);
  std::int64_t next = kTileKeys * stride * size;
  const bool in_order = stride == tile.d;  // then they are asked for in the order of memory
  int c = 0;
  const auto steps = [&]<class Pairs>(Pairs) SOFTFOLD_LANES_INLINE {
    constexpr int step = Pairs::value ? 2 * w : w, keys = Groups * w;
    for (; c + step <= tile.d; c += step) {
      if (in_order) {
        for (int i = 0; i < keys * step * size; i += 64) prefetch_at(k, next + i);
        next += keys * step * size;
      } else if (c * size % 64 == 0) {
        for (int j = 0; j < keys; ++j) prefetch_at(k + c, next + j * stride * size);
      }
      unrolled<Groups>([&](auto g) SOFTFOLD_LANES_INLINE {
        few_products_step<Rows, Pairs::value, Groups != 1>(k + g * w * stride + c, stride, count - g * w,
                                                           tile.q + c * w, sum[g]);
      });
    }
  };
  if constexpr (std::is_same_v<S, fold::BFloat16>) steps(std::true_type());
  steps(std::false_type());
  unrolled<Groups>([&](auto g) SOFTFOLD_LANES_INLINE {
    unrolled<Rows>(
        [&](auto r) SOFTFOLD_LANES_INLINE { hn::Store(sum[g][r], typename A::D(), scores + r * kTileKeys + g * w); });
  });
}

/// TileOps::few_products. Rows that only fill up are computed too.
template <class S, class T>
void few_products(const RowTile<T>& tile, const void* k, std::int64_t stride, int count) {
  constexpr int w = Lanes<T>::kCount;
  const auto all = [&]<class R>(R) HWY_ATTR {
    int j = 0;
    const auto vectors = [&]<class G>(G, int keys) HWY_ATTR {
      few_products_of<R::value, G::value>(tile, static_cast<const S*>(k) + j * stride, stride, keys, tile.scores + j);
    };
    for (; j + 2 * w <= count; j += 2 * w) vectors(std::integral_constant<int, 2>(), 2 * w);
    for (; j < count; j += w) vectors(std::integral_constant<int, 1>(), std::min(w, count - j));
  };
  if (tile.rows == 1) return all(std::integral_constant<int, 1>());
  if (tile.rows == 2) return all(std::integral_constant<int, 2>());
  if constexpr (kFewRows < T >> 4)
    if (tile.rows > 4) return all(std::integral_constant<int, 8>());
  if constexpr (kFewRows < T >> 2) all(std::integral_constant<int, 4>());
}
#endif

/// A score as the options make it of a product, -inf for a key that is not seen. `at(x)` is row or rows of x, `bias`
/// theirs for this key.
template <class T, class At, class V = typename Lanes<T>::V>
HWY_INLINE V adjusted(V t, V key, const T* bias, const TileView<T>& view, const At& at) {
  using A = Lanes<T>;
  const auto hidden = A::set(-fold::infinity<T>());
  t = A::mul(t, A::set(view.factor));
  if (view.cap != T(0)) t = A::mul(A::set(view.cap), tanh<A>(t));
  if (view.slope != nullptr) t = A::fma(A::neg(at(view.slope)), hn::Abs(A::sub(at(view.position), key)), t);
  if (bias != nullptr) {
    const auto b = hn::Load(typename A::D(), bias);
    t = hn::IfThenElse(hn::Eq(b, hidden), hidden, A::fma(b, A::set(static_cast<T>(fold::kLog2E)), t));
  }
  if (view.first == nullptr) return t;
  return hn::IfThenElse(hn::And(hn::Le(at(view.first), key), hn::Le(key, at(view.last))), t, hidden);
}

/// A key's weight in the frame m of its row: what its score's power of two is there.
template <class T, class V = typename Lanes<T>::V>
HWY_INLINE V weight_of(V score, V m) {
  using A = Lanes<T>;
  const auto unit = A::set(fold::Real<T>::kMagic + static_cast<T>(sizeof(T) == 4 ? 127 : 1023));
  const auto s = split<A>(score);
  const auto k = A::sub(s.n, m);
  // A product, not an addition to the exponent, which would make a number of a NaN.
  const auto power = hn::ShiftLeft<A::kMantissaBits>(hn::BitCast(typename A::DBits(), A::add(k, unit)));
  const auto weight = A::mul(exp2_fraction<A>(s.f), hn::BitCast(typename A::D(), power));
  return hn::IfThenZeroElse(hn::Lt(k, A::set(fold::Real<T>::kFlush)), weight);
}

/// The frames of rows whose largest new scores are `most`: *m moves on, and *rescale is what their sums are to be
/// multiplied by. Gives the frames to subtract, also where nothing is seen yet.
template <class T, class V = typename Lanes<T>::V>
HWY_INLINE V move_frames(V most, T* m, T* rescale) {
  using A = Lanes<T>;
  const typename A::D d;
  const auto old = hn::Load(d, m);
  const auto now = A::max(old, A::round(most));
  hn::Store(now, d, m);
  const auto frame = hn::IfThenElse(hn::Eq(now, A::set(-fold::infinity<T>())), A::zero(), now);
  hn::Store(A::times_power_of_two(A::set(1), A::sub(old, frame)), d, rescale);
  return frame;
}

/// Where the weight of row r and key j lies among a tile's: r * row + j * key.
struct WeightSteps {
  int row, key;
};

/// o = rescale * o + weights . v for Rows rows and Vectors vectors of v's columns. `Ahead`: the values `ahead` bytes
/// further are asked for.
template <int Rows, int Vectors, bool Ahead, class S, class T>
HWY_INLINE void block_values(const T* HWY_RESTRICT weights, WeightSteps steps, int keys, const S* HWY_RESTRICT v,
                             std::int64_t v_stride, const T* HWY_RESTRICT rescale, T* HWY_RESTRICT o, int stride,
                             std::int64_t ahead = 0) {
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  const typename A::D d;
  // Of bfloat16 a vector holds a pair's first numbers and the next one its second ones: that widens them fastest.
  constexpr bool pairs = std::is_same_v<S, fold::BFloat16> && Vectors % 2 == 0;
  typename A::V sum[Rows * Vectors];
  unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE {
    const auto factor = A::set(rescale[r]);
    unrolled<Vectors>([&](auto n) SOFTFOLD_LANES_INLINE {
      auto& at = sum[r * Vectors + n];
      if constexpr (!pairs) at = hn::Load(d, o + r * stride + n * w);
      if constexpr (pairs && n % 2 == 0) hn::LoadInterleaved2(d, o + r * stride + n * w, at, sum[r * Vectors + n + 1]);
    });
    unrolled<Vectors>([&](auto n)
                          SOFTFOLD_LANES_INLINE { sum[r * Vectors + n] = A::mul(factor, sum[r * Vectors + n]); });
  });
  for (int j = 0; j < keys; ++j, weights += steps.key, v += v_stride) {
    typename A::V x[Vectors];
    unrolled<Vectors>([&](auto n) SOFTFOLD_LANES_INLINE {
      if constexpr (!pairs) x[n] = load(v + n * w);
      if constexpr (pairs && n % 2 == 0)
        split_pairs(hn::LoadU(d, reinterpret_cast<const T*>(v + n * w)), x[n], x[n + 1]);
      if constexpr (Ahead && n * w * sizeof(S) % 64 == 0) prefetch_at(v + n * w, ahead);
    });
    unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE {
      const auto p = A::set(weights[r * steps.row]);
      unrolled<Vectors>([&](auto n)
                            SOFTFOLD_LANES_INLINE { sum[r * Vectors + n] = A::fma(p, x[n], sum[r * Vectors + n]); });
    });
  }
  unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE {
    unrolled<Vectors>([&](auto n) SOFTFOLD_LANES_INLINE {
      T* to = o + r * stride + n * w;
      if constexpr (!pairs) hn::Store(sum[r * Vectors + n], d, to);
      if constexpr (pairs && n % 2 == 0) hn::StoreInterleaved2(sum[r * Vectors + n], sum[r * Vectors + n + 1], d, to);
    });
  });
}

#if HWY_TARGET != HWY_SCALAR
/// panel_weights() of one row, but for the sum.
template <class T>
HWY_INLINE void row_weights(T* scores, int keys, T* m, T* rescale) {
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  const typename A::D d;
  const int padded = (keys + w - 1) / w * w;
  for (int j = keys; j < padded; ++j) scores[j] = -fold::infinity<T>();
  auto most = A::set(-fold::infinity<T>());
  for (int j = 0; j < padded; j += w) most = A::max(most, hn::Load(d, scores + j));
  const T now = std::max(*m, fold::Scalar<T>::round(A::max_of_lanes(most)));
  const T frame = now == -fold::infinity<T>() ? T(0) : now;
  *rescale = fold::Scalar<T>::times_power_of_two(T(1), *m - frame);
  *m = now;
  for (int j = 0; j < padded; j += w) hn::Store(weight_of<T>(hn::Load(d, scores + j), A::set(frame)), d, scores + j);
}

/// The sums of panel_weights() for Rows rows, whose chains run side by side.
template <int Rows, class T>
HWY_INLINE void row_sums(const T* scores, int keys, const T* rescale, T* sum) {
  T total[Rows];
  unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE { total[r] = fold::Scalar<T>::mul(sum[r], rescale[r]); });
  for (int j = 0; j < keys; ++j)
    unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE { total[r] += scores[r * kTileKeys + j]; });
  unrolled<Rows>([&](auto r) SOFTFOLD_LANES_INLINE { sum[r] = total[r]; });
}

/// f(number, first) for rows in runs of 4, 2 and 1, the number a constant.
template <class F>
HWY_INLINE void for_few(int rows, const F& f) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) f(std::integral_constant<int, 4>(), r);
  for (; r + 2 <= rows; r += 2) f(std::integral_constant<int, 2>(), r);
  for (; r < rows; ++r) f(std::integral_constant<int, 1>(), r);
}

/// TileOps::few_push.
template <class S, class T>
void few_push(const RowTile<T>& tile, const void* values, std::int64_t v_stride, int count) {
  constexpr int w = Lanes<T>::kCount, wide = HWY_TARGET == HWY_AVX3 ? 4 : 2;
  const S* v = static_cast<const S*>(values);
  for (int r = 0; r < tile.rows; ++r)
    row_weights(tile.scores + r * kTileKeys, count, tile.state.m + r, tile.rescale + r);
  for_few(tile.rows, [&]<class R>(R, int r) HWY_ATTR {
    row_sums<R::value>(tile.scores + r * kTileKeys, count, tile.rescale + r, tile.state.sum + r);
  });
  for_few(tile.rows, [&]<class R>(R, int r) HWY_ATTR {
    // The first rows ask for the next tile's values, later ones for what they have at hand: that costs next to nothing.
    const std::int64_t ahead = r == 0 ? kTileKeys * v_stride * static_cast<std::int64_t>(sizeof(S)) : 0;
    const auto block = [&]<class N>(N, int column) HWY_ATTR {
      block_values<R::value, N::value, true>(tile.scores + r * kTileKeys, {kTileKeys, 1}, count, v + column, v_stride,
                                             tile.rescale + r, tile.state.o + r * tile.stride + column, tile.stride,
                                             ahead);
    };
    int column = 0;
    if constexpr (R::value <= 2)
      for (; column + 2 * wide * w <= tile.dv; column += 2 * wide * w)
        block(std::integral_constant<int, 2 * wide>(), column);
    for (; column + wide * w <= tile.dv; column += wide * w) block(std::integral_constant<int, wide>(), column);
    for (; column < tile.dv; column += w) block(std::integral_constant<int, 1>(), column);
  });
}

/// TileOps::few_adjust.
template <class T>
void few_adjust(const RowTile<T>& tile, int keys, const TileView<T>& view) {
  using A = Lanes<T>;
  const typename A::D d;
  for (int r = 0; r < tile.rows; ++r) {
    const auto at = [&](const T* x) SOFTFOLD_LANES_INLINE { return A::set(x[r]); };
    for (int j = 0; j < keys; j += A::kCount) {
      const T* bias = view.bias != nullptr ? view.bias + r * kTileKeys + j : nullptr;
      T* score = tile.scores + r * kTileKeys + j;
      hn::Store(adjusted<T>(hn::Load(d, score), hn::Iota(d, static_cast<T>(j)), bias, view, at), d, score);
    }
  }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
