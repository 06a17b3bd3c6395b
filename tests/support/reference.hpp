// The definition (row_reference.hpp) for rows of which every element exists.
#pragma once

#include "support/row_reference.hpp"

#include <span>
#include <vector>

namespace softfold_test::reference {

template <class T>
using State = typename fold::LogSumExp<T>::State;

template <class T>
ReferenceRow<T> whole(std::span<const T> x, double scale) {
  return {{x.begin(), x.end()}, std::vector<bool>(x.size(), true), scale};
}

template <class T>
State<T> reduce(std::span<const T> x, double scale) {
  return reference_state(whole<T>(x, scale));
}

template <class T>
std::vector<T> softmax(std::span<const T> x, const State<T>& s, double scale) {
  return reference_softmax(whole<T>(x, scale), s, softfold::Empty::zero);
}

template <class T>
std::vector<T> log_softmax(std::span<const T> x, const State<T>& s, double scale) {
  return reference_log_softmax(whole<T>(x, scale), s, softfold::Empty::zero);
}

template <class T>
T logsumexp(const State<T>& s, double scale) {
  return reference_lse(whole<T>({}, scale), s);
}

}  // namespace softfold_test::reference
