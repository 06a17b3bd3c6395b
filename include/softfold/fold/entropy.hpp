// The entropy of a row's softmax, H = -sum p ln p: one more sum in the fold of (m, d), and the gradient of an element,
// in which p is what softmax gives in the fold's precision and lp what log_softmax gives.
#pragma once

#include "softfold/fold/gradient.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

/// (m, d) of LogSumExp, and the sum of 2^(t - m) (m + 1 - t).
template <class T>
struct EntropyState {
  double m;
  T d, w;

  SOFTFOLD_HD typename LogSumExp<T>::State row() const { return {m, d}; }
};

/// Depths m + 1 - t of elements below a frame one above the row's own are at least 1/2 where it is fast (in double's
/// wide split they may be negative), so nothing cancels in w, and nothing that is added up is subnormal. From (m, d, w)
///
///   log2(e) H = log2 d - 1 + w / d
///
/// since ln p = ln(2) (t - m - log2 d) and sum p (t - m) = 1 - w / d.
template <class T>
struct EntropySum {
  using Element = T;
  using State = EntropyState<T>;
  using Lse = LogSumExp<T>;
  using A = Scalar<T>;

  Scale<T> scale;

  SOFTFOLD_HD static State identity() { return with_sum(Lse::identity(), T(0)); }
  SOFTFOLD_HD static State with_sum(const typename Lse::State& row, T w) { return {row.m, row.d, w}; }
  /// A row whose state was given and whose elements have been folded: NaN if these cannot be the given state's.
  SOFTFOLD_HD static State with_given(const typename Lse::State& given, const State& folded) {
    return given.m == folded.m ? with_sum(given, folded.w) : with_sum(Lse::not_a_number(), T(0));
  }

  /// Two exact rescales and one rounded addition, after each side has come to the common frame.
  SOFTFOLD_HD static State merge(const State& a, const State& b) {
    const auto row = Lse::merge(a.row(), b.row());
    return with_sum(row, row.m == infinity<double>() ? T(0) : A::add(moved(a, row.m), moved(b, row.m)));
  }

  SOFTFOLD_HD State lift(T x) const {
    const auto s = Lse{scale}.lift(x);
    return with_sum(s, Lse::is_regular(s) ? leaf(s.d, x, scale.c, s.m) : T(0));
  }
  SOFTFOLD_HD State push(const State& s, T x) const { return merge(s, lift(x)); }

  /// What an element adds in a row's or chunk's frame m.
  SOFTFOLD_HD static T leaf_of(T x, T c, double m) {
    if (::fabs(x) == infinity<T>()) return T(0);
    return leaf(Lse::is_fast(m) ? term<A>(x, c, Lse::narrow(m)) : term_wide(x, c, m), x, c, m);
  }
  /// What one adds whose term is known.
  SOFTFOLD_HD static T leaf(T term, T x, T c, double m) { return A::mul(term, depth(x, c, m)); }

  /// m + 1 - t; kDeepest for what has no term, be it -inf.
  SOFTFOLD_HD static T depth(T x, T c, double m) {
    T depth = kDeepest;
    if (Lse::is_fast(m)) {
      depth = A::fma(x, -c, above(m));
    } else if (::fabs(x) != infinity<T>()) {
      const auto s = split_wide(x, c);
      depth = static_cast<T>((1. - Real<T>::kUnit * (s.n - m) - s.j) - static_cast<double>(s.f));
    }
    return depth < kDeepest ? depth : kDeepest;
  }
  /// Of a fast frame: what an element's score is subtracted from.
  SOFTFOLD_HD static T above(double m) { return A::add(Lse::narrow(m), T(1)); }
  /// Further below its chunk's frame is no element that counts.
  static constexpr T kDeepest = sizeof(T) == 4 ? T(256) : T(2048);

  /// H in nats, at least 0; NaN of a row that holds NaN or +inf. An empty row's entropy is the caller's choice (Empty).
  SOFTFOLD_HD static T finish(const State& s) {
    if (s.m == infinity<double>()) return canonical_nan<T>();
    if (!(s.d > T(0))) return T(0);
    using D = Scalar<double>;
    const Binade b = binade_of(static_cast<double>(s.d));
    const double mean = D::div(static_cast<double>(s.w), static_cast<double>(s.d));
    // ln 2 itself, not kappa: p is that of the rounded c, whose entropy this is.
    const double units = D::add(D::add(mean, -1.), b.e);
    const double h = D::fma(units, kLn2, D::fma(units, kLn2Low, ln(b.g)));
    return h > 0 ? static_cast<T>(h) : T(0);
  }

 private:
  SOFTFOLD_HD static T moved(const State& s, double m) {
    const T factor = Lse::factor(s.m, m);
    if (factor == T(0)) return T(0);
    return A::mul(A::fma(s.d, static_cast<T>(Real<T>::kUnit * (m - s.m)), s.w), factor);
  }
};

/// In a row whose state is regular; c as the row was folded with.
template <class T>
struct Entropy {
  Normaliser<T> row;
  LogNormaliser<T> log_row;
  T c;

  SOFTFOLD_HD T probability(T x) const {
    if (::fabs(x) == infinity<T>()) return T(0);
    const T term_of_x =
        LogSumExp<T>::is_fast(row.m) ? term<Scalar<T>>(x, c, LogSumExp<T>::narrow(row.m)) : term_wide(x, c, row.m);
    return Normaliser<T>::probability(term_of_x, row.multiplier(row.m));
  }
  /// p (lp + H) * factor; 0 where p is, whatever its logarithm.
  SOFTFOLD_HD T gradient(T x, T entropy, T factor) const {
    using A = Scalar<T>;
    const T p = probability(x);
    return p > T(0) ? A::mul(A::mul(p, A::add(log_row.log_probability(x), entropy)), factor) : T(0);
  }
};

}  // namespace fold
}  // namespace v0
}  // namespace softfold
