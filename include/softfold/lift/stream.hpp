// A piece of a row, anywhere in it, that joins to the whole row's bits: what travels between files, pages and ranks.
#pragma once

#include "softfold/error.hpp"
#include "softfold/lift/chunks.hpp"
#include "softfold/shown.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace softfold {
inline namespace v0 {

namespace lift {

/// The scale of a fold that a caller asks for. Refused (Code::option): one whose product with log2(e) is not finite, or
/// subnormal, with too few digits for the stated bounds.
template <class T>
fold::Scale<T> checked_scale(double scale) {
  const auto s = fold::make_scale<T>(scale);
  if (s.is_regular()) return s;
  const std::string got = "scale " + detail::shown(scale);
  if (!s.is_faint())
    throw Error(Code::option, got, "a finite scale whose product with log2(e) is finite in the fold's precision",
                "1, or 1/temperature");
  constexpr bool wide = sizeof(T) == 8;
  throw Error(Code::option, got,
              wide ? "0, or a scale of at least 1.6e-308 for float64 elements"
                   : "0, or a scale of at least 8.2e-39 for elements folded in float32",
              wide ? "0, which such a scale cannot be told from" : "0, or give x as float64");
}

/// The states that numbers can have under a scale: LogSumExp::is_state, and no frame lies beyond that of the largest T
/// (some units are left to rounding, also to the caller's).
template <class T>
class PossibleStates {
 public:
  SOFTFOLD_HD explicit PossibleStates(const fold::Scale<T>& scale)
      : most_(Lse::frame(fold::largest<T>(), scale.c < T(0) ? -scale.c : scale.c).m * (1 + 0x1p-20) + 1) {}

  /// Whether (m, d) is one that at most `elements` numbers can have.
  SOFTFOLD_HD bool have(double m, double d, double elements) const {
    const bool beyond = ::fabs(m) > most_ && ::fabs(m) < fold::infinity<double>();
    return !beyond && Lse::is_state(m, d, elements);
  }

 private:
  using Lse = fold::LogSumExp<T>;
  double most_;  ///< of |m|, where it is finite
};

}  // namespace lift

/// Elements [offset, offset + length) of a row, folded as far as the canonical tree allows without its neighbours:
/// the raw elements before the first chunk boundary, complete nodes of the tree, the raw elements after the last
/// boundary. At most 2 * 1023 numbers and 2 log2(length) states, whatever the length.
///
/// A stream is a partial that begins at 0 and grows. T is float or double (float16 and bfloat16 widen to float).
template <class T>
class Partial {
 public:
  using Lse = fold::LogSumExp<T>;
  using State = typename Lse::State;
  /// A node of the tree: 2^level chunks from chunk `begin` (in the row's own count) on.
  struct Node {
    std::int64_t begin;
    int level;
    State state;
  };
  /// How a run of at most kChunk elements becomes a state: lift::reduce_chunk, or a SIMD version with the same bits.
  using Reduce = State (*)(const T* x, int n, T c);

  static constexpr std::int64_t kLargestOffset = std::int64_t{1} << 53;

  /// Of no elements. Refused: a scale that no plan takes (Code::option), an offset outside 0 .. 2^53 (Code::shape).
  explicit Partial(double scale = 1, std::int64_t offset = 0)
      : scale_(lift::checked_scale<T>(scale)), possible_(scale_), offset_(offset) {
    if (offset < 0 || offset > kLargestOffset)
      throw Error(Code::shape, "a partial at offset " + std::to_string(offset), "an offset from 0 to 2^53");
  }

  /// A partial from its parts, as a file holds them. Refused (Code::state): parts that do not lie end to end from
  /// offset on, a state that no such run of elements has.
  Partial(double scale, std::int64_t offset, std::span<const T> head, std::span<const Node> nodes,
          std::span<const T> tail, Reduce reduce = reduce_scalar)
      : Partial(scale, offset) {
    constexpr std::int64_t chunk = lift::kChunk;
    const auto refuse = [](const char* what) {
      throw Error(Code::state, what, "head, nodes and tail that lie end to end, cut at chunk boundaries");
    };
    if (std::ssize(head) > (chunk - offset % chunk) % chunk) refuse("a partial whose head passes a chunk boundary");
    append(head, reduce);
    for (const Node& n : nodes) {
      if (end() % chunk != 0 || n.begin != end() / chunk) refuse("a partial with a node out of place");
      push_node(n.state, n.level);
    }
    if (std::ssize(tail) >= chunk || (!tail.empty() && end() % chunk != 0))
      refuse("a partial with a tail out of place");
    append(tail, reduce);
  }

  double scale() const { return scale_.value; }
  std::int64_t offset() const { return offset_; }
  std::int64_t length() const { return length_; }
  std::int64_t end() const { return offset_ + length_; }
  std::span<const T> head() const { return head_; }
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const T> tail() const { return tail_; }

  /// Refuses (Code::shape) what `n` more elements would be: a row of more than 2^53.
  void check_room(std::int64_t n) const {
    if (n > kLargestOffset - end())
      throw Error(Code::shape, std::to_string(n) + " elements more for a partial that ends at " + std::to_string(end()),
                  "rows of at most 2^53 elements");
  }

  /// Takes the next elements of the row: O(n). Refused as check_room says, before any is taken.
  void append(std::span<const T> x, Reduce reduce = reduce_scalar) {
    const T* p = x.data();
    std::int64_t n = static_cast<std::int64_t>(x.size());
    check_room(n);
    while (n > 0) {
      const std::int64_t room = lift::kChunk - end() % lift::kChunk;
      const std::int64_t take = std::min(n, room);
      if (take == lift::kChunk) {
        push_node(reduce(p, lift::kChunk, scale_.c), 0);
      } else {
        append_raw(p, take, reduce);
      }
      p += take;
      n -= take;
    }
  }

  /// Takes the next 2^level chunks as one node: at most log2(length) merges. Refused (Code::state): an end() that is no
  /// multiple of 2^level chunks, a state that so many elements cannot have; and as check_room says.
  void push_node(State s, int level) {
    constexpr std::int64_t chunk = lift::kChunk;
    if (level < 0 || level >= lift::kMaxLevels || end() % (chunk << level) != 0)
      throw Error(Code::state,
                  "a node of level " + std::to_string(level) + " from element " + std::to_string(end()) + " on",
                  "nodes of 2^level chunks that begin at a multiple of as many");
    if (!possible_.have(s.m, static_cast<double>(s.d), static_cast<double>(chunk << level)))
      throw Error(Code::state, "a node of a state (m, d) that no run of 2^" + std::to_string(level) + " chunks has",
                  "states as a fold of those elements gives them");
    check_room(chunk << level);
    std::int64_t begin = end() / chunk;
    length_ += static_cast<std::int64_t>(lift::kChunk) << level;
    while (!nodes_.empty() && nodes_.back().level == level && nodes_.back().begin % (std::int64_t{2} << level) == 0) {
      s = Lse::merge(nodes_.back().state, s);
      begin = nodes_.back().begin;
      nodes_.pop_back();
      ++level;
    }
    nodes_.push_back({begin, level, s});
  }

  /// Takes the partial that begins where this one ends: at most 2 * 1023 elements to fold, 2 log2(length) merges.
  /// Refused (Code::state): one of another scale, one that begins elsewhere; and as check_room says.
  void join(const Partial& next, Reduce reduce = reduce_scalar) {
    if (next.scale_.value != scale_.value)
      throw Error(Code::state,
                  "partials of scale " + detail::shown(scale_.value) + " and " + detail::shown(next.scale_.value),
                  "one scale for all partials of a row", "compute both with the same scale");
    if (next.offset_ != end())
      throw Error(Code::state, "a partial that begins at " + std::to_string(next.offset_),
                  "one that begins at " + std::to_string(end()), "join partials in the order of their offsets");
    check_room(next.length_);
    append(next.head_, reduce);
    for (const Node& n : next.nodes_) push_node(n.state, n.level);
    append(next.tail_, reduce);
  }

  /// The state of what has come: for a partial from offset 0, the whole row's bits. For one that begins elsewhere, a
  /// state that is right within the stated bound.
  State state(Reduce reduce = reduce_scalar) const {
    bool first = true;
    State s = Lse::identity();
    const auto take = [&](const State& left) {
      s = first ? left : Lse::merge(left, s);
      first = false;
    };
    if (!tail_.empty()) take(reduce(tail_.data(), static_cast<int>(tail_.size()), scale_.c));
    for (auto n = nodes_.rbegin(); n != nodes_.rend(); ++n) take(n->state);
    if (!head_.empty()) take(reduce(head_.data(), static_cast<int>(head_.size()), scale_.c));
    return s;
  }

  /// The natural logarithm of the sum of exp(scale * x) of what has come.
  T logsumexp(Reduce reduce = reduce_scalar) const { return Lse{scale_}.finish(state(reduce)); }

  static State reduce_scalar(const T* x, int n, T c) {
    T terms[lift::kChunk];
    return lift::reduce_chunk(x, n, c, terms);
  }

 private:
  bool in_head() const {
    return nodes_.empty() && tail_.empty() && (offset_ + length_) / lift::kChunk == offset_ / lift::kChunk &&
           offset_ % lift::kChunk != 0;
  }

  void append_raw(const T* p, std::int64_t n, Reduce reduce) {
    std::vector<T>& raw = in_head() ? head_ : tail_;
    raw.insert(raw.end(), p, p + n);
    length_ += n;
    if (tail_.size() == lift::kChunk) {
      length_ -= lift::kChunk;
      push_node(reduce(tail_.data(), lift::kChunk, scale_.c), 0);
      tail_.clear();
    }
  }

  fold::Scale<T> scale_;
  lift::PossibleStates<T> possible_;
  std::int64_t offset_ = 0, length_ = 0;
  std::vector<T> head_;
  std::vector<Node> nodes_;
  std::vector<T> tail_;
};

}  // namespace v0
}  // namespace softfold
