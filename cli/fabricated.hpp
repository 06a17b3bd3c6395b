// Operands for plans that are made and never run.
#pragma once

#include "softfold/options.hpp"

#include <memory>
#include <vector>

namespace softfold::cli {

/// Of attention: q (batch, heads, queries, d), k (batch, kv_heads, keys, d), v (..., dv).
struct AttentionSizes {
  std::int64_t batch, heads, kv_heads, queries, keys, d, dv;
};

/// The operands of an operation on x of a given shape, at addresses that are never read: a plan looks at shapes,
/// strides and overlap alone.
class Fabricated {
 public:
  /// The classes of linear_cross_entropy.
  static constexpr std::int64_t kClasses = 128256;

  /// Throws Error{Code::shape} for tensors beyond what addresses can count.
  Fabricated(Op op, const std::vector<std::int64_t>& shape, int axis, DType in, DType out, Device device);

  Fabricated(const AttentionSizes& sizes, DType in, DType out, Device device);

  std::span<const View> inputs() const { return inputs_; }
  std::span<const View> outputs() const { return outputs_; }

 private:
  View add(DType dtype, std::vector<std::int64_t> shape);

  Device device_;
  std::uint64_t next_ = 1 << 20;
  std::vector<std::unique_ptr<std::vector<std::int64_t>>> shapes_;
  std::vector<View> inputs_, outputs_;
};

}  // namespace softfold::cli
