// The Kullback-Leibler divergence of two softmaxes, K = sum p (ln p - ln q): two more numbers in the fold of both rows'
// (m, d), and the gradients of an element. docs/kl_divergence.md derives the form.
#pragma once

#include "softfold/fold/entropy.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

#include "softfold/fold/kl_divergence-inl.hpp"

/// log2(P / Q), P and Q the sums 2^(unit m) d of two states, in two parts.
struct KlRatio {
  double high, low;

  /// a + b, exactly.
  SOFTFOLD_HD static KlRatio sum(double a, double b) {
    using A = Scalar<double>;
    const double high = A::add(a, b), back = A::sub(high, a);
    return {high, A::add(A::sub(a, A::sub(high, back)), A::sub(b, back))};
  }
  SOFTFOLD_HD double over(const KlRatio& other) const {
    using A = Scalar<double>;
    return A::add(A::sub(high, other.high), A::sub(low, other.low));
  }
};

/// Of both rows, or a part of both: their states, log2(P / Q), and the divergence of the part taken for a whole row.
template <class T>
struct KlState {
  using Row = typename LogSumExp<T>::State;
  KlRatio ratio;
  double p_m, q_m;
  T p_d, q_d, divergence;

  SOFTFOLD_HD static KlState of(const Row& p, const Row& q, KlRatio ratio, T divergence) {
    return {ratio, p.m, q.m, p.d, q.d, divergence};
  }
  SOFTFOLD_HD Row p() const { return {p_m, p_d}; }
  SOFTFOLD_HD Row q() const { return {q_m, q_d}; }

  /// The divergence of a whole row; `nan_if_empty`: what the caller chose (Empty) for one that has no elements.
  SOFTFOLD_HD double finish(bool nan_if_empty) const {
    const double none = -infinity<double>(), bad = infinity<double>();
    const bool empty = p_m == none || q_m == none;
    if (p_m == bad || q_m == bad || (empty && nan_if_empty)) return canonical_nan<double>();
    return static_cast<double>(divergence);
  }
};

/// The fold of both rows. By the chain rule a part is to the whole what an element is: with shares p_i and q_i of the
/// two sums and r_i = ln p_i - ln q_i
///
///   K = sum p_i K_i + sum p_i r_i = sum p_i K_i + sum leaf(p_i, q_i, r_i),
///
/// and r_i is the difference of two log-ratios, the part's and the whole's. That of the whole, from its states, is off
/// by what these have lost; sum p_i r_i, which is exactly sum p_i ln(p_i / q_i), and the sum of leaves, which feels
/// such an error to second order only, then differ by it. So it is put right before the level above sees it.
template <class T>
struct KlSum {
  using State = KlState<T>;
  using Lse = LogSumExp<T>;
  using Row = typename Lse::State;
  using A = Scalar<T>;

  SOFTFOLD_HD static State identity() { return without_sums(Lse::identity(), Lse::identity()); }

  /// Whether both have something to add up: no NaN or +inf, but a number.
  SOFTFOLD_HD static bool is_regular(const Row& p, const Row& q) { return Lse::is_regular(p) && Lse::is_regular(q); }

  /// Of two rows that are not both regular.
  SOFTFOLD_HD static State without_sums(const Row& p, const Row& q) {
    // Nothing of q is where p is.
    const bool apart = Lse::is_regular(p) && q.m == -infinity<double>();
    return State::of(p, q, {0, 0}, apart ? infinity<T>() : T(0));
  }
  /// Of two regular ones; `from`: ratio_of(p, q), in which the elements' leaves were added up.
  SOFTFOLD_HD static State with_sums(const Row& p, const Row& q, KlRatio from, const KlLeaf<Scalar<T>>& sums) {
    return State::of(p, q, corrected(from, sums.divergence, sums.ratio), sums.divergence);
  }
  /// Rows whose states were given and whose elements have been folded: NaN if an m is not the elements' own.
  SOFTFOLD_HD static State with_given(const Row& p, const Row& q, const State& folded) {
    const bool same = p.m == folded.p_m && q.m == folded.q_m;
    return same ? State::of(p, q, folded.ratio, folded.divergence) : without_sums(Lse::not_a_number(), q);
  }

