// Bits: comparing them, hashing them, and a random generator whose numbers are the same on every machine.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace softfold_test {

inline std::uint32_t bits(float a) { return std::bit_cast<std::uint32_t>(a); }
inline std::uint64_t bits(double a) { return std::bit_cast<std::uint64_t>(a); }

/// Same bits, so that -0 differs from 0 and a NaN equals itself.
template <std::floating_point T>
bool same(T a, T b) {
  return bits(a) == bits(b);
}

template <class State>
requires requires(State s) { s.m, s.d; }
bool same(const State& a, const State& b) { return same(a.m, b.m) && same(a.d, b.d); }

/// FNV-1a, 64 bits, over bytes in memory order. The numbers hashed are little-endian on every machine we run on.
class Hash {
 public:
  void bytes(const void* data, std::size_t n) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < n; ++i) value_ = (value_ ^ p[i]) * 0x100000001B3ULL;
  }
  std::uint64_t value() const { return value_; }

 private:
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t value_ = 0xCBF29CE484222325ULL;
};

/// SplitMix64 (Steele, Lea, Flood 2014): integers and exact conversions only.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Uniform in [0, n).
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n)); }

 private:
  std::uint64_t state_;
};

}  // namespace softfold_test
