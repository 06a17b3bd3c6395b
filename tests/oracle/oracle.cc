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
  const auto distance_to = [&](double v) {  // -d, exact enough: 240 bits hold any difference that counts
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

}  // namespace softfold_test::oracle
