// The states that finish_* and logsumexp_backward are given, one a row.
#pragma once

#include "cpu/row.hpp"
#include "cpu/stored_state.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

inline const StoredState& stored_state(const Row& r) { return *reinterpret_cast<const StoredState*>(r.states); }

/// Refuses a problem with a state that no row can have, or one of another precision or scale than x is folded with.
void check_states(const RowProblem& p);

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
