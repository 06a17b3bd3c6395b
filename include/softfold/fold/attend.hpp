// The fold behind attention: (m, d, o), logsumexp's state and the weighted sum of values beside it, not normalised.
// What is folded is t = log2(e) * score, rounded to T: n = rint(t), f = t - n, and the weight of a key is 2^f * 2^(n -
// m).
#pragma once

#include "softfold/fold/logsumexp.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

/// Two (m, d) as one, and the exact powers of two that bring the values beside them into its frame.
template <class T>
struct Joined {
  typename LogSumExp<T>::State sum;
  T a, b;

  SOFTFOLD_HD T value(T of_a, T of_b) const { return Scalar<T>::add(Scalar<T>::mul(of_a, a), Scalar<T>::mul(of_b, b)); }
};

/// The merge of attention: logsumexp's, whose two factors every element of o is multiplied by.
template <class T>
SOFTFOLD_HD Joined<T> join(const typename LogSumExp<T>::State& a, const typename LogSumExp<T>::State& b) {
  using Lse = LogSumExp<T>;
  const auto sum = Lse::merge(a, b);
  return {sum, Lse::factor(a.m, sum.m), Lse::factor(b.m, sum.m)};
}

/// The (m, d) of one key. A score of -inf is a key that is not there; +inf and NaN make the row NaN.
template <class T>
SOFTFOLD_HD typename LogSumExp<T>::State lift_score(T t) {
  using Lse = LogSumExp<T>;
  if (is_nan(t) || t == infinity<T>()) return Lse::not_a_number();
  if (t == -infinity<T>()) return Lse::identity();
  const auto s = split<Scalar<T>>(t);
  // Adding +0 makes +0 of the -0 that a t from -1/2 on is rounded to: which of two equal m a merge takes must not show.
  return {static_cast<double>(s.n) / Real<T>::kUnit + 0., exp2_fraction<Scalar<T>>(s.f)};
}

/// log2(e) times it, and that plus as much, is finite.
template <class T>
inline constexpr T kMostBias = 0x1p126F;
template <>
inline constexpr double kMostBias<double> = 0x1p1022;

/// A bias or sink as it is added. A finite one beyond kMostBias, such as a mask of the lowest finite numbers, counts as
/// that: it must not become an infinity, which would hide the key. X: at least as wide as T.
template <class T, class X>
SOFTFOLD_HD T finite_bias(X x) {
  static_assert(sizeof(X) >= sizeof(T));
  constexpr T most = kMostBias<T>;
  if (x > X(most) && x < infinity<X>()) return most;
  if (x < -X(most) && x > -infinity<X>()) return -most;
  return static_cast<T>(x);
}

/// ln of the sum of exp(score) that a state stands for: -inf for an empty one, NaN for a row that is NaN.
template <class T>
SOFTFOLD_HD double lse_of(const typename LogSumExp<T>::State& s) {
  return LogSumExp<T>{Scale<T>{kLn2, T(1)}}.log_sum(s);
}

/// What o is multiplied by to give out: 1/d, 0 for an empty state, NaN for a row that is NaN.
template <class T>
SOFTFOLD_HD T share_of(const typename LogSumExp<T>::State& s) {
  return s.d == T(0) ? T(0) : Scalar<T>::div(T(1), s.d);
}

/// The whole fold for values of Dv numbers known when compiling, for anyone's own loop or kernel. Kernels keep o apart
/// from (m, d) and use the functions above.
template <class T, int Dv>
struct Attend {
  using Lse = LogSumExp<T>;
  struct Element {
    T t;  ///< log2(e) * score
    T v[Dv];
  };
  struct State {
    typename Lse::State sum;
    T o[Dv];
  };

  SOFTFOLD_HD static State identity() { return {Lse::identity(), {}}; }

  SOFTFOLD_HD static State merge(const State& a, const State& b) {
    const auto joined = join<T>(a.sum, b.sum);
    State s{joined.sum, {}};
    for (int i = 0; i < Dv; ++i) s.o[i] = joined.value(a.o[i], b.o[i]);
    return s;
  }

  SOFTFOLD_HD static State lift(const Element& x) {
    State s{lift_score(x.t), {}};
    for (int i = 0; i < Dv && s.sum.m > -infinity<double>(); ++i) s.o[i] = Scalar<T>::mul(s.sum.d, x.v[i]);
    return s;
  }

  SOFTFOLD_HD State push(const State& s, const Element& x) const { return merge(s, lift(x)); }

  struct Result {
    T out[Dv];
    double lse;
  };
  SOFTFOLD_HD Result finish(const State& s) const {
    Result r{{}, lse_of<T>(s.sum)};
    const T share = share_of<T>(s.sum);
    for (int i = 0; i < Dv; ++i) r.out[i] = canonical(Scalar<T>::mul(s.o[i], share));
    return r;
  }
};

}  // namespace fold
}  // namespace v0
}  // namespace softfold
