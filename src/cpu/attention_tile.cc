// Attention's tiles, compiled for every SIMD target.
#include "softfold/lift/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_tile.cc"
#include <hwy/foreach_target.h>

#include "cpu/attention_amx-inl.hpp"
#include "cpu/attention_few-inl.hpp"
#include "cpu/write-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

using cpu::KeyTile;
using cpu::kPanelVectors;
using cpu::TileState;

/// The micro-kernels' shapes: as many accumulators as registers hold beside their operands.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
inline constexpr int kKeysAtOnce = 4, kVectorsAtOnce = 2;
#else
inline constexpr int kKeysAtOnce = 8, kVectorsAtOnce = 4;
#endif
#if HWY_TARGET == HWY_SCALAR
inline constexpr int kRowsAtOnce = 3;
#else
inline constexpr int kRowsAtOnce = 6;
#endif

/// Calls f(vectors, first row, width) for each panel of a tile, `vectors` a constant from 1 to kPanelVectors.
template <class T, class F>
HWY_INLINE void for_panels(int rows, const F& f) {
  constexpr int w = Lanes<T>::kCount, full = kPanelVectors * w;
  int row = 0;
  for (; row + full <= rows; row += full) f(std::integral_constant<int, kPanelVectors>(), row);
  const int vectors = (rows - row + w - 1) / w;
  if (vectors == 3) f(std::integral_constant<int, 3>(), row);
  if (vectors == 2) f(std::integral_constant<int, 2>(), row);
  if (vectors == 1) f(std::integral_constant<int, 1>(), row);
}

/// scores[j][row] of Keys keys and the rows of one panel of Vectors vectors.
template <int Keys, int Vectors, class T>
HWY_INLINE void panel_products(const T* HWY_RESTRICT q, int d, const T* HWY_RESTRICT k, std::int64_t k_stride,
                               T* HWY_RESTRICT scores) {
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  typename A::V sum[Keys * Vectors];
  unrolled<Keys * Vectors>([&](auto i) SOFTFOLD_LANES_INLINE { sum[i] = A::zero(); });
  for (int c = 0; c < d; ++c, q += Vectors * w) {
    typename A::V x[Vectors];
    unrolled<Vectors>([&](auto n) SOFTFOLD_LANES_INLINE { x[n] = hn::Load(typename A::D(), q + n * w); });
    unrolled<Keys>([&](auto j) SOFTFOLD_LANES_INLINE {
      const auto y = A::set(k[j * k_stride + c]);
      unrolled<Vectors>([&](auto n)
                            SOFTFOLD_LANES_INLINE { sum[j * Vectors + n] = A::fma(x[n], y, sum[j * Vectors + n]); });
    });
  }
  unrolled<Keys * Vectors>([&](auto i) SOFTFOLD_LANES_INLINE { hn::Store(sum[i], typename A::D(), scores + i * w); });
}

template <class T>
void products(const RowTile<T>& tile, const KeyTile<T>& keys) {
  for_panels<T>(tile.rows, [&]<class N>(N, int row) HWY_ATTR {
    constexpr int width = N::value * Lanes<T>::kCount;
    const T* q = tile.q + static_cast<std::ptrdiff_t>(row) * tile.d;
    T* scores = tile.scores + row * kTileKeys;
    int j = 0;
    for (; j + kKeysAtOnce <= keys.count; j += kKeysAtOnce)
      panel_products<kKeysAtOnce, N::value>(q, tile.d, keys.k + j * keys.k_stride, keys.k_stride, scores + j * width);
    for (; j < keys.count; ++j)
      panel_products<1, N::value>(q, tile.d, keys.k + j * keys.k_stride, keys.k_stride, scores + j * width);
  });
}

template <class T>
void adjust(const RowTile<T>& tile, int keys, const TileView<T>& view) {
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  const typename A::D d;
  for_panels<T>(tile.rows, [&]<class N>(N, int row) HWY_ATTR {
    constexpr int width = N::value * w;
    for (int r = 0; r < width; r += w) {
      const auto at = [&](const T* x) SOFTFOLD_LANES_INLINE { return hn::Load(d, x + row + r); };
      for (int j = 0; j < keys; ++j) {
        const int place = row * kTileKeys + j * width + r;
        const T* bias = view.bias != nullptr ? view.bias + place : nullptr;
        T* score = tile.scores + place;
        hn::Store(adjusted<T>(hn::Load(d, score), A::set(static_cast<T>(j)), bias, view, at), d, score);
      }
    }
  });
}

