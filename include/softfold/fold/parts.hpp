// Parts of one softmax in the forms in which others hold them, and each part's share in the whole. Everything in
// double: a row has few parts, and their weights decide the result.
#pragma once

#include "softfold/fold/logsumexp.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

/// A part's sum of exponentials, `sum` * base^`log`: (lse, 1), or a maximum and a sum as flash attention keeps them.
/// Empty: log = -inf or sum = 0.
struct PartSum {
  double log, sum;
};

/// A sum outside 2^±480 as its mantissa, its exponent moved into `log` (rounded there); any other as it is. Products
/// with a weight, and sums of several, then stay within double's range.
SOFTFOLD_HD PartSum moderate(const PartSum& p, bool base_two) {
  if (!(p.sum > 0. && p.sum < infinity<double>()) || (p.sum >= 0x1p-480 && p.sum <= 0x1p480)) return p;
  const double up = p.sum < 1. ? 600. : 0.;  // a subnormal number has no exponent to take
  const Binade b = binade_of(Scalar<double>::mul(p.sum, p.sum < 1. ? 0x1p600 : 1.));
  return {Scalar<double>::fma(b.e - up, base_two ? 1. : kLn2, p.log), b.g};
}

/// A joint sum as float32 can hold it: from 2^128 on with its exponent in `log`, which is rounded to float32 first, so
/// that `sum` makes up for what the rounding took. Where log's own steps are too coarse for that, the largest number.
SOFTFOLD_HD PartSum for_float32(const PartSum& p, bool base_two) {
  using A = Scalar<double>;
  const auto most = static_cast<double>(largest<float>());
  if (!(p.sum > most && p.sum < infinity<double>())) return p;
  const Binade b = binade_of(p.sum);
  const double log = A::fma(b.e, base_two ? 1. : kLn2, p.log);
  const double stored = log > most ? most : static_cast<double>(static_cast<float>(log));
  const double sum = A::mul(p.sum, term<A>(A::sub(p.log, stored), base_two ? 1. : kLog2E, 0.));
  return {stored, sum < most ? sum : most};
}

/// The joint sum of all parts, at the largest `log` among them, and share[i] = part i's sum / joint sum, 0 for an empty
/// part or one too far below. With a NaN among the parts the result is (+inf, NaN), with a +inf (+inf, 1), and every
/// share is NaN; with nothing but empty parts it is (-inf, 0). `parts` and `share` are pointers, or what has
/// their [i].
template <class Parts, class Shares>
SOFTFOLD_HD PartSum join_parts(Parts parts, int count, bool base_two, Shares share) {
  using A = Scalar<double>;
  bool nan = false, plus = false;
  double m = -infinity<double>();
  for (int i = 0; i < count; ++i) {
    const PartSum p = moderate(parts[i], base_two);
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
    const PartSum p = moderate(parts[i], base_two);
    const double weight = term<A>(A::sub(p.log, m), base_two ? 1. : kLog2E, 0.);
    share[i] = A::mul(p.sum, weight);
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