  /// As the states have it, of two regular rows.
  SOFTFOLD_HD static KlRatio ratio_of(const Row& p, const Row& q) {
    const Binade a = binade_of(static_cast<double>(p.d)), b = binade_of(static_cast<double>(q.d));
    const KlRatio frames = KlRatio::sum(bounded(p.m), -bounded(q.m));
    const KlRatio whole = KlRatio::sum(Real<T>::kUnit * frames.high, a.e - b.e);
    using D = Scalar<double>;
    const double rest = D::add(Real<T>::kUnit * frames.low, whole.low);
    return KlRatio::sum(whole.high, D::fma(D::sub(ln(a.g), ln(b.g)), kLog2E, rest));
  }
  /// The best that is known: without a finite divergence nothing has put it right.
  SOFTFOLD_HD static KlRatio ratio_of(const State& s) {
    return s.divergence < infinity<T>() ? s.ratio : ratio_of(s.p(), s.q());
  }

  SOFTFOLD_HD static State merge(const State& a, const State& b) {
    if (is_nothing(a)) return b;
    if (is_nothing(b)) return a;
    const Row p = Lse::merge(a.p(), b.p()), q = Lse::merge(a.q(), b.q());
    if (!is_regular(p, q)) return without_sums(p, q);
    const KlRatio from = ratio_of(p, q);
    const Shares of_p(a.p(), b.p(), p.m), of_q(a.q(), b.q(), q.m);
    const Part first = part(of_p.a, of_q.a, a, from), second = part(of_p.b, of_q.b, b, from);
    const T divergence = A::add(first.between, second.between);
    return State::of(p, q, corrected(from, divergence, A::add(first.ratio, second.ratio)),
                     A::add(A::add(first.within, second.within), divergence));
  }

 private:
  SOFTFOLD_HD static bool is_nothing(const State& s) {
    return s.p_m == -infinity<double>() && s.q_m == -infinity<double>();
  }

  /// So that no difference of ratios overflows. Only double's m can be larger (docs/accuracy.md).
  SOFTFOLD_HD static double bounded(double m) {
    constexpr double most = 0x1p1020;
    return m > most ? most : m < -most ? -most : m;
  }

  /// Of two sides in their sum.
  struct Shares {
    T a, b;

    SOFTFOLD_HD Shares(const Row& s, const Row& t, double m)
        : a(A::mul(s.d, Lse::factor(s.m, m))), b(A::mul(t.d, Lse::factor(t.m, m))) {
      const T one = A::div(T(1), A::add(a, b));
      a = A::mul(a, one), b = A::mul(b, one);
    }
  };
  struct Part {
    T within, between, ratio;
  };
  SOFTFOLD_HD static Part part(T p, T q, const State& s, const KlRatio& whole) {
    const auto leaf = kl_leaf<A>(p, q, static_cast<T>(Scalar<double>::mul(s.ratio.over(whole), kLn2)));
    // An infinite divergence of what has no share is none.
    return {p > T(0) ? A::mul(p, s.divergence) : T(0), leaf.divergence < T(0) ? T(0) : leaf.divergence, leaf.ratio};
  }
  SOFTFOLD_HD static KlRatio corrected(const KlRatio& r, T divergence, T ratio) {
    const T error = A::sub(ratio, divergence);
    if (!(::fabs(error) < infinity<T>())) return r;
    return KlRatio::sum(r.high, Scalar<double>::fma(static_cast<double>(error), kLog2E, r.low));
  }
};

/// How a row's gradients come about: `regular` by the formula, `value` else.
template <class T>
struct KlGradients {
  bool p_regular, q_regular;
  T p_value, q_value;

  SOFTFOLD_HD explicit KlGradients(const KlState<T>& s)
      : p_regular(false), q_regular(false), p_value(T(0)), q_value(T(0)) {
    const double none = -infinity<double>(), bad = infinity<double>();
    if (s.p_m == bad || s.q_m == bad) {
      p_value = q_value = canonical_nan<T>();
    } else if (s.p_m != none) {
      // No direction leads from an infinite divergence to another one.
      q_regular = s.q_m != none;
      p_regular = q_regular && s.divergence < infinity<T>();
      if (!p_regular) p_value = canonical_nan<T>();
    }
  }
};

/// A row's scale as kl_log_ratio takes it, and what brings a KlRatio to its logarithms.
template <class T>
struct KlScale {
  T high, low;
  typename Scale<T>::Kappa kappa;

