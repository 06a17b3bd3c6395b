// The k largest elements of a row as a fold: the k best of both. The order is total, so the result does not depend on
// how the row was cut, exactly: NaN first, then from +inf down to -inf, -0 equal to +0; of equal elements the one of
// the lowest index first.
#pragma once

#include "softfold/fold/fold.hpp"
#include "softfold/fold/real.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

/// An element and where it stands in its row. `key` orders as unsigned integers do.
template <class T>
struct Ranked {
  using Bits = typename Real<T>::Bits;
  Bits key;
  std::int64_t index;

  SOFTFOLD_HD static Ranked of(T x, std::int64_t index) {
    constexpr Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
    if (is_nan(x)) return {static_cast<Bits>(~Bits{0}), index};
    const auto bits = bits_as<Bits>(x == T(0) ? T(0) : x);
    return {(bits & sign) != 0 ? static_cast<Bits>(~bits) : static_cast<Bits>(bits | sign), index};
  }
  /// The element; every NaN is the canonical one, and -0 is +0.
  SOFTFOLD_HD T value() const {
    constexpr Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
    if (key == static_cast<Bits>(~Bits{0})) return canonical_nan<T>();
    return bits_as<T>((key & sign) != 0 ? static_cast<Bits>(key & ~sign) : static_cast<Bits>(~key));
  }
  SOFTFOLD_HD bool before(const Ranked& other) const {
    return key > other.key || (key == other.key && index < other.index);
  }
  SOFTFOLD_HD friend bool operator==(const Ranked& a, const Ranked& b) { return a.key == b.key && a.index == b.index; }
};

/// For a K known when compiling. States of disjoint pieces of a row merge to that of the whole.
template <class T, int K>
struct TopK {
  using Element = Ranked<T>;
  struct State {
    int count;  ///< of `best` that are there, best first
    Element best[K];
  };

  SOFTFOLD_HD static State identity() { return {0, {}}; }
  SOFTFOLD_HD static State merge(const State& a, const State& b) {
    State r = identity();
    for (int i = 0, j = 0; r.count < K && (i < a.count || j < b.count); ++r.count) {
      const bool from_a = j == b.count || (i < a.count && a.best[i].before(b.best[j]));
      r.best[r.count] = from_a ? a.best[i++] : b.best[j++];
    }
    return r;
  }
  SOFTFOLD_HD State push(const State& s, Element x) const { return merge(s, State{1, {x}}); }
  SOFTFOLD_HD State finish(const State& s) const { return s; }
};

}  // namespace fold
}  // namespace v0
}  // namespace softfold
