// What a loss is given as targets.
#pragma once

#include "front/problem.hpp"

namespace softfold {
inline namespace v0 {

/// Whether targets are class probabilities, not class indices.
constexpr bool has_probabilities(const LossProblem& p) {
  return p[LossSlot::targets].given && is_floating(p[LossSlot::targets].dtype);
}

}  // namespace v0
}  // namespace softfold
