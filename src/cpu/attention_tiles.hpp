// One tile of query rows carried through its keys: packing, the key tiles that are seen, chunks merged in the tree.
#pragma once

#include "cpu/attention_scores.hpp"
#include "cpu/attention_tile.hpp"
#include "cpu/scratch.hpp"
#include "softfold/lift/tree.hpp"

#include <array>
#include <cstring>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// The rows of a tile: (query head, query) pairs of one key head, heads outermost.
struct TileRows {
  const AttentionSequence* sequence;
  std::int64_t kv_head, group;  ///< group: query heads a key head
  std::int64_t first;
  int count;

  std::int64_t head(int r) const { return kv_head * group + (first + r) / sequence->queries; }
  std::int64_t query(int r) const { return (first + r) % sequence->queries; }
};

/// States of a tile that lie in scratch, handed out and taken back.
template <class T>
class StatePool {
 public:
  struct Slot {
    TileState<T> state;
    Slot* next;
    StatePool* pool;
  };

  /// Numbers that a slot for tiles of at most `most` rows needs.
  static std::size_t size(int most, int stride) {
    return static_cast<std::size_t>(most) * (2 + static_cast<std::size_t>(stride));
  }

  /// Numbers of one that `rows` rows fill; the others are not read.
  static std::size_t used(int most, int rows, int stride) {
    return static_cast<std::size_t>(2 * most) + static_cast<std::size_t>(rows) * static_cast<std::size_t>(stride);
  }

  StatePool(T* memory, int slots, int most, int rows, int stride, const TileOps<T>& ops)
      : most_(most), rows_(rows), stride_(stride), ops_(ops) {
    for (int i = 0; i < slots; ++i) {
      slots_[static_cast<std::size_t>(i)] = {laid_out(memory + static_cast<std::size_t>(i) * size(most, stride), most),
                                             free_, this};
      free_ = &slots_[static_cast<std::size_t>(i)];
    }
  }

  static TileState<T> laid_out(T* memory, int most) { return {memory, memory + most, memory + 2 * most}; }

  /// A state of nothing.
  Slot* take() {
    Slot* s = std::exchange(free_, free_->next);
    clear(s->state, most_, rows_, stride_);
    return s;
  }
  static void clear(const TileState<T>& s, int most, int rows, int stride) {
    std::fill(s.m, s.m + most, -fold::infinity<T>());
    std::fill(s.sum, s.sum + most, T(0));
    std::fill(s.o, s.o + static_cast<std::ptrdiff_t>(rows) * stride, T(0));
  }

  /// The fold that lift::TreeBuilder carries: whole tiles, merged into the left one. Null is a state of nothing.
  struct Fold {
    using State = Slot*;
    static State identity() { return nullptr; }
    static State merge(State a, State b) {
      if (a == nullptr || b == nullptr) return a == nullptr ? b : a;
      StatePool& pool = *a->pool;
      pool.ops_.merge(pool.rows_, pool.stride_, a->state, b->state);
      b->next = std::exchange(pool.free_, b);
      return a;
    }
  };

 private:
  static constexpr std::size_t kMostSlots = lift::kMaxLevels + 2;
  std::array<Slot, kMostSlots> slots_;
  Slot* free_ = nullptr;
  int most_, rows_, stride_;
  const TileOps<T>& ops_;
};

/// The keys of a sequence in chunks of lift::kChunk, counted from the first that exists.
inline std::int64_t chunks_of(const AttentionSequence& s) { return lift::chunk_count(s.end - s.start); }

/// The results of a tile's rows.
template <class T>
void write_rows(const AttentionProblem& p, const TileRows& rows, const TileState<T>& state, int stride) {
  for (int r = 0; r < rows.count; ++r)
    write_row(p, *rows.sequence, rows.head(r), rows.query(r), state_of_row(state, r),
              state.o + static_cast<std::ptrdiff_t>(r) * stride, tile_ops<T>());
}

/// Folds one tile of rows over runs of chunks. S: how q, k and v are stored.
template <class S, class T>
class TileFold {
 public:
  /// `most`: the rows that a tile can have, at least those of a panel.
  TileFold(const AttentionProblem& p, const TileRows& rows, int most, Scratch& scratch, int levels);

