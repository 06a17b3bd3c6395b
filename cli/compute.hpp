// Where a verb's operations run: --backend and --threads. No bit of a result depends on it.
#pragma once

#include "arguments.hpp"
#include "blocks.hpp"
#include "cuda.hpp"

#include "softfold/plan.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace softfold::cli {

/// An operand that goes with rows: its dtype, and how many elements each row has there; none: one number a row.
struct RowsOf {
  DType dtype;
  std::optional<std::int64_t> n{};
};

class Compute {
 public:
  /// Throws Error: Code::option for a value that is not allowed, Code::unsupported or Code::device for a backend that
  /// is not there.
  explicit Compute(const RunOptions& options);

  /// The plan of an operation on operands in host memory. Of a GPU's it can be asked what it is; run() runs it.
  Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const RowOptions& options = {}) const;
  /// Refuses what run() would of such rows, before any work: also where there are none, and run() is never called.
  void check_rows(Op op, const std::vector<RowsOf>& inputs, const std::vector<RowsOf>& outputs,
                  const OpOptions& options) const;
  /// Runs it. A GPU's operands are copied there and the results back: contiguous ones, or rows one stride apart.
  /// Gives the kernel's name.
  std::string run(Op op, std::span<const View> inputs, std::span<const View> outputs,
                  const OpOptions& options = RowOptions()) const;

  /// "cpu" or "cuda".
  const char* backend() const { return cuda_ ? "cuda" : "cpu"; }
  /// Of the memory that may be used, what blocks may take: no more than a GPU has free.
  Room room(std::uint64_t allowed) const;
  /// The host's threads.
  Executor& executor() const { return workers_.executor(); }
  int threads() const { return workers_.threads(); }

 private:
  Workers workers_;
  std::unique_ptr<CudaDevice> cuda_;  ///< null: the CPU
};

}  // namespace softfold::cli
