// What a result of x's shape holds where no ragged row is.
#include "front/outside.hpp"
#include "cpu/operand_at.hpp"
#include "cpu/row.hpp"
#include "cpu/sink.hpp"

namespace softfold {
inline namespace v0 {

void cpu_fill_outside(const RowProblem& p) {
  const Operand& o = p[Slot::offsets];
  const auto offset = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(cpu::integer_at(o, o.data + i * o.strides[0]), 0, p.ragged_elements);
  };
  cpu::Row all{};
  all.y = p[Slot::y].data;
  all.n = p.ragged_elements;
  cpu::Sink sink(p, all);
  sink.fill(0, offset(0), outside_value(p.op));
  sink.fill(offset(p.rows), p.ragged_elements, outside_value(p.op));
}

}  // namespace v0
}  // namespace softfold