  /// The state of chunks [from, to), whose number the tree's node has; written to `to_state`.
  void fold(std::int64_t from, std::int64_t to, const TileState<T>& to_state);

  static int stride_of(const AttentionProblem& p) { return (p.dv + kLine - 1) / kLine * kLine; }
  /// Whether AMX takes tensors like these, of sequences that have the queries for it.
  static bool can_use_amx(const AttentionProblem& p) {
    return std::is_same_v<S, fold::BFloat16> && tile_ops<T>().amx_products != nullptr && p.d % 32 == 0 &&
           p.dv % 32 == 0;
  }
  /// The keys that some row of the tile sees.
  KeyRange seen() const { return some_; }

 private:
  static constexpr int kLine = 64 / static_cast<int>(sizeof(T));

  void pack_q();
  void fold_chunk(std::int64_t first, std::int64_t last);
  void push_amx(std::int64_t first, int count);
  /// Whether scores lie row by row, not in panels.
  bool by_rows() const { return amx_ || few_; }
  /// Key `first` of k or v.
  const S* key(const AttentionTensor& t, std::int64_t first) const {
    return row_of<const S>(t, s_.kv_batch, rows_.kv_head, s_.kv_token + first);
  }
  KeyTile<T> keys(std::int64_t first, int count);
  bool adjust(std::int64_t first, int count, T factor = T(1));
  void fill_bias(std::int64_t first, int count);

  const AttentionProblem& p_;
  const TileRows rows_;
  const AttentionSequence& s_;
  const TileOps<T>& ops_;
  RowTile<T> tile_;
  T *q_, *k_, *v_, *bias_, *first_, *last_, *slope_, *position_, *pool_;
  std::array<KeyRange, kAmxTileRows> seen_;
  KeyRange some_, all_;  ///< keys that some row sees, that every row sees
  int most_, slots_;
  const bool amx_, few_;  ///< the kernels are those of TileOps by that name
};

template <class S, class T>
TileFold<S, T>::TileFold(const AttentionProblem& p, const TileRows& rows, int most, Scratch& scratch, int levels)
    : p_(p),
      rows_(rows),
      s_(*rows.sequence),
      ops_(tile_ops<T>()),
      most_(most),
      slots_(levels + 2),
      amx_(can_use_amx(p) && s_.queries > kAmxQueries),
      few_(!amx_ && rows.count <= ops_.few_rows && p.d % ops_.lanes == 0 && p.dv % ops_.lanes == 0) {
  const int stride = stride_of(p);
  const int padded = (p.d + kLine - 1) / kLine * kLine;
  const std::size_t r = static_cast<std::size_t>(most), d = static_cast<std::size_t>(padded);
  const std::size_t key_numbers = kTileKeys * (d + static_cast<std::size_t>(stride));
  T* at = scratch.get<T>(Scratch::attention, r * d + 2 * r * kTileKeys + 5 * r + key_numbers +
                                                 static_cast<std::size_t>(slots_) * StatePool<T>::size(most, stride));
  const auto take = [&at](std::size_t n) { return std::exchange(at, at + n); };
  q_ = take(r * d);
  tile_ = {rows.count, p.d, p.dv, stride, q_, take(r * kTileKeys), take(r), {}};
  bias_ = take(r * kTileKeys);
  first_ = take(r), last_ = take(r), slope_ = take(r), position_ = take(r);
  k_ = take(kTileKeys * d);
  v_ = take(kTileKeys * static_cast<std::size_t>(stride));
  pool_ = at;
  some_ = {s_.end, s_.start}, all_ = {s_.start, s_.end};
  for (int i = 0; i < rows.count; ++i) {
    KeyRange& seen = seen_[static_cast<std::size_t>(i)] = s_.seen_by(rows.query(i));
    all_ = {std::max(all_.first, seen.first), std::min(all_.last, seen.last)};
    if (seen.first < seen.last) some_ = {std::min(some_.first, seen.first), std::max(some_.last, seen.last)};
  }
  pack_q();
}

