// What the tests of the C ABI share.
#pragma once

#include "softfold/softfold.h"

#include <string>
#include <utility>
#include <vector>

namespace softfold_test {

/// A float32 tensor as a C caller has it.
struct CTensor {
  std::vector<float> data;
  std::vector<std::int64_t> shape, strides;
  softfold_tensor tensor;

  explicit CTensor(std::vector<std::int64_t> s) : shape(std::move(s)) {
    std::int64_t count = 1;
    for (const auto n : shape) count *= n;
    data.assign(static_cast<std::size_t>(count), 0.25F);
    tensor = {data.data(), {1, 0}, static_cast<std::int32_t>(shape.size()), {2, 32, 1}, shape.data(), nullptr, 0};
  }
};

inline std::string last() { return softfold_last_error(); }

}  // namespace softfold_test
