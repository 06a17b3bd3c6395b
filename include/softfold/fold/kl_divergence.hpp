// The Kullback-Leibler divergence of two softmaxes, K = sum p (ln p - ln q), from the states of both rows: what is
// added up, and the gradients of an element. docs/kl_divergence.md derives the form.
#pragma once

#include "softfold/fold/entropy.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

#include "softfold/fold/kl_divergence-inl.hpp"

/// The two sums of a row: the divergence, and the mean of ln p - ln q. Exactly they are the same number; computed, they
/// differ by the error that all of the row's ln p - ln q have in common.
template <class T>
struct KlSum {
  using Element = T;
  struct State {
    T divergence, ratio;
  };
  SOFTFOLD_HD static State identity() { return {Sum<T>::identity(), Sum<T>::identity()}; }
  SOFTFOLD_HD static State merge(const State& a, const State& b) {
    return {Sum<T>::merge(a.divergence, b.divergence), Sum<T>::merge(a.ratio, b.ratio)};
  }
};

/// In rows whose states are both regular. p and q as the rows were folded.
template <class T>
struct KlDivergence {
  Entropy<T> p, q;
  T scale, scale_low;  ///< of the logits, in two parts
  T shift, shift_low;  ///< ln sum exp(scale a) - ln sum exp(scale b), and the correction
  T correction;
  bool exact;  ///< ln p - ln q comes from the difference of the logits, else of the logarithms

  using State = typename LogSumExp<T>::State;

  /// `correction`: how far ln p - ln q is to be lowered.
  SOFTFOLD_HD KlDivergence(const Entropy<T>& p_, const Entropy<T>& q_, const State& of_p, const State& of_q,
                           const Scale<T>& by, double correction_)
      : p(p_), q(q_), correction(static_cast<T>(correction_)), exact(is_exact(p_, q_)) {
    using A = Scalar<double>;
    const double size = ::fabs(by.value);
    scale = static_cast<T>(size);
    scale_low = static_cast<T>(A::sub(size, static_cast<double>(scale)));
    // ln d + kappa m of both, as one difference: what their exponents have in common leaves no error.
    const Binade a = binade_of(static_cast<double>(of_p.d)), b = binade_of(static_cast<double>(of_q.d));
    const double k = A::add(Real<T>::kUnit * (of_p.m - of_q.m), a.e - b.e);
    const double high = A::mul(k, by.kappa());
    const double low = A::add(A::fma(k, by.kappa(), -high), A::fma(k, by.kappa_low(), A::sub(ln(a.g), ln(b.g))));
    const double sum = A::add(high, low), rest = A::add(A::sub(high, sum), low);
    shift = static_cast<T>(sum);
    shift_low = static_cast<T>(A::add(A::add(A::sub(sum, static_cast<double>(shift)), rest), correction_));
  }

  SOFTFOLD_HD T log_ratio(T a, T b) const {
    using A = Scalar<T>;
    if (exact) return kl_log_ratio<A>(a, b, scale, scale_low, shift, shift_low);
    return A::sub(A::sub(p.log_row.log_probability(a), q.log_row.log_probability(b)), correction);
  }
  SOFTFOLD_HD typename KlSum<T>::State leaf(T a, T b) const {
    const auto leaf = kl_leaf<Scalar<T>>(p.probability(a), q.probability(b), log_ratio(a, b));
    // Beyond the exact range p, q and their ratio may disagree by so much that the sum of the three is below 0.
    return {leaf.divergence < T(0) ? T(0) : leaf.divergence, leaf.ratio};
  }
  struct Gradient {
    T p, q;
  };
  SOFTFOLD_HD Gradient gradient(T a, T b, T divergence, T factor) const {
    using A = Scalar<T>;
    const T of_p = p.probability(a), r = log_ratio(a, b);
    return {canonical(A::mul(kl_slope_of_p<A>(of_p, r, divergence), factor)),
            canonical(A::mul(kl_slope_of_q<A>(of_p, q.probability(b), r), factor))};
  }

 private:
  /// No logit of a fast row of such a scale is so large that its difference from another one overflows.
  SOFTFOLD_HD static bool is_exact(const Entropy<T>& p, const Entropy<T>& q) {
    constexpr T least = sizeof(T) == 4 ? T(0x1p-80) : T(0x1p-900);
    return p.log_row.fast && q.log_row.fast && p.c >= least;
  }
};

}  // namespace fold
}  // namespace v0
}  // namespace softfold