template <class S, class T>
void TileFold<S, T>::pack_q() {
  const T factor = q_scale<T>(p_);
  T row[AttentionProblem::kMaxHeadDim];
  std::int64_t last_head = -1;
  T slope = 0;
  if (amx_) std::memset(q_, 0, sizeof(S) * static_cast<std::size_t>(most_ * p_.d));
  for (int r = 0; r < rows_.count; ++r) {
    const std::int64_t head = rows_.head(r), i = rows_.query(r);
    if (p_.slopes.given) {
      if (head != std::exchange(last_head, head)) slope = slope_of<T>(p_, s_, head);
      slope_[r] = slope;
    }
    const S* q = row_of<const S>(p_.q, p_.packed ? 0 : s_.index, head, s_.q_token + i);
    if (amx_) {
      std::memcpy(reinterpret_cast<S*>(q_) + r * p_.d, q, sizeof(S) * static_cast<std::size_t>(p_.d));
      continue;
    }
    ops_.widen[index(p_.q.dtype)](q, p_.d, factor, row);
    const Panel panel = panel_of(r, rows_.count, ops_.lanes);
    T* to = q_ + static_cast<std::ptrdiff_t>(panel.first) * p_.d + (r - panel.first);
    for (int c = 0; c < p_.d; ++c) to[static_cast<std::ptrdiff_t>(c) * panel.width] = row[c];
  }
  if (amx_) return;
  // Rows that only fill their panel up: they see nothing, and what they hold is not read.
  const Panel last = panel_of(rows_.count - 1, rows_.count, ops_.lanes);
  for (int r = rows_.count; r < last.first + last.width; ++r) {
    T* to = q_ + static_cast<std::ptrdiff_t>(last.first) * p_.d + (r - last.first);
    for (int c = 0; c < p_.d; ++c) to[static_cast<std::ptrdiff_t>(c) * last.width] = T(0);
    slope_[r] = T(0);
  }
}

template <class S, class T>
void TileFold<S, T>::fold(std::int64_t from, std::int64_t to, const TileState<T>& to_state) {
  StatePool<T> pool(pool_, slots_, most_, rows_.count, tile_.stride, ops_);
  lift::TreeBuilder<typename StatePool<T>::Fold> tree;
  for (std::int64_t chunk = from; chunk < to; ++chunk) {
    const std::int64_t first = s_.start + chunk * lift::kChunk, last = std::min(s_.end, first + lift::kChunk);
    typename StatePool<T>::Slot* slot = nullptr;
    if (first < some_.last && some_.first < last) {
      slot = pool.take();
      tile_.state = slot->state;
      fold_chunk(first, last);
    }
    tree.push(slot);
  }
  if (const auto* root = tree.root(); root != nullptr) {
    std::memcpy(to_state.m, root->state.m, StatePool<T>::used(most_, rows_.count, tile_.stride) * sizeof(T));
  } else {
    StatePool<T>::clear(to_state, most_, rows_.count, tile_.stride);
  }
}

template <class S, class T>
void TileFold<S, T>::fold_chunk(std::int64_t first, std::int64_t last) {
  for (std::int64_t at = first; at < last; at += kTileKeys) {
    const std::int64_t from = amx_ ? at : std::max(at, some_.first);  // a pair of keys is one there
    const int count = static_cast<int>(std::min({at + kTileKeys, last, some_.last}) - from);
    if (count <= 0 || at + kTileKeys <= some_.first) continue;
    if (amx_) {
      push_amx(from, count);
      continue;
    }
    if (few_) {
      ops_.few_products[index(p_.k.dtype)](tile_, key(p_.k, from), p_.k.token, count);
      adjust(from, count);
      ops_.few_push[index(p_.v.dtype)](tile_, key(p_.v, from), p_.v.token, count);
      continue;
    }
    const KeyTile<T> tile = keys(from, count);
    ops_.products(tile_, tile);
    adjust(from, count);
    ops_.push(tile_, tile);
  }
}

template <class S, class T>
void TileFold<S, T>::push_amx(std::int64_t first, int count) {
  if constexpr (std::is_same_v<S, fold::BFloat16>) {
    ops_.amx_products(tile_, key(p_.k, first), p_.k.token, count, reinterpret_cast<S*>(k_));
    const T factor = adjust(first, count, q_scale<T>(p_)) ? T(1) : q_scale<T>(p_);
    ops_.amx_push(tile_, key(p_.v, first), p_.v.token, count, factor, reinterpret_cast<S*>(v_));
  }
}