/// Scores become weights in the frame of the larger of the old and the tile's maximum; sums and frames move on, and
/// `rescale` is what the values are to be multiplied by. A NaN or +inf among a row's scores makes its sum NaN.
template <int Vectors, class T>
HWY_INLINE void panel_weights(T* HWY_RESTRICT scores, int keys, T* HWY_RESTRICT m, T* HWY_RESTRICT sum,
                              T* HWY_RESTRICT rescale) {
  using A = Lanes<T>;
  using V = typename A::V;
  constexpr int w = A::kCount, width = Vectors * w;
  const typename A::D d;
  V most[Vectors], total[Vectors];
  const auto nothing = A::set(-fold::infinity<T>());
  unrolled<Vectors>([&](auto n) SOFTFOLD_LANES_INLINE { most[n] = nothing; });
  for (int j = 0; j < keys; ++j)
    unrolled<Vectors>(
        [&](auto n) SOFTFOLD_LANES_INLINE { most[n] = A::max(most[n], hn::Load(d, scores + j * width + n * w)); });
  unrolled<Vectors>([&](auto n) SOFTFOLD_LANES_INLINE {
    most[n] = move_frames<T>(most[n], m + n * w, rescale + n * w);
    total[n] = A::mul(hn::Load(d, sum + n * w), hn::Load(d, rescale + n * w));
  });
  for (int j = 0; j < keys; ++j)
    unrolled<Vectors>([&](auto n) SOFTFOLD_LANES_INLINE {
      const auto p = weight_of<T>(hn::Load(d, scores + j * width + n * w), most[n]);
      total[n] = A::add(total[n], p);
      hn::Store(p, d, scores + j * width + n * w);
    });
  unrolled<Vectors>([&](auto n) SOFTFOLD_LANES_INLINE { hn::Store(total[n], d, sum + n * w); });
}

/// The values of `rows` rows of a panel, whose rows end where the tile's do.
template <int Vectors, class T>
HWY_INLINE void column_values(const RowTile<T>& tile, const KeyTile<T>& keys, int row, int width, int rows,
                              int column) {
  const T* weights = tile.scores + row * kTileKeys;
  const auto block = [&]<class R>(R, int r) HWY_ATTR {
    block_values<R::value, Vectors, false>(weights + r, {1, width}, keys.count, keys.v + column, keys.v_stride,
                                           tile.rescale + row + r, tile.state.o + (row + r) * tile.stride + column,
                                           tile.stride);
  };
  int r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) block(std::integral_constant<int, kRowsAtOnce>(), r);
  for (; r < rows; ++r) block(std::integral_constant<int, 1>(), r);
}

template <class T>
void push(const RowTile<T>& tile, const KeyTile<T>& keys) {
  constexpr int w = Lanes<T>::kCount;
  for_panels<T>(tile.rows, [&]<class N>(N, int row) HWY_ATTR {
    constexpr int width = N::value * w;
    panel_weights<N::value>(tile.scores + row * kTileKeys, keys.count, tile.state.m + row, tile.state.sum + row,
                            tile.rescale + row);
    const int rows = std::min(width, tile.rows - row);
    int column = 0;
    for (; column + kVectorsAtOnce * w <= tile.stride; column += kVectorsAtOnce * w)
      column_values<kVectorsAtOnce>(tile, keys, row, width, rows, column);
    for (; column < tile.dv; column += w) column_values<1>(tile, keys, row, width, rows, column);
  });
}

template <class T>
void merge(int rows, int stride, const TileState<T>& a, const TileState<T>& b) {
  using A = Lanes<T>;
  const typename A::D d;
  for (int r = 0; r < rows; ++r) {
    const auto joined = fold::join<T>(cpu::state_of_row(a, r), cpu::state_of_row(b, r));
    a.m[r] = static_cast<T>(joined.sum.m * fold::Real<T>::kUnit);
    a.sum[r] = joined.sum.d;
    const auto of_a = A::set(joined.a), of_b = A::set(joined.b);
    for (int c = r * stride; c < (r + 1) * stride; c += A::kCount)
      hn::Store(A::add(A::mul(hn::Load(d, a.o + c), of_a), A::mul(hn::Load(d, b.o + c), of_b)), d, a.o + c);
  }
}

