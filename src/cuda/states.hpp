// The rows' states as a step of another operation: by whichever kernel `state` itself would take.
#pragma once

#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Hands out parts of a workspace one after the other; without memory it only counts.
class Parts {
 public:
  explicit Parts(char* memory) : memory_(memory) {}

  template <class V>
  V* bytes_for(std::size_t bytes) {
    V* part = memory_ == nullptr ? nullptr : reinterpret_cast<V*>(memory_ + used_);
    used_ += (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    // Where memory is only counted, a part is still there.
    return memory_ == nullptr ? reinterpret_cast<V*>(std::uintptr_t{kWorkspaceAlignment}) : part;
  }
  template <class V>
  V* take(std::int64_t count) {
    return bytes_for<V>(static_cast<std::size_t>(count) * sizeof(V));
  }
  std::size_t used() const { return used_; }

 private:
  char* memory_;
  std::size_t used_ = 0;
};

/// Null if the states of p's rows can be folded, else why not.
const char* refuses_states(const RowProblem& p, const Context& context);

/// The states of a problem's rows: in its own operand where one is given, else in the workspace.
class RowStates {
 public:
  void lay_out(const RowProblem& p, Parts& parts, const Context& context);
  void run(const Context& context) const;
  /// Where they are then.
  const Operand& operand() const { return problem_[Slot::states]; }

 private:
  RowProblem problem_;
  const RowKernel* kernel_ = nullptr;
  Workspace workspace_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
