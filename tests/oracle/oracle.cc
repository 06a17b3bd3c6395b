#include "oracle/oracle.hpp"

#include <mpfr.h>

#include <cmath>
#include <cstddef>
#include <limits>

namespace softfold_test::oracle {
namespace {

constexpr long double kInfinity = std::numeric_limits<long double>::infinity();

/// Settles the rows that have one answer for all elements. False if the row is regular.
bool settle_special(Exact& r, std::span<const double> x, double scale) {
  bool any = false, plus = false, nan = false;
  for (const double v : x) {
    if (std::isnan(v) || (std::isinf(v) && scale == 0)) {
      nan = true;
    } else if (std::isinf(v)) {
      plus |= (v > 0) == (scale > 0);
    } else {
      any = true;
    }
  }
  r.row = nan    ? Exact::Row::not_a_number
          : plus ? Exact::Row::plus_infinity
          : any  ? Exact::Row::regular
                 : Exact::Row::empty;
  r.lse = nan ? std::numeric_limits<long double>::quiet_NaN() : plus ? kInfinity : -kInfinity;
  return r.row != Exact::Row::regular;
}

/// The element with the largest scale * x.
double top_of(std::span<const double> x, double scale) {
  double top = 0;
  bool first = true;
  for (const double v : x) {
    if (std::isinf(v)) continue;
    if (first || (scale < 0 ? v < top : v > top)) top = v;
    first = false;
  }
  return top;
}

/// 240 bits hold any difference that counts.
struct Number {
  mpfr_t v;
  Number() { mpfr_init2(v, 240); }
  ~Number() { mpfr_clear(v); }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  operator mpfr_ptr() { return v; }
  long double rounded() { return mpfr_get_ld(v, MPFR_RNDN); }
};

}  // namespace

Exact in_long_double(std::span<const double> x, double scale) {
  Exact r;
  if (settle_special(r, x, scale)) return r;
  const long double top = top_of(x, scale), s = scale;
  long double sum = 0, carry = 0;
  for (const double v : x) {
    const long double d = std::isinf(v) ? kInfinity : s * (top - static_cast<long double>(v));
    r.distance.push_back(d);
    r.probability.push_back(std::exp(-d));
    const long double y = r.probability.back() - carry, next = sum + y;
    carry = (next - sum) - y;
    sum = next;
  }
  const long double log_sum = std::log(sum);
  for (std::size_t i = 0; i < x.size(); ++i) {
    r.log_probability.push_back(-r.distance[i] - log_sum);
    r.probability[i] /= sum;
  }
  r.top = s * top;
  r.lse = r.top + log_sum;
  return r;
}

Exact in_mpfr(std::span<const double> x, double scale) {
  Exact r;
  if (settle_special(r, x, scale)) return r;
  Number top, d, e, sum, log_sum;
  mpfr_set_d(top, top_of(x, scale), MPFR_RNDN);
  mpfr_set_zero(sum, 1);
  const auto distance_to = [&](double v) {  // -d
    mpfr_set_d(d, v, MPFR_RNDN);
    mpfr_sub(d, d, top, MPFR_RNDN);
    mpfr_mul_d(d, d, scale, MPFR_RNDN);
  };
  for (const double v : x) {
    if (std::isinf(v)) continue;
    distance_to(v);
    mpfr_exp(e, d, MPFR_RNDN);
    mpfr_add(sum, sum, e, MPFR_RNDN);
  }
  mpfr_log(log_sum, sum, MPFR_RNDN);
  for (const double v : x) {
    if (std::isinf(v)) {
      r.distance.push_back(kInfinity);
      r.probability.push_back(0);
      r.log_probability.push_back(-kInfinity);
      continue;
    }
    distance_to(v);
    r.distance.push_back(-d.rounded());
    mpfr_exp(e, d, MPFR_RNDN);
    mpfr_div(e, e, sum, MPFR_RNDN);
    r.probability.push_back(e.rounded());
    mpfr_sub(d, d, log_sum, MPFR_RNDN);
    r.log_probability.push_back(d.rounded());
  }
  mpfr_mul_d(top, top, scale, MPFR_RNDN);
  r.top = top.rounded();
  mpfr_add(top, top, log_sum, MPFR_RNDN);
  r.lse = top.rounded();
  return r;
}

namespace {

/// scale v less the logarithm of the row's sum, of a finite v.
class LogProbabilities {
 public:
  LogProbabilities(std::span<const double> x, double scale) : top_(top_of(x, scale)), scale_(scale) {
    mpfr_set_zero(log_sum_, 1);
    Number sum, e;
    mpfr_set_zero(sum, 1);
    for (const double v : x) {
      if (std::isinf(v)) continue;
      of(e, v);
      mpfr_exp(e, e, MPFR_RNDN);
      mpfr_add(sum, sum, e, MPFR_RNDN);
    }
    mpfr_log(log_sum_, sum, MPFR_RNDN);
  }
  void of(mpfr_ptr lp, double v) {
    mpfr_set_d(lp, v, MPFR_RNDN);
    mpfr_sub_d(lp, lp, top_, MPFR_RNDN);
    mpfr_mul_d(lp, lp, scale_, MPFR_RNDN);
    mpfr_sub(lp, lp, log_sum_, MPFR_RNDN);
  }

 private:
  double top_, scale_;
  Number log_sum_;
};

}  // namespace

ExactDivergence divergence_in_mpfr(std::span<const double> a, std::span<const double> b, double scale) {
  ExactDivergence r;
  LogProbabilities of_a(a, scale), of_b(b, scale);
  Number p, q, ratio, term, sum, size;
  mpfr_set_zero(sum, 1), mpfr_set_zero(size, 1);
  bool infinite = false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool in_p = std::isfinite(a[i]), in_q = std::isfinite(b[i]);
    mpfr_set_zero(p, 1), mpfr_set_zero(q, 1), mpfr_set_zero(ratio, 1);
    if (in_q) of_b.of(q, b[i]);
    if (in_p) of_a.of(p, a[i]);
    if (in_p && in_q) mpfr_sub(ratio, p, q, MPFR_RNDN);
    if (in_p) mpfr_exp(p, p, MPFR_RNDN);
    if (in_q) mpfr_exp(q, q, MPFR_RNDN);
    infinite |= in_p && !in_q;
    r.log_ratio.push_back(in_p == in_q ? ratio.rounded() : in_p ? kInfinity : -kInfinity);
    mpfr_mul(term, p, ratio, MPFR_RNDN);
    mpfr_abs(ratio, term, MPFR_RNDN);
    mpfr_add(size, size, ratio, MPFR_RNDN);
    mpfr_sub(q, q, p, MPFR_RNDN);
    r.difference.push_back(q.rounded());
    mpfr_add(term, term, q, MPFR_RNDN);
    r.term.push_back(term.rounded());
    mpfr_add(sum, sum, term, MPFR_RNDN);
  }
  r.divergence = infinite ? kInfinity : sum.rounded();
  r.size = infinite ? kInfinity : size.rounded();
  return r;
}

}  // namespace softfold_test::oracle
