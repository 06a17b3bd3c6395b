// Rows that are hard in different ways, the same on every machine: integers, exact conversions and single operations
// only, no libm.
#pragma once

#include "support/bits.hpp"

#include "softfold/fold/float16.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace softfold_test {

enum class Kind : std::uint8_t {
  gaussian,   ///< a sum of uniforms: what scores look like
  ascending,  ///< the maximum changes with every element
  descending,
  sawtooth,
  wide,       ///< +-80: terms of every size
  offset,     ///< small differences on a large offset, where x - lse would cancel
  huge,       ///< up to the largest number, either sign
  tiny,       ///< differences of a few roundings of 1
  subnormal,  ///< multiples of the smallest number
  equal,
  one_hot,        ///< one element far above the rest
  holes,          ///< half of it -inf
  faint,          ///< probabilities at the edge of what is flushed to 0
  half_integers,  ///< t = n + 1/2 exactly or nearly: which n is a tie
  neighbours,     ///< two numbers next to each other, where the fast split has no bits left
  vast,           ///< neighbours at 2^58 (float32: 2^26) among numbers spread as far
  late_maximum,   ///< each chunk above the last, the largest element at the end
  empty,          ///< nothing but -inf
  plus_infinity,
  not_a_number,
  count
};

inline constexpr auto kKindNames = std::to_array<std::string_view>(
    {"gaussian",   "ascending", "descending",   "sawtooth", "wide",          "offset",      "huge",
     "tiny",       "subnormal", "equal",        "one_hot",  "holes",         "faint",       "half_integers",
     "neighbours", "vast",      "late_maximum", "empty",    "plus_infinity", "not_a_number"});
static_assert(kKindNames.size() == static_cast<std::size_t>(Kind::count));

constexpr std::string_view name_of(Kind k) { return kKindNames[static_cast<std::size_t>(k)]; }

/// What the makers of rows need to know of a storage type.
template <class S>
struct Storage {
  static constexpr double largest = static_cast<double>(std::numeric_limits<S>::max());
  static constexpr double smallest = static_cast<double>(std::numeric_limits<S>::denorm_min());
  static constexpr int mantissa_bits = std::numeric_limits<S>::digits - 1;
  static constexpr double faint = sizeof(S) == 8 ? -700. : -80.;
};
template <>
struct Storage<softfold::fold::Float16> {
  static constexpr double largest = 65504., smallest = 0x1p-24;
  static constexpr int mantissa_bits = 10;
  static constexpr double faint = -80.;
};
template <>
struct Storage<softfold::fold::BFloat16> {
  static constexpr double largest = 0x1.FEp127, smallest = 0x1p-133;
  static constexpr int mantissa_bits = 7;
  static constexpr double faint = -80.;
};

/// Element i of n of a row of this kind, before it is rounded to the storage type.
template <class S>
double element(Kind kind, std::int64_t i, std::int64_t n, Random& random) {
  using Limits = std::numeric_limits<double>;
  const double at = n > 1 ? static_cast<double>(i) / static_cast<double>(n - 1) : 0.;
  const double u = random.uniform(-1., 1.);
  const double bell = u + random.uniform(-1., 1.) + random.uniform(-1., 1.) + random.uniform(-1., 1.);
  switch (kind) {
    case Kind::gaussian: return 1.5 * bell;
    case Kind::ascending: return 60. * at - 30.;
    case Kind::descending: return 30. - 60. * at;
    case Kind::sawtooth: return static_cast<double>(i % 37) * 0.75 - 11.;
    case Kind::wide: return 80. * u;
    case Kind::offset: return (Storage<S>::mantissa_bits <= 10 ? 60. : 12000.) + 3. * u;
    case Kind::huge: return i % 3 == 0 ? Storage<S>::largest * u : i % 7 == 0 ? Storage<S>::largest : 1e4 * bell;
    case Kind::tiny: return 1e-6 * u;
    case Kind::subnormal: return Storage<S>::smallest * static_cast<double>(random.below(1000) - 500);
    case Kind::equal: return -3.25;
    case Kind::one_hot: return i == n / 3 ? 60. : u;
    case Kind::holes: return random.below(2) == 0 ? -Limits::infinity() : 4. * bell;
    case Kind::faint: return i == n / 2 ? 0. : Storage<S>::faint * (1. + 0.12 * (u + 1.));
    case Kind::half_integers:
      return (static_cast<double>(random.below(40)) - 20.5) * softfold::fold::kLn2 + (i % 2 == 0 ? 0. : 1e-7 * u);
    case Kind::neighbours: {
      const double base = sizeof(S) == 8 ? 0x1p53 : Storage<S>::mantissa_bits == 10 ? 0x1p11 : 0x1p24;
      return base + (i % 2 == 0 ? 0. : 2.);
    }
    case Kind::vast: {
      const double base = sizeof(S) == 8 ? 0x1p58 : Storage<S>::mantissa_bits == 10 ? 0x1p14 : 0x1p26;
      const double step = base * (2. / static_cast<double>(std::int64_t{1} << Storage<S>::mantissa_bits));
      return i % 2 == 0 ? base * u : base + step * static_cast<double>(random.below(8));
    }
    case Kind::late_maximum: return 20. * static_cast<double>(i / 1024) + (i + 1 == n ? 30. : u);
    case Kind::empty: return -Limits::infinity();
    case Kind::plus_infinity: return i == n / 2 ? Limits::infinity() : bell;
    case Kind::not_a_number: return i == (2 * n) / 3 ? Limits::quiet_NaN() : bell;
    case Kind::count: break;
  }
  return 0;
}

template <class S>
std::vector<S> make_row(Kind kind, std::int64_t n, std::uint64_t seed = 1) {
  Random random(seed * 1000003 + static_cast<std::uint64_t>(kind) * 7919 + static_cast<std::uint64_t>(n));
  std::vector<S> x(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i)
    x[static_cast<std::size_t>(i)] = softfold::fold::narrow<S>(element<S>(kind, i, n, random));
  return x;
}

}  // namespace softfold_test
