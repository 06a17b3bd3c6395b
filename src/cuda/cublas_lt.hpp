// Matrix products by cuBLASLt, which is loaded when the first one is asked for: without it, and without a GPU, the
// library works all the same.
#pragma once

#include "cuda/launch.hpp"
#include "softfold/tensor.hpp"

#include <optional>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A matrix of `rows` vectors of `columns` elements side by side, `stride` elements from one to the next.
struct Matrix {
  void* data;
  DType dtype;
  std::int64_t rows, columns, stride;

  /// The rows from `begin` on.
  Matrix from(std::int64_t begin) const {
    const std::int64_t bytes = begin * stride * static_cast<std::int64_t>(size_of(dtype));
    return {static_cast<char*>(data) + bytes, dtype, rows - begin, columns, stride};
  }
};

/// How an operand stands in a product.
enum class Turn : int { none, transposed };

/// c = a b, or += with `add`; float32, or float64 for float64.
struct Product {
  Matrix a, b, c;
  Turn turn_a = Turn::none, turn_b = Turn::none;
  bool add = false;
};

/// How cuBLASLt computes a product: an element is always added in one go, in the order that the algorithm has.
struct Algorithm {
  std::uint64_t data[8] = {};
};

/// Null if cuBLASLt is there, else why not.
const char* refuses_products();

/// Whether there is a device to ask for algorithms of. Without one a plan says what it would run, and run() refuses.
bool has_device();

/// Bytes that a product may use while it runs.
inline constexpr std::size_t kProductRoom = std::size_t{32} << 20;

/// The first of cuBLASLt's own order for this product, and that it also has for `fewest` rows of a and c, if that is
/// not 0; nothing where there is none. It may be used for one with other numbers of rows and columns of c that takes()
/// is true of: an element's bits are those of the algorithm, the length of its sum and its operands alone. Of the
/// operands' memory it depends on whether rows begin at multiples of 16 bytes, which no data are taken to do.
std::optional<Algorithm> algorithm_for(const Product& product, std::int64_t fewest = 0);
/// Whether cuBLASLt computes this product by that algorithm.
bool takes(const Product& product, const Algorithm& algorithm);
void multiply(const Product& product, const Algorithm& algorithm, void* room, cudaStream_t stream);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
