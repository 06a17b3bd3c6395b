#include "oracle.hpp"

#include "softfold/fold/float16.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace softfold::cli {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

/// A sum that loses nothing to its length (Neumaier 1974).
template <class W>
class CompensatedSum {
 public:
  void add(W a) {
    const W next = sum_ + a;
    lost_ += std::abs(sum_) >= std::abs(a) ? (sum_ - next) + a : (a - next) + sum_;
    sum_ = next;
  }
  W value() const { return sum_ + lost_; }

 private:
  W sum_ = 0, lost_ = 0;
};

template <class W>
W exponential(double x, double extreme, double scale) {
  return std::exp((static_cast<W>(x) - static_cast<W>(extreme)) * static_cast<W>(scale));
}

template <class W>
Truth truth_in(std::span<const double> x, double scale) {
  Truth t;
  t.length = std::ssize(x);
  bool any = false, plus = false;
  for (const double v : x) {
    if (std::isnan(v) || (std::isinf(v) && scale == 0)) {
      t.kind = Truth::Kind::not_a_number;
      return t;
    }
    if (std::isinf(v)) {
      plus |= (v > 0) == (scale > 0);
    } else if (!any || (scale < 0 ? v < t.extreme : v > t.extreme)) {
      t.extreme = v;
      any = true;
    }
  }
  t.kind = plus ? Truth::Kind::plus_infinity : any ? Truth::Kind::regular : Truth::Kind::empty;
  if (t.kind != Truth::Kind::regular) return t;
  CompensatedSum<W> sum;
  for (const double v : x)
    if (!std::isinf(v)) sum.add(exponential<W>(v, t.extreme, scale));
  t.sum = sum.value();
  return t;
}

/// What is known of a result that must be one given value.
Worst exactly(bool right, std::int64_t index) {
  if (right) return {0, 0, 0, 0, 0, index};
  return {kUnbounded, kUnbounded, 0, kUnbounded, 0, index};
}

/// Half a unit in the last place of a result near `value`, when results are stored with less precision than they are
/// folded in; `beyond` says that a number of this size may be stored as an infinity.
struct Storage {
  long double half_ulp = 0;
  bool beyond = false;
};

Storage storage_of(long double value, const Precision& p) {
  int digits = 0, lowest = 0;
  long double largest = 0;
  switch (p.output) {
    case DType::float16: digits = 11, lowest = -14, largest = 65504; break;
    case DType::bfloat16: digits = 8, lowest = -126, largest = 0x1.FEp127L; break;
    case DType::float32: digits = 24, lowest = -126, largest = std::numeric_limits<float>::max(); break;
    default: digits = 53, lowest = -1022, largest = std::numeric_limits<double>::max(); break;
  }
  Storage s;
  const long double size = std::abs(value);
  s.beyond = size >= largest;
  if (digits >= (p.is_double ? 53 : 24) || size == 0) return s;
  const int exponent = std::max(std::ilogb(size), lowest);
  s.half_ulp = std::scalbn(1.L, exponent - digits);
  return s;
}

/// An error in a result's own terms, brought to u and to its bound. `unit` is one u there.
Worst measured(long double truth, double got, long double bound_in_u, long double unit, std::int64_t index,
               const Precision& p) {
  const Storage stored = storage_of(std::abs(truth) + bound_in_u * unit, p);
  if (std::isinf(got) && stored.beyond && (got > 0) == (truth > 0)) return exactly(true, index);
  const long double bound = bound_in_u * unit + stored.half_ulp;
  const long double error = std::abs(static_cast<long double>(got) - truth);
  Worst w;
  w.index = index;
  w.bound = static_cast<double>(bound / unit);
  w.error = w.largest_error = static_cast<double>(error / unit);
  w.ratio = std::isnan(got) ? kUnbounded : static_cast<double>(error / bound);
  const Storage exact = storage_of(truth, p);
  if (exact.half_ulp > 0) w.largest_ulp = static_cast<double>(error / (2 * exact.half_ulp));
  return w;
}

/// The largest score of a row in units of ln 2: from 2^51 on float64 holds less of it, as docs/one-answer.md says.
long double size_of_scores(const Truth& truth, const Precision& p) {
  return std::abs(static_cast<long double>(truth.extreme) * static_cast<long double>(p.scale)) / std::log(2.L);
}

/// Below this a probability may leave as 0, and as anything below `leaves_as`.
struct Vanishing {
  long double below, leaves_as;
};
Vanishing vanishing_of(const Truth& truth, const Precision& p) {
  if (!p.is_double) return {0x1p-124L, 0};
  const long double size = size_of_scores(truth, p);
  return size > 0x1p61L ? Vanishing{0x1p-256L, 0x1p-127L} : Vanishing{size >= 0x1p51L ? 0x1p-764L : 0x1p-1020L, 0};
}

/// Scores beyond float64's own range count as equal: only that a result is one is promised.
bool is_beyond(const Truth& truth, const Precision& p) {
  return p.is_double && size_of_scores(truth, p) > std::numeric_limits<double>::max();
}

bool is_special(const Truth& truth) { return truth.kind != Truth::Kind::regular; }

/// What every element of a row without a finite sum becomes.
double special_value(Op op, const Truth& truth, const Precision& p) {
  if (truth.kind != Truth::Kind::empty || p.empty == Empty::nan) return std::nan("");
  return op == Op::softmax ? 0. : -kUnbounded;
}

