// Parts of one softmax in the forms in which others hold them, and each part's share in the whole. Everything in
// double: a row has few parts, and their weights decide the result.
#pragma once

#include "softfold/fold/logsumexp.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

/// A part's sum of exponentials, `sum` * base^`log`: (lse, 1), or a maximum and a sum as flash attention keeps them.
/// Empty: log = -inf or sum = 0. In double, right for sums within 2^±480.
struct PartSum {
  double log, sum;
};

/// The joint sum of all parts, and share[i] = part i's sum / joint sum, 0 for an empty part or one too far below.
/// With a NaN among the parts the result is (+inf, NaN), with a +inf (+inf, 1), and every share is NaN; with nothing
/// but empty parts it is (-inf, 0).
SOFTFOLD_HD PartSum join_parts(const PartSum* parts, int count, bool base_two, double* share) {
  using A = Scalar<double>;
  bool nan = false, plus = false;
  double m = -infinity<double>();
  for (int i = 0; i < count; ++i) {
    const PartSum p = parts[i];
    if (is_nan(p.log) || is_nan(p.sum) || p.sum < 0.) {
      nan = true;
    } else if (p.log == infinity<double>() || p.sum == infinity<double>()) {
      plus = true;
    } else if (p.sum > 0. && p.log > m) {
      m = p.log;
    }
  }
  if (nan || plus) {
    for (int i = 0; i < count; ++i) share[i] = canonical_nan<double>();
    return {infinity<double>(), nan ? canonical_nan<double>() : 1.};
  }
  if (m == -infinity<double>()) {
    for (int i = 0; i < count; ++i) share[i] = 0.;
    return {m, 0.};
  }
  double total = 0.;
  for (int i = 0; i < count; ++i) {
    // log - m <= 0 without rounding for float32 statistics; -inf, or one that overflows to it, gives a weight of 0.
    const double weight = term<A>(A::sub(parts[i].log, m), base_two ? 1. : kLog2E, 0.);
    share[i] = A::mul(parts[i].sum, weight);
    total = A::add(total, share[i]);
  }
  for (int i = 0; i < count; ++i) share[i] = A::div(share[i], total);
  return {m, total};
}

/// The logarithm of a joint sum in the base of its `log`.
SOFTFOLD_HD double log_of(const PartSum& p, bool base_two) {
  using A = Scalar<double>;
  if (p.log == infinity<double>()) return is_nan(p.sum) ? canonical_nan<double>() : p.log;
  if (!(p.sum > 0.)) return -infinity<double>();
  const Binade b = binade_of(p.sum);
  const double rest = base_two ? A::fma(ln(b.g), kLog2E, b.e) : A::fma(b.e, kLn2, ln(b.g));
  return A::add(p.log, rest);
}

}  // namespace fold
}  // namespace v0
}  // namespace softfold
