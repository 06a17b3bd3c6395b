// Drawing from a row by one uniform number, descended through the canonical tree: the draw is a function of the row,
// the key and the counter alone, so neither batch, threads nor device change it.
#pragma once

#include "softfold/fold/logsumexp.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC 2011): four words that
/// are a function of a counter and a key.
struct Philox {
  std::uint32_t word[4];

  SOFTFOLD_HD static Philox at(const std::uint32_t (&counter)[4], std::uint32_t key0, std::uint32_t key1) {
    Philox x{{counter[0], counter[1], counter[2], counter[3]}};
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53U} * x.word[0], b = std::uint64_t{0xCD9E8D57U} * x.word[2];
      x = {{static_cast<std::uint32_t>(b >> 32) ^ x.word[1] ^ key0, static_cast<std::uint32_t>(b),
            static_cast<std::uint32_t>(a >> 32) ^ x.word[3] ^ key1, static_cast<std::uint32_t>(a)}};
      key0 += 0x9E3779B9U;
      key1 += 0xBB67AE85U;
    }
    return x;
  }
};

/// The uniform number in [0, 1), a multiple of 2^-53, of one draw: key `seed`, counter (offset, row).
SOFTFOLD_HD double uniform(std::uint64_t seed, std::uint64_t offset, std::uint64_t row) {
  const std::uint32_t counter[4] = {static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32),
                                    static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(row >> 32)};
  const Philox x = Philox::at(counter, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  const std::uint64_t bits = std::uint64_t{x.word[1]} << 32 | x.word[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// What is left of a draw on its way from the root to an element: a point in [0, mass of the node). Masses are in the
/// row's frame, where rescaled float32 sums are exact doubles.
struct Descent {
  double point;

  /// Whether the way goes to the right child. A child without mass is never entered.
  SOFTFOLD_HD bool goes_right(double left, double right) {
    if (!(right > 0) || (left > 0 && point < left)) return false;
    point = Scalar<double>::sub(point, left);
    return true;
  }
};

/// The mass of a node's sum in the row's frame.
SOFTFOLD_HD double mass_of(const LogSumExp<float>::State& node, double row_m) {
  return static_cast<double>(node.d) * static_cast<double>(LogSumExp<float>::factor(node.m, row_m));
}

/// The smallest element that min-p keeps, of which `top` is the largest: exp(scale (x - top)) >= min_p > 0, as
/// x >= top + log2(min_p) / c.
SOFTFOLD_HD float least_of_min_p(float top, double min_p, float c) {
  using A = Scalar<double>;
  const Binade b = binade_of(min_p);
  const double log2 = A::fma(ln(b.g), kLog2E, b.e);
  const double least = A::add(static_cast<double>(top), A::div(log2, static_cast<double>(c)));
  if (!(least >= -static_cast<double>(largest<float>()))) return -infinity<float>();
  return least > static_cast<double>(top) ? top : static_cast<float>(least);
}

/// A term in its row's frame as a count of 2^-36: sums of counts are exact in any order. top-p weighs with them.
SOFTFOLD_HD std::uint64_t count_of(double term) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(term * 0x1p36));
}
SOFTFOLD_HD std::uint64_t count_of(float term) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(term * 0x1p36F));
}
/// The count that a share of at least top_p has; at least 1.
SOFTFOLD_HD std::uint64_t share_of(double top_p, std::uint64_t total) {
  const auto need = static_cast<std::uint64_t>(::ceil(top_p * static_cast<double>(total)));
  return need < 1 ? 1 : need > total ? total : need;
}
/// Rows of no more elements have counts that add up to less than 2^64.
inline constexpr std::int64_t kMostCounted = std::int64_t{1} << 27;

}  // namespace fold
}  // namespace v0
}  // namespace softfold
