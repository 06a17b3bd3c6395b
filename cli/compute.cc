#include "compute.hpp"

#include "interrupt.hpp"

#include <algorithm>
#include <deque>
#include <vector>

namespace softfold::cli {

Compute::Compute(const RunOptions& options) : workers_(options.threads) {
  if (parse_backend(options.backend) == DeviceKind::cuda) cuda_ = std::make_unique<CudaDevice>();
}

Plan Compute::plan(Op op, std::span<const View> inputs, std::span<const View> outputs,
                   const RowOptions& options) const {
  if (!cuda_) return softfold::plan(op, inputs, outputs, options, workers_.context());
  const auto there = [](std::span<const View> views) {
    std::vector<View> moved(views.begin(), views.end());
    for (View& v : moved) v.device = {DeviceKind::cuda, 0};
    return moved;
  };
  return softfold::plan(op, there(inputs), there(outputs), options);
}

void Compute::check_rows(Op op, const std::vector<RowsOf>& inputs, const std::vector<RowsOf>& outputs,
                         const OpOptions& options) const {
  std::deque<std::vector<std::int64_t>> shapes;  // which the views look at
  const auto of_no_rows = [&](const std::vector<RowsOf>& operands) {
    std::vector<View> views;
    for (const auto& [dtype, n] : operands) {
      std::vector<std::int64_t>& shape = shapes.emplace_back(1, 0);
      if (n) shape.push_back(*n);
      views.emplace_back(static_cast<void*>(nullptr), dtype, shape);
    }
    return views;
  };
  const std::vector<View> from = of_no_rows(inputs), to = of_no_rows(outputs);
  std::visit([&](const auto& o) { softfold::plan(op, from, to, o, workers_.context()); }, options);
}

std::string Compute::run(Op op, std::span<const View> inputs, std::span<const View> outputs,
                         const OpOptions& options) const {
  if (cuda_) return cuda_->run(op, inputs, outputs, options);
  UntilInterrupted executor(workers_.executor());
  return std::visit(
      [&](const auto& o) {
        const Plan work = softfold::plan(op, inputs, outputs, o, {.cpu = &executor});
        work.run();
        check_interrupt();
        return std::string(work.kernel());
      },
      options);
}

Room Compute::room(std::uint64_t allowed) const {
  // The rest is for workspaces, and for others on the device.
  return {cuda_ ? std::min(allowed, cuda_->free_bytes() / 4 * 3) : allowed, threads()};
}

}  // namespace softfold::cli