template <class T>
void row_products(const T* q, int d, const T* k, std::int64_t k_stride, std::int64_t keys, T* s) {
  using A = Lanes<T>;
  const typename A::D tag;
  for (std::int64_t j = 0; j < keys; ++j, k += k_stride) {
    auto sum = A::zero();
    int c = 0;
    for (; c + A::kCount <= d; c += A::kCount) sum = A::fma(hn::LoadU(tag, q + c), hn::LoadU(tag, k + c), sum);
    T total = A::halve(sum);
    for (; c < d; ++c) total = fold::Scalar<T>::fma(q[c], k[c], total);
    s[j] = total;
  }
}

template <class T>
void row_values(const T* p, std::int64_t keys, const T* v, std::int64_t v_stride, int dv, T* o) {
  using A = Lanes<T>;
  const typename A::D tag;
  for (std::int64_t j = 0; j < keys; ++j, v += v_stride) {
    const auto weight = A::set(p[j]);
    int c = 0;
    for (; c + A::kCount <= dv; c += A::kCount)
      hn::StoreU(A::fma(weight, hn::LoadU(tag, v + c), hn::LoadU(tag, o + c)), tag, o + c);
    for (; c < dv; ++c) o[c] = fold::Scalar<T>::fma(p[j], v[c], o[c]);
  }
}

template <class S, class T>
void widen_run(const void* from, int n, T factor, T* y) {
  using A = Lanes<T>;
  const S* x = static_cast<const S*>(from);
  int i = 0;
  if constexpr (std::is_same_v<fold::FoldType<S>, T>)
    for (; i + A::kCount <= n; i += A::kCount) hn::StoreU(A::mul(load(x + i), A::set(factor)), typename A::D(), y + i);
  for (; i < n; ++i) y[i] = fold::Scalar<T>::mul(static_cast<T>(fold::widen(x[i])), factor);
}

template <class S, class T>
void narrow_run(const T* x, int n, T factor, void* to) {
  using A = Lanes<T>;
  S* y = static_cast<S*>(to);
  int i = 0;
  if constexpr (kStores<T, S>)
    for (; i + A::kCount <= n; i += A::kCount)
      store_as<S, false, T>(A::canonical(A::mul(hn::Load(typename A::D(), x + i), A::set(factor))), y + i);
  for (; i < n; ++i) y[i] = fold::narrow<S>(fold::Scalar<T>::mul(x[i], factor));
}

template <class T>
cpu::TileOps<T> make_tile_ops() {
  cpu::TileOps<T> ops{
      Lanes<T>::kCount,
      products<T>,
      adjust<T>,
      push<T>,
      merge<T>,
      row_products<T>,
      row_values<T>,
      {widen_run<float, T>, widen_run<double, T>, widen_run<fold::Float16, T>, widen_run<fold::BFloat16, T>},
      {narrow_run<float, T>, narrow_run<double, T>, narrow_run<fold::Float16, T>, narrow_run<fold::BFloat16, T>}};
#if HWY_TARGET != HWY_SCALAR
  const auto few = [&]<class S>(S, DType t) {
    ops.few_products[cpu::index(t)] = few_products<S, T>;
    ops.few_push[cpu::index(t)] = few_push<S, T>;
  };
  ops.few_rows = kFewRows<T>;
  ops.few_adjust = few_adjust<T>;
  few(T(), std::is_same_v<T, float> ? DType::float32 : DType::float64);
  if constexpr (std::is_same_v<T, float>) {
    few(fold::Float16(), DType::float16);
    few(fold::BFloat16(), DType::bfloat16);
  }
#endif
  return ops;
}
cpu::TileOps<float> make_tile_ops_float() { return make_tile_ops<float>(); }
#if HWY_TARGET == HWY_AVX3
cpu::TileOps<float> make_tile_ops_float_amx() {
  auto ops = make_tile_ops<float>();
  ops.amx_products = amx_products;
  ops.amx_push = amx_push;
  return ops;
}
#endif
cpu::TileOps<double> make_tile_ops_double() { return make_tile_ops<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/target_choice.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

template <>
const TileOps<float>& tile_ops<float>() {
  static const auto tables =
      make_tables<TileOps<float>>(SOFTFOLD_TARGET_FUNCTIONS_WITH_AMX(make_tile_ops_float, make_tile_ops_float_amx));
  return tables[chosen_target()];
}
template <>
const TileOps<double>& tile_ops<double>() {
  static const auto tables = make_tables<TileOps<double>>(SOFTFOLD_TARGET_FUNCTIONS(make_tile_ops_double));
  return tables[chosen_target()];
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
#endif  // HWY_ONCE