  SOFTFOLD_HD explicit KlScale(const Scale<T>& by) : kappa(by.kappas()) {
    const double size = ::fabs(by.value);
    high = static_cast<T>(size);
    low = static_cast<T>(Scalar<double>::sub(size, static_cast<double>(high)));
  }
};

/// In rows whose states are both regular, or a chunk of them. p and q as the rows were folded.
template <class T>
struct KlDivergence {
  using A = Scalar<T>;
  using Row = typename LogSumExp<T>::State;

  Entropy<T> p, q;
  T scale, scale_low;  ///< of the logits, in two parts
  T shift, shift_low;  ///< ln sum exp(scale a) - ln sum exp(scale b)
  T correction;        ///< by how much the same from the states alone is to be raised
  bool exact;          ///< ln p - ln q comes from the difference of the logits, else of the logarithms

  SOFTFOLD_HD KlDivergence(const Row& of_p, const Row& of_q, const Scale<T>& by, const KlScale<T>& split, T c,
                           KlRatio ratio)
      : KlDivergence(of_p, of_q, by, split, c, ratio, is_exact(of_p, of_q, c)) {}

  SOFTFOLD_HD T log_ratio(T a, T b) const {
    if (exact) return kl_log_ratio<A>(a, b, scale, scale_low, shift, shift_low);
    return A::sub(A::sub(p.log_row.log_probability(a), q.log_row.log_probability(b)), correction);
  }
  SOFTFOLD_HD KlLeaf<A> leaf(T a, T b) const {
    const auto leaf = kl_leaf<A>(p.probability(a), q.probability(b), log_ratio(a, b));
    // Beyond the exact range p, q and their ratio may disagree by so much that the sum of the three is below 0.
    return {leaf.divergence < T(0) ? T(0) : leaf.divergence, leaf.ratio};
  }
  struct Gradient {
    T p, q;
  };
  SOFTFOLD_HD Gradient gradient(T a, T b, T divergence, T factor) const {
    return gradient_of(p.probability(a), q.probability(b), log_ratio(a, b), divergence, factor);
  }
  /// Of an element of probabilities p and q, r = ln p - ln q.
  SOFTFOLD_HD static Gradient gradient_of(T p, T q, T r, T divergence, T factor) {
    return {canonical(A::mul(kl_slope_of_p<A>(p, r, divergence), factor)),
            canonical(A::mul(kl_slope_of_q<A>(p, q, r), factor))};
  }

  /// No logit of a fast row of such a scale is so large that its difference from another one overflows.
  SOFTFOLD_HD static bool is_exact(const Row& p, const Row& q, T c) {
    constexpr T least = sizeof(T) == 4 ? T(0x1p-80) : T(0x1p-900);
    return LogSumExp<T>::is_fast(p.m) && LogSumExp<T>::is_fast(q.m) && c >= least;
  }

 private:
  SOFTFOLD_HD KlDivergence(const Row& of_p, const Row& of_q, const Scale<T>& by, const KlScale<T>& split, T c,
                           KlRatio ratio, bool exact_)
      : p(entropy_of(of_p, by, c, exact_)),
        q(entropy_of(of_q, by, c, exact_)),
        scale(split.high),
        scale_low(split.low),
        correction(T(0)),
        exact(exact_) {
    using D = Scalar<double>;
    const auto& kappa = split.kappa;
    const double high = D::mul(ratio.high, kappa.high);
    const double low =
        D::add(D::fma(ratio.high, kappa.high, -high), D::fma(ratio.high, kappa.low, D::mul(ratio.low, kappa.high)));
    const double sum = D::add(high, low), rest = D::add(D::sub(high, sum), low);
    shift = static_cast<T>(sum);
    shift_low = static_cast<T>(D::add(D::sub(sum, static_cast<double>(shift)), rest));
    if (!exact) correction = static_cast<T>(D::mul(ratio.over(KlSum<T>::ratio_of(of_p, of_q)), kLn2));
  }
  /// An exact row's logarithms are not asked for.
  SOFTFOLD_HD static Entropy<T> entropy_of(const Row& s, const Scale<T>& by, T c, bool exact) {
    LogNormaliser<T> log_row(exact ? LogSumExp<T>::identity() : s, by);
    log_row.set_c(c);
    return {Normaliser<T>(s), log_row, c};
  }
};

}  // namespace fold
}  // namespace v0
}  // namespace softfold
