// What a result of x's shape holds where no ragged row is.
#include "front/outside.hpp"
#include "cpu/row.hpp"
#include "cpu/sink.hpp"

namespace softfold {
inline namespace v0 {

void cpu_fill_outside(const RowProblem& p) {
  const Operand& o = p[Slot::offsets];
  const auto offset = [&](std::int64_t i) {
    const char* at = o.data + i * o.strides[0];
    const std::int64_t value = o.dtype == DType::int32 ? *reinterpret_cast<const std::int32_t*>(at)
                                                       : *reinterpret_cast<const std::int64_t*>(at);
    return std::clamp<std::int64_t>(value, 0, p.ragged_elements);
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
