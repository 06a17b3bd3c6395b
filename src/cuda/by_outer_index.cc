// Rows of several outer axes that are not one stride apart, where the kernels for rows that are would be faster: these,
// once for each index of all outer axes but the last.
#include "cuda/kernels.hpp"
#include "front/choice.hpp"
#include "softfold/error.hpp"

#include <algorithm>
#include <string>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured: so many bytes of x and y pass in ten times what a launch costs, which is 3 to 4 us.
constexpr std::int64_t kFewestBytes = 96 << 20;

/// The rows of one index of all outer axes but the last.
RowProblem rows_at(const RowProblem& p, std::int64_t index) {
  RowProblem q = p;
  const auto last = static_cast<std::size_t>(p.outer_rank - 1);
  q.outer_rank = 1;
  q.outer[0] = q.rows = p.outer[last];
  q.elements = p.elements / p.rows * q.rows;
  for (Operand& o : q.operands) {
    if (!o.given) continue;
    o.data += row_offset(o, p.outer, p.outer_rank - 1, index);
    o.strides[0] = o.strides[last];
  }
  return q;
}

const RowKernel* kernel_for(const RowProblem& q, const Context& context) {
  return first_able(q, cuda_row_kernels(q.op), context);
}

const char* refuses(const RowProblem& p, const Context& context) {
  if (p.outer_rank < 2 || p.rows == 0 || !p[Slot::x].given) return "rows are one stride apart";
  if (p.rung != Rung::automatic) return "a rung is asked for";
  if (p[Slot::offsets].given) return "rows are ragged";
  const RowProblem q = rows_at(p, 0);
  const std::size_t moved = size_of(q[Slot::x].dtype) + (q[Slot::y].given ? size_of(q[Slot::y].dtype) : 0);
  if (q.rows * q.n * static_cast<std::int64_t>(moved) < kFewestBytes)
    return "rows of one outer index are too few for launches of their own";
  const RowKernel* kernel = kernel_for(q, context);
  if (kernel == nullptr) return "no kernel takes the rows of one outer index";
  if (kernel->run == few_elements_kernel.run) return "rows of one outer index are few";
  for (const RowKernel& k : cuda_row_kernels(p.op))
    if (k.run == kernel->run && k.refuses(p, context) == nullptr) return "the same kernel takes all rows at once";
  return nullptr;
}

/// visit(rows, kernel) for each index: which kernel takes them depends on where they begin. One does, unless it is left
/// out: the general kernels take rows by their number and length alone.
template <class Visit>
void for_each_index(const RowProblem& p, const Context& context, const Visit& visit) {
  const std::int64_t count = p.rows / p.outer[static_cast<std::size_t>(p.outer_rank - 1)];
  for (std::int64_t i = 0; i < count; ++i) {
    const RowProblem q = rows_at(p, i);
    const RowKernel* kernel = kernel_for(q, context);
    if (kernel == nullptr)
      throw Error(Code::unsupported, "rows of outer index " + std::to_string(i) + " by themselves", "a kernel that can",
                  "let SOFTFOLD_WITHOUT leave by_outer_index out, too");
    visit(q, *kernel);
  }
}

std::size_t workspace(const RowProblem& p, const Context& context) {
  std::size_t most = 0;
  for_each_index(p, context, [&](const RowProblem& q, const RowKernel& kernel) {
    if (kernel.workspace != nullptr) most = std::max(most, kernel.workspace(q, context));
  });
  return most;
}

void run(const RowProblem& p, const Context& context) {
  for_each_index(p, context, [&](const RowProblem& q, const RowKernel& kernel) { kernel.run(q, context); });
}

}  // namespace

const RowKernel by_outer_index_kernel{"by_outer_index", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
