// Checking every state of a problem before anything is written.
#include "cpu/row_states.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

void check_state(const RowProblem& p, const Row& r, std::int64_t index) {
  const StoredState& s = stored_state(r);
  const auto where = [&] { return " in the state of row " + std::to_string(index); };
  if (!is_sound(s)) refuse_unsound(s, where());
  if (!p[Slot::x].given) return;
  if (s.is_double() != p.is_double())
    throw Error(Code::state, "digits " + detail::shown(s.digits) + where(),
                p.is_double() ? "53, as x is float64" : "24, as x is folded in float32",
                "compute the states from x's own dtype");
  if (!s.has_scale(r.scale))
    throw Error(Code::state, "scale " + detail::shown(s.scale) + where(),
                "the scale asked for, " + detail::shown(r.scale), "use one scale for all shards of a row");
}

}  // namespace

void check_states(const RowProblem& p) {
  RowCursor cursor(p, 0);
  for (std::int64_t r = 0; r < p.rows; ++r, cursor.next()) check_state(p, cursor.row(), r);
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
