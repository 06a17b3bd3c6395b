// What a SIMD target offers for attention: a tile of query rows against a tile of keys.
//
// Lanes run across query rows, so that every row is computed by itself: its products are FMA chains along D, its sums
// chains along the keys, and which rows stand beside it changes no bit. Rows lie in panels of three vectors (the last
// panel of a tile has as many as its rows need); what is one number a row and key or a row and dimension is stored
// panel by panel, rows fastest.
#pragma once

#include "softfold/fold/attend.hpp"
#include "softfold/fold/float16.hpp"
#include "softfold/tensor.hpp"

#include <array>
#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cpu {

inline constexpr int kTileRows = 96;
/// Rows of a tile on AMX, where there are tiles enough: its products are fast beside the packing of keys and values,
/// which is done once a tile.
inline constexpr int kAmxTileRows = 192;
inline constexpr int kTileKeys = 64;
inline constexpr int kPanelVectors = 3;
/// bfloat16 sequences of more queries are computed on AMX where it is. Of the sequence alone, so that what else is in
/// the batch, and where a tile ends, is nothing to its bits.
inline constexpr int kAmxQueries = 8;

/// The state of a tile's rows: sum[r] * 2^m[r] and the values beside it, o[r * stride ..], 64-byte aligned.
template <class T>
struct TileState {
  T *m, *sum, *o;
};

/// A row's (m, d) as the fold holds it.
template <class T>
typename fold::LogSumExp<T>::State state_of_row(const TileState<T>& s, int r) {
  if (fold::is_nan(s.sum[r])) return fold::LogSumExp<T>::not_a_number();
  return {static_cast<double>(s.m[r]) / fold::Real<T>::kUnit, s.sum[r]};
}

/// A tile of query rows.
template <class T>
struct RowTile {
  int rows, d, dv;
  int stride;  ///< of the rows of o: dv rounded up to 64 bytes
  const T* q;  ///< scaled, in panels: d numbers a row
  T* scores;   ///< scratch, in panels: kTileKeys a row
  T* rescale;  ///< scratch: one a row
  TileState<T> state;
};

/// Up to kTileKeys keys, their elements T. v can be read up to RowTile::stride numbers a key.
template <class T>
struct KeyTile {
  const T *k, *v;
  std::int64_t k_stride, v_stride;  ///< elements between keys
  int count;
};

/// What the rows see of a tile of keys, and what is added to their scores. One number a row, key 0 being the tile's.
template <class T>
struct TileView {
  const T *first, *last;      ///< a row sees keys first .. last; null: all of them
  const T *slope, *position;  ///< null: none
  const T* bias;              ///< in panels, log2(e) not yet applied, -inf hides the key; null: none
  T cap;                      ///< log2(e) * softcap; 0: none
  T factor;                   ///< of the products, to begin with
};

template <class T>
struct TileOps {
  int lanes;
  /// scores = q.k
  void (*products)(const RowTile<T>&, const KeyTile<T>&);
  /// scores = what the options make of them, -inf for a key that is not seen
  void (*adjust)(const RowTile<T>&, int keys, const TileView<T>&);
  /// state = the state with the keys pushed
  void (*push)(const RowTile<T>&, const KeyTile<T>&);
  /// a = merge(a, b)
  void (*merge)(int rows, int stride, const TileState<T>& a, const TileState<T>& b);
  /// s[j] = q . k_j, lanes along d: for one row by itself
  void (*row_products)(const T* q, int d, const T* k, std::int64_t k_stride, std::int64_t keys, T* s);
  /// o += sum p[j] v_j
  void (*row_values)(const T* p, std::int64_t keys, const T* v, std::int64_t v_stride, int dv, T* o);
  /// y = factor * x, by x's dtype
  std::array<void (*)(const void* x, int n, T factor, T* y), 4> widen;
  /// y = factor * x, by y's dtype; x is aligned and readable up to a multiple of 64 bytes
  std::array<void (*)(const T* x, int n, T factor, void* y), 4> narrow;

  /// The same for rows that are few: keys and values as they lie in memory, by their dtype, each read once and those
  /// kTileKeys further asked for. Scores and biases lie row by row, kTileKeys apart. For d and dv a multiple of lanes;
  /// the same bits.
  int few_rows = 0;
  std::array<void (*)(const RowTile<T>&, const void* k, std::int64_t stride, int count), 4> few_products{};
  void (*few_adjust)(const RowTile<T>&, int keys, const TileView<T>&) = nullptr;
  std::array<void (*)(const RowTile<T>&, const void* v, std::int64_t stride, int count), 4> few_push{};

  /// bfloat16 on AMX, null elsewhere, with few_adjust between the two. q, k and v as they are stored, q's rows d apart,
  /// with zeros up to a multiple of 32; scores are multiplied by `factor` when they are pushed; `packed` has room for
  /// kTileKeys rows of d or 2 dv bfloat16 numbers. For d and dv a multiple of 32.
  void (*amx_products)(const RowTile<T>&, const fold::BFloat16* k, std::int64_t stride, int count,
                       fold::BFloat16* packed) = nullptr;
  void (*amx_push)(const RowTile<T>&, const fold::BFloat16* v, std::int64_t stride, int count, T factor,
                   fold::BFloat16* packed) = nullptr;
};

/// The table of the chosen target (targets.hpp).
template <class T>
const TileOps<T>& tile_ops();

/// Where row r's panel begins in what holds `n` numbers a row, and how many rows the panel has.
struct Panel {
  int first, width;
};
inline Panel panel_of(int row, int rows, int lanes) {
  const int full = kPanelVectors * lanes, first = row / full * full;
  const int left = rows - first;
  return {first, left >= full ? full : (left + lanes - 1) / lanes * lanes};
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
