// Cross-entropy of a row from its state and the log-probability of its target: what a row's loss is made of, and its
// gradient an element at a time. What there is one of a row is computed in double.
#pragma once

#include "softfold/fold/gradient.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

/// The loss of a row: hit (-lp_t) + spread sum w (-lp) + square lse^2.
struct CrossEntropy {
  double hit;      ///< (1 - label smoothing) w_t
  double spread;   ///< label smoothing / K, of K classes that exist; 0 without smoothing
  double weights;  ///< sum of w over the classes that exist; used where spread is not 0
  double square;   ///< z-loss times w_t

  SOFTFOLD_HD CrossEntropy(double smoothing, double z_loss, double target_weight, double classes, double sum_of_weights)
      : hit(Scalar<double>::mul(Scalar<double>::sub(1., smoothing), target_weight)),
        spread(smoothing > 0. && classes > 0. ? Scalar<double>::div(smoothing, classes) : 0.),
        weights(sum_of_weights),
        square(Scalar<double>::mul(z_loss, target_weight)) {}

  /// `sum`: of w lp over the row. A factor of 0 takes its term out, also an infinite one.
  SOFTFOLD_HD double loss(double lp, double sum, double lse) const {
    using A = Scalar<double>;
    double total = hit != 0. ? A::mul(hit, -lp) : 0.;
    if (spread != 0.) total = A::add(total, A::mul(spread, -sum));
    if (square != 0.) total = A::add(total, A::mul(square, A::mul(lse, lse)));
    return canonical(A::add(total, 0.));  // +0 for a lone class, not -0
  }

  /// What a class's probability is multiplied by in the gradient: its share of every term.
  SOFTFOLD_HD double pull(double lse) const {
    using A = Scalar<double>;
    double total = hit;
    if (spread != 0.) total = A::add(total, A::mul(spread, weights));
    if (square != 0.) total = A::add(total, A::mul(2., A::mul(square, lse)));
    return total;
  }
};

/// dx = (pull p - spread w - [target] hit) * factor, in a row whose state is regular; c as the row was folded with.
/// The difference is taken in the fold's precision, so that a p near 1 leaves a gradient.
template <class T>
struct CrossEntropyGradient {
  Normaliser<T> row;
  T c, pull, spread, hit, factor;

  SOFTFOLD_HD CrossEntropyGradient(const Normaliser<T>& row_, T c_, const CrossEntropy& terms, double lse,
                                   double factor_)
      : row(row_),
        c(c_),
        pull(static_cast<T>(terms.pull(lse))),
        spread(static_cast<T>(terms.spread)),
        hit(static_cast<T>(terms.hit)),
        factor(static_cast<T>(factor_)) {}

  SOFTFOLD_HD T probability(T x) const {
    const T multiplier = row.multiplier(row.m);
    if (LogSumExp<T>::is_fast(row.m)) return row_probability<Scalar<T>>(x, c, LogSumExp<T>::narrow(row.m), multiplier);
    if (::fabs(x) == infinity<T>() && Scalar<T>::mul(x, c) == -infinity<T>()) return T(0);
    if (!(::fabs(x) < infinity<T>()) || LogSumExp<T>::frame(x, c).m > row.m) return canonical_nan<T>();
    return Normaliser<T>::probability(term_wide(x, c, row.m), multiplier);
  }
  SOFTFOLD_HD T operator()(T x, T w) const {
    return canonical(cross_entropy_gradient<Scalar<T>>(probability(x), w, pull, spread, factor));
  }
  SOFTFOLD_HD T at_target(T x, T w) const {
    using A = Scalar<T>;
    const T others = A::sub(A::mul(pull, probability(x)), A::mul(spread, w));
    return canonical(A::mul(A::sub(others, hit), factor));
  }
};

}  // namespace fold
}  // namespace v0
}  // namespace softfold
