// The operands of a cross-entropy, one by one: for the operation itself and for those that make their logits first.
#pragma once

#include "front/row_builder.hpp"

namespace softfold {
inline namespace v0 {
namespace loss_operands {

/// Refuses terms and a reduction that no loss has.
void check_terms(const CrossEntropyOptions& o);
/// What the operation and the rows' options say; no operand is given yet.
void begin(LossProblem& p, Op op, const RowOptions& o);
/// A loss, or what comes in for it: one a row, or one number.
void add_loss(RowBuilder& b, Operand& o, const char* name, const View& v, Reduction reduction);
void add_states(RowBuilder& b, const View& states);
/// loss, dloss, states and what the options of a forward pass give, where given; p.n and the rows stand.
void add_results(LossProblem& p, RowBuilder& b, const View& loss, const View& dloss, const View& states,
                 const CrossEntropyOptions& o, const char* weight_name);

}  // namespace loss_operands
}  // namespace v0
}  // namespace softfold
