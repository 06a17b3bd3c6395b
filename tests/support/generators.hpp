// RapidCheck generators for what a fold can meet: elements (every bit pattern, near each other, special), scales,
// states and rows.
#pragma once

#include "support/bits.hpp"

#include "softfold/lift/chunks.hpp"

#include <rapidcheck.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

namespace softfold_test {

/// Any bit pattern: mostly far apart from each other.
template <class T>
rc::Gen<T> any_bits() {
  using Bits = typename softfold::fold::Real<T>::Bits;
  return rc::gen::map(rc::gen::arbitrary<std::uint64_t>(),
                      [](std::uint64_t k) { return std::bit_cast<T>(static_cast<Bits>(Random(k).next())); });
}

/// Numbers close enough to each other that they count in one sum.
template <class T>
rc::Gen<T> near_zero() {
  return rc::gen::map(rc::gen::inRange<std::int64_t>(-(1LL << 30), 1LL << 30),
                      [](std::int64_t k) { return static_cast<T>(static_cast<double>(k) * 0x1p-23); });
}

template <class T>
rc::Gen<T> special() {
  using limits = std::numeric_limits<T>;
  return rc::gen::element(T(0), -T(0), T(1), T(-1), limits::max(), limits::lowest(), limits::min(), -limits::min(),
                          limits::denorm_min(), -limits::denorm_min(), limits::infinity(), -limits::infinity(),
                          limits::quiet_NaN(), T(16777216), T(16777218), T(4194304), T(-4194304), T(-4194048));
}

template <class T>
rc::Gen<T> any_element() {
  return rc::gen::weightedOneOf<T>({{8, near_zero<T>()}, {2, any_bits<T>()}, {1, special<T>()}});
}

template <class T>
rc::Gen<T> finite_element() {
  return rc::gen::suchThat(any_element<T>(), [](T x) { return std::isfinite(x); });
}

inline rc::Gen<double> any_scale() {
  return rc::gen::element(1., 0x1.62e42fefa39efp-1, 0.125, 0.08838834764831845, -1., 3.7, 1e-3, 1e3, 0., -1e-20, 1e20);
}

template <class T>
rc::Gen<std::vector<T>> any_row(std::size_t longest) {
  return rc::gen::mapcat(rc::gen::inRange<std::size_t>(0, longest + 1), [](std::size_t n) {
    return rc::gen::map(rc::gen::arbitrary<std::uint64_t>(), [n](std::uint64_t seed) {
      Random random(seed);
      const bool wild = random.below(4) == 0;
      const double spread = random.uniform() < 0.3 ? 200. : 5.;
      std::vector<T> x(n);
      for (T& v : x) {
        v = static_cast<T>(random.uniform(-spread, spread));
        if (wild && random.below(97) == 0)
          v = std::bit_cast<T>(static_cast<typename softfold::fold::Real<T>::Bits>(random.next()));
        if (wild && random.below(29) == 0) v = -std::numeric_limits<T>::infinity();
      }
      return x;
    });
  });
}

/// A state that some row leads to: one element, a chunk, or nothing.
template <class T>
rc::Gen<typename softfold::fold::LogSumExp<T>::State> any_state() {
  using Lse = softfold::fold::LogSumExp<T>;
  const auto of_element =
      rc::gen::apply([](T x, double scale) { return Lse{softfold::fold::make_scale<T>(scale)}.lift(x); },
                     any_element<T>(), any_scale());
  const auto of_row = rc::gen::apply(
      [](const std::vector<T>& x, double scale) {
        return softfold::lift::reduce_row(x.data(), static_cast<std::int64_t>(x.size()),
                                          softfold::fold::make_scale<T>(scale).c);
      },
      any_row<T>(3000), any_scale());
  return rc::gen::weightedOneOf<typename Lse::State>(
      {{6, of_element}, {2, of_row}, {1, rc::gen::just(Lse::identity())}});
}

}  // namespace softfold_test

namespace softfold {
inline namespace v0 {
namespace fold {
/// So that a failing property prints the states it failed on.
inline void showValue(const LogSumExp<float>::State& s, std::ostream& os) { os << "(" << s.m << ", " << s.d << ")"; }
inline void showValue(const LogSumExp<double>::State& s, std::ostream& os) { os << "(" << s.m << ", " << s.d << ")"; }
}  // namespace fold
}  // namespace v0
}  // namespace softfold
