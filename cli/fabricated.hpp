// Operands for plans that are made and never run.
#pragma once

#include "softfold/options.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace softfold::cli {

/// The operands of an operation on x of a given shape, at addresses that are never read: a plan looks at shapes,
/// strides and overlap alone.
class Fabricated {
 public:
  /// The classes of linear_cross_entropy.
  static constexpr std::int64_t kClasses = 128256;

  /// How many topk takes where nobody says it, of rows that have any.
  static constexpr std::int64_t kBest = 1;

  /// `k`: of topk. Throws Error{Code::shape} for tensors beyond what addresses can count.
  Fabricated(Op op, const std::vector<std::int64_t>& shape, int axis, DType in, DType out, Device device,
             std::optional<std::int64_t> k = {});

  /// None yet.
  explicit Fabricated(Device device) : device_(device) {}

  /// One more tensor, of an address of its own.
  View add(DType dtype, std::vector<std::int64_t> shape);
  void add_input(DType dtype, std::vector<std::int64_t> shape) { inputs_.push_back(add(dtype, std::move(shape))); }
  void add_output(DType dtype, std::vector<std::int64_t> shape) { outputs_.push_back(add(dtype, std::move(shape))); }

  std::span<const View> inputs() const { return inputs_; }
  std::span<const View> outputs() const { return outputs_; }

 private:
  Device device_;
  std::uint64_t next_ = std::uint64_t{1} << 62;  ///< beyond what is in memory, which options may view
  std::vector<std::unique_ptr<std::vector<std::int64_t>>> shapes_;
  std::vector<View> inputs_, outputs_;
};

}  // namespace softfold::cli