bool equal(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

template <class W>
Worst compare_in(Op op, const Truth& truth, std::span<const double> x, std::span<const double> y, std::int64_t first,
                 const Precision& p) {
  const auto u = p.unit();
  const auto ln_n = std::log(static_cast<long double>(truth.length));
  const Vanishing vanishing = vanishing_of(truth, p);
  const long double size = size_of_scores(truth, p) * std::log(2.L), far = p.is_double && size > 0x1p60L ? 3 * size : 0;
  const W sum = static_cast<W>(truth.sum);
  const W ln_sum = std::log(sum);
  Worst worst;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::int64_t index = first + static_cast<std::int64_t>(i);
    if (std::isinf(x[i])) {
      worst.take(exactly(y[i] == (op == Op::softmax ? 0. : -kUnbounded), index));
      continue;
    }
    if (is_beyond(truth, p)) {
      worst.take(exactly(op == Op::softmax ? y[i] >= 0 && y[i] <= 1 : y[i] <= 0, index));
      continue;
    }
    const W below = (static_cast<W>(truth.extreme) - static_cast<W>(x[i])) * static_cast<W>(p.scale);
    if (op == Op::softmax) {
      const long double bound = 8 + below + 2.5L * ln_n;
      const long double probability = std::exp(-below) / sum;
      const bool may_vanish = probability < vanishing.below * (1 + bound * u);
      worst.take(may_vanish && y[i] >= 0 && y[i] <= vanishing.leaves_as
                     ? exactly(true, index)
                     : measured(probability, y[i], bound, u * probability, index, p));
    } else {
      const long double log_probability = -below - ln_sum;
      worst.take(measured(log_probability, y[i], -3 * log_probability + 8 + 2 * below + 5 * ln_n + far, u, index, p));
    }
  }
  return worst;
}

}  // namespace

void Worst::take(const Worst& other) {
  if (other.ratio > ratio || index < 0) {
    const Worst before = *this;
    *this = other;
    largest_error = std::max(before.largest_error, other.largest_error);
    largest_ulp = std::max(before.largest_ulp, other.largest_ulp);
  } else {
    largest_error = std::max(largest_error, other.largest_error);
    largest_ulp = std::max(largest_ulp, other.largest_ulp);
  }
}

Truth truth_of(std::span<const double> x, const Precision& p) {
  return p.is_double ? truth_in<long double>(x, p.scale) : truth_in<double>(x, p.scale);
}

Truth join(const Truth& a, const Truth& b, const Precision& p) {
  Truth all = a.kind >= b.kind ? a : b;
  all.length = a.length + b.length;
  if (a.kind != Truth::Kind::regular || b.kind != Truth::Kind::regular) return all;
  const bool first = p.scale < 0 ? a.extreme <= b.extreme : a.extreme >= b.extreme;
  all.extreme = first ? a.extreme : b.extreme;
  const auto in_frame = [&](const Truth& t) {
    return t.sum * exponential<long double>(t.extreme, all.extreme, p.scale);
  };
  all.sum = in_frame(a) + in_frame(b);
  return all;
}

Worst compare(Op op, const Truth& truth, std::span<const double> x, std::span<const double> y, std::int64_t first,
              const Precision& p) {
  if (!is_special(truth))
    return p.is_double ? compare_in<long double>(op, truth, x, y, first, p)
                       : compare_in<double>(op, truth, x, y, first, p);
  const double value = special_value(op, truth, p);
  Worst worst;
  for (std::size_t i = 0; i < y.size(); ++i)
    worst.take(exactly(equal(y[i], value), first + static_cast<std::int64_t>(i)));
  return worst;
}

Worst compare_lse(const Truth& truth, double lse, const Precision& p) {
  switch (truth.kind) {
    case Truth::Kind::empty: return exactly(lse == -kUnbounded, 0);
    case Truth::Kind::plus_infinity: return exactly(lse == kUnbounded, 0);
    case Truth::Kind::not_a_number: return exactly(std::isnan(lse), 0);
    case Truth::Kind::regular: break;
  }
  const long double exact =
      static_cast<long double>(truth.extreme) * static_cast<long double>(p.scale) + std::log(truth.sum);
  const long double ln_n = std::log(static_cast<long double>(truth.length));
  const bool far = p.is_double && size_of_scores(truth, p) >= 0x1p51L;
  const long double bound = (far ? 2 : 1) * std::abs(exact) + 8 + 3 * ln_n;
  // A row of finite numbers has a finite logsumexp: beyond the fold's range it is the largest number there.
  const double most = p.is_double ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  const bool at_the_end = std::abs(lse) == most && (lse > 0) == (exact > 0);
  if (at_the_end && std::abs(exact) + bound * p.unit() >= most) return exactly(true, 0);
  return measured(exact, lse, bound, p.unit(), 0, p);
}

Worst compare_sum(const Truth& truth, long double sum, const Precision& p) {
  if (is_special(truth)) return exactly(true, 0);
  const auto n = static_cast<long double>(truth.length);
  long double bound = (3 + 1.5L * std::log(n)) * p.unit();
  // Rounded once more, every element may be off by half a unit in its last place: relative, or below the smallest
  // normal number absolute.
  if (p.output == DType::bfloat16) bound += 0x1p-8L;
  if (p.output == DType::float16) bound += 0x1p-11L + n * 0x1p-25L;
  if (p.output == DType::float32 && p.is_double) bound += 0x1p-24L + n * 0x1p-150L;
  Worst w;
  w.index = 0;
  w.error = w.largest_error = static_cast<double>(std::abs(sum - 1) / p.unit());
  w.bound = static_cast<double>(bound / p.unit());
  w.ratio = std::isnan(w.error) ? kUnbounded : w.error / w.bound;
  return w;
}

}  // namespace softfold::cli
