// The loss of one row by the formulas of docs/cross_entropy.md, from its log-probabilities, in long double.
#pragma once

#include "support/sum_of.hpp"

#include <cmath>
#include <vector>

namespace softfold_test {

/// sum share_k (-lp_k) + square lse^2. A class as the target is a probability of 1.
struct LossRow {
  std::vector<long double> log_probability;  ///< -inf also of what does not exist
  std::vector<long double> share;            ///< w q' of a class; 0 of what does not exist
  long double lse = 0;
  long double square = 0;  ///< the z-loss times the weight of the target, or times the sum of the shares

  static long double share_of(long double weight, long double q, long double smoothing, long double classes) {
    return weight * ((1 - smoothing) * q + smoothing / classes);
  }

  long double shares() const {
    return sum_of(share.size(), [&](std::size_t k) { return share[k]; });
  }
  /// A class without a share takes no part, not even where its logit is -inf.
  long double loss() const {
    long double infinite = 0;
    const long double sum = sum_of(share.size(), [&](std::size_t k) -> long double {
      if (share[k] == 0) return 0;
      if (std::isinf(log_probability[k])) infinite = -log_probability[k];
      return std::isinf(log_probability[k]) ? 0 : share[k] * -log_probability[k];
    });
    return infinite + sum + (square != 0 ? square * lse * lse : 0);
  }
  /// The loss's derivatives in scale times the logits.
  std::vector<long double> slopes() const {
    const long double pull = shares() + (square != 0 ? 2 * square * lse : 0);
    std::vector<long double> all;
    for (std::size_t k = 0; k < share.size(); ++k) all.push_back(pull * std::exp(log_probability[k]) - share[k]);
    return all;
  }
};

}  // namespace softfold_test
