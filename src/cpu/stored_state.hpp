// A state as it lies in memory, four numbers of float64, and what is checked before one is believed.
#pragma once

#include "softfold/error.hpp"
#include "softfold/fold/logsumexp.hpp"
#include "softfold/shown.hpp"

#include <cmath>
#include <string>

namespace softfold {
inline namespace v0 {
namespace cpu {

struct StoredState {
  double m, d, scale, digits;

  bool is_double() const { return digits == fold::Real<double>::kDigits; }
  /// The same scale (a NaN is the same as a NaN).
  bool has_scale(double other) const { return scale == other || (std::isnan(scale) && std::isnan(other)); }
};

template <class T>
typename fold::LogSumExp<T>::State state_of(const StoredState& s) {
  return {s.m, static_cast<T>(s.d)};
}

template <class T>
StoredState stored(const typename fold::LogSumExp<T>::State& s, double scale) {
  return {s.m, static_cast<double>(s.d), scale, static_cast<double>(fold::Real<T>::kDigits)};
}

/// Digits and (m, d) that go together.
inline bool is_sound(const StoredState& s) {
  if (s.is_double()) return fold::LogSumExp<double>::is_state(s.m, s.d);
  return s.digits == fold::Real<float>::kDigits && fold::LogSumExp<float>::is_state(s.m, s.d);
}

/// Refuses one that is not sound. `where` completes the sentence: " in the state of row 3".
[[noreturn]] inline void refuse_unsound(const StoredState& s, const std::string& where) {
  if (!s.is_double() && s.digits != fold::Real<float>::kDigits)
    throw Error(Code::state, "digits " + detail::shown(s.digits) + where,
                "24 (folded in float32) or 53 (folded in float64)",
                "give the states that softfold::state wrote: (m, d, scale, digits)");
  throw Error(Code::state, "(m, d) = (" + detail::shown(s.m) + ", " + detail::shown(s.d) + ")" + where,
              "a state that a row can have", "give the states that softfold::state or merge_states wrote");
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
