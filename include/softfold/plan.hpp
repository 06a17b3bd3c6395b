// The centre of the library: a plan checks everything, chooses a kernel, and can be run.
// Refusal, `explain`, workspace sizes, the C ABI and the one-shot calls of softfold.hpp all go through it.
#pragma once

#include "softfold/error.hpp"
#include "softfold/linear_options.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace softfold {
inline namespace v0 {

/// One operation on given tensors, checked and bound to a kernel. A plain value: making one allocates nothing. It keeps
/// no views, shapes or strides, but the memory that they describe, and what the context points to, the executor and the
/// Workspace itself: these must live until its last run().
class SOFTFOLD_API Plan {
 public:
  /// Runs it. May be called again, also from several threads when the outputs are not shared. Throws what only the data
  /// can tell, outputs untouched: states that no row has led to, or of another scale or precision (Code::state); and
  /// what the work lacks: memory (std::bad_alloc; on a device Code::out_of_memory), the device (Code::device).
  void run() const;
  /// The name of the kernel that will run.
  std::string_view kernel() const;
  /// Every kernel that could have run and did not, with the reason.
  std::vector<std::pair<std::string, std::string>> rejected() const;
  /// Bytes that run() needs in Context::workspace (0 on the CPU, which uses its own scratch).
  std::size_t workspace_bytes() const;

 private:
  friend class PlanAccess;
  Plan() {}  // leaves the storage as it is: a defaulted constructor would zero it
  alignas(16) std::byte storage_[2560];
};
static_assert(std::is_trivially_copyable_v<Plan>);

/// Checks and chooses; throws softfold::Error before any work if the operation cannot be done as asked.
/// The order of inputs and outputs is the one beside each value of Op.
SOFTFOLD_API Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs,
                       const RowOptions& options = {}, const Context& context = {});
SOFTFOLD_API Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const MergeOptions& options,
                       const Context& context = {});
SOFTFOLD_API Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs,
                       const CrossEntropyOptions& options, const Context& context = {});
SOFTFOLD_API Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs,
                       const EntropyOptions& options, const Context& context = {});
SOFTFOLD_API Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs,
                       const KlDivergenceOptions& options, const Context& context = {});
SOFTFOLD_API Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const TopkOptions& options,
                       const Context& context = {});
SOFTFOLD_API Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const SampleOptions& options,
                       const Context& context = {});
SOFTFOLD_API Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs,
                       const LinearCrossEntropyOptions& options, const Context& context = {});
SOFTFOLD_API Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs,
                       const AttentionOptions& options, const Context& context = {});

}  // namespace v0
}  // namespace softfold