/// The keys where they lie, or a copy: of another dtype, of rows that end within a vector, or of rows so far apart that
/// they would meet in few of a cache's sets.
template <class S, class T>
KeyTile<T> TileFold<S, T>::keys(std::int64_t first, int count) {
  constexpr std::int64_t kNear = 4096 / sizeof(T);
  KeyTile<T> tile{nullptr, nullptr, p_.k.token, p_.v.token, count};
  const S *k = key(p_.k, first), *v = key(p_.v, first);
  const bool many = rows_.count > 8;
  const auto copy = [&](const S* from, std::int64_t token, DType t, int n, T* to, int stride) {
    for (int j = 0; j < count; ++j)
      ops_.widen[index(t)](from + j * token, n, T(1), to + static_cast<std::ptrdiff_t>(j) * stride);
    return to;
  };
  if constexpr (std::is_same_v<S, T>) {
    if (!many || std::abs(p_.k.token) < kNear) tile.k = k;
    if (p_.dv % kLine == 0 && (!many || std::abs(p_.v.token) < kNear)) tile.v = v;
  }
  if (tile.k == nullptr) tile.k = copy(k, p_.k.token, p_.k.dtype, p_.d, k_, p_.d), tile.k_stride = p_.d;
  if (tile.v == nullptr)
    tile.v = copy(v, p_.v.token, p_.v.dtype, p_.dv, v_, tile_.stride), tile.v_stride = tile_.stride;
  return tile;
}

/// Brings products, `factor` times them, to scores. False if there was nothing to do but multiply, which was not done.
template <class S, class T>
bool TileFold<S, T>::adjust(std::int64_t first, int count, T factor) {
  TileView<T> view{};
  if (first < all_.first || first + count > all_.last) {
    view.first = first_, view.last = last_;
    for (int r = 0; r < most_; ++r) {
      const bool real = r < rows_.count;
      const KeyRange seen = real ? seen_[static_cast<std::size_t>(r)] : KeyRange{0, 0};
      first_[r] = static_cast<T>(std::clamp<std::int64_t>(seen.first - first, 0, kTileKeys));
      last_[r] = static_cast<T>(real ? std::clamp<std::int64_t>(seen.last - first - 1, -1, kTileKeys) : -1);
    }
  }
  if (p_.slopes.given) {
    view.slope = slope_, view.position = position_;
    for (int r = 0; r < most_; ++r)
      position_[r] = r < rows_.count ? static_cast<T>(s_.position(rows_.query(r)) - first) : T(0);
  }
  if (p_.bias.given || p_.mask.given) {
    view.bias = bias_;
    fill_bias(first, count);
  }
  view.cap = static_cast<T>(static_cast<double>(p_.softcap) * fold::kLog2E);
  view.factor = factor;
  if (view.first == nullptr && view.slope == nullptr && view.bias == nullptr && view.cap == T(0)) return false;
  (by_rows() ? ops_.few_adjust : ops_.adjust)(tile_, count, view);
  return true;
}

template <class S, class T>
void TileFold<S, T>::fill_bias(std::int64_t first, int count) {
  for (int r = 0; r < rows_.count; ++r) {
    const std::int64_t head = rows_.head(r), i = rows_.query(r);
    const Panel panel = panel_of(r, rows_.count, ops_.lanes);
    const int step = by_rows() ? 1 : panel.width;
    T* to = bias_ + (by_rows() ? r * kTileKeys : panel.first * kTileKeys + (r - panel.first));
    const auto at = [&](const ScoreOperand& o) {
      return s_.index * o.strides[0] + head * o.strides[1] + i * o.strides[2] + first * o.strides[3];
    };
    if (p_.bias.given) {
      with_dtype(p_.bias.dtype, [&]<class B>(B) {
        const B* from = reinterpret_cast<const B*>(p_.bias.data) + at(p_.bias);
        using Wide = std::common_type_t<fold::FoldType<B>, T>;
        for (int j = 0; j < count; ++j)
          to[j * step] = fold::finite_bias<T>(static_cast<Wide>(fold::widen(from[j * p_.bias.strides[3]])));
      });
    } else {
      for (int j = 0; j < count; ++j) to[j * step] = T(0);
    }
    if (!p_.mask.given) continue;
    const char* from = p_.mask.data + at(p_.mask);
    for (int j = 0; j < count; ++j)
      if (from[j * p_.mask.strides[3]] == 0) to[j * step] = -fold::infinity<T>();
  }
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
