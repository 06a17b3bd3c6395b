// The operations on one row, written out from the scalar definition in fold/ and lift/ and nothing else: what every
// backend must equal bit for bit.
#pragma once

#include "softfold/lift/chunks.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace softfold_test::reference {

template <class T>
using Lse = softfold::fold::LogSumExp<T>;
template <class T>
using State = typename Lse<T>::State;

/// The state of the elements of x that `present` names (all of them if it is empty).
template <class T>
State<T> reduce(std::span<const T> x, double scale, const std::vector<char>& present = {}) {
  using softfold::lift::kChunk;
  const T c = softfold::fold::make_scale<T>(scale).c;
  softfold::lift::TreeBuilder<Lse<T>> tree;
  T terms[kChunk];
  bool here[kChunk];
  for (std::size_t i = 0; i < x.size(); i += kChunk) {
    const auto n = static_cast<int>(std::min<std::size_t>(kChunk, x.size() - i));
    for (int j = 0; j < n; ++j) here[j] = present.empty() || present[i + static_cast<std::size_t>(j)] != 0;
    tree.push(softfold::lift::reduce_chunk(x.data() + i, n, c, terms, present.empty() ? nullptr : here));
  }
  return tree.root();
}

/// exp(scale x) of every element over the sum that `s` stands for. Every element exists.
template <class T>
std::vector<T> softmax(std::span<const T> x, const State<T>& s, double scale, T empty = T(0)) {
  using namespace softfold::fold;
  const T c = make_scale<T>(scale).c;
  const Normaliser<T> normalise(s);
  std::vector<T> y(x.size(), normalise.empty ? empty : canonical_nan<T>());
  if (!normalise.regular) return y;
  const T multiplier = normalise.multiplier(s.m);
  for (std::size_t i = 0; i < x.size(); ++i) {
    T term;
    if (std::abs(x[i]) == infinity<T>()) {
      term = T(0);  // +inf under scale > 0 would have made the state special
    } else {
      term = Lse<T>::is_fast(s.m) ? softfold::fold::term<Scalar<T>>(x[i], c, Lse<T>::narrow(s.m))
                                  : term_wide(x[i], c, s.m);
    }
    y[i] = Normaliser<T>::probability(term, multiplier);
  }
  return y;
}

template <class T>
std::vector<T> log_softmax(std::span<const T> x, const State<T>& s, double scale,
                           T empty = -softfold::fold::infinity<T>()) {
  using namespace softfold::fold;
  const LogNormaliser<T> normalise(s, make_scale<T>(scale));
  std::vector<T> y(x.size(), normalise.empty ? empty : canonical_nan<T>());
  if (!normalise.regular) return y;
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = normalise.log_probability(x[i]);
  return y;
}

template <class T>
T logsumexp(const State<T>& s, double scale) {
  return Lse<T>{softfold::fold::make_scale<T>(scale)}.finish(s);
}

}  // namespace softfold_test::reference
