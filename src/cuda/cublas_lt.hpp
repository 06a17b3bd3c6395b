// Matrix products by cuBLASLt, which is loaded when the first one is asked for: without it, and without a GPU, the
// library works all the same.
#pragma once

#include "cuda/launch.hpp"
#include "softfold/tensor.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A matrix of `rows` vectors of `columns` elements side by side, `stride` elements from one to the next.
struct Matrix {
  void* data;
  DType dtype;
  std::int64_t rows, columns, stride;
};

/// How an operand stands in a product.
enum class Turn : int { none, transposed };

/// c = a b, or += with `add`; float32, or float64 for float64. `like`: the algorithm is the one for so many rows of c,
/// however many there are, and it adds every element's products in one go. What a row of c is, is then a function of
/// the row of a and of b alone.
struct Product {
  Matrix a, b, c;
  Turn turn_a = Turn::none, turn_b = Turn::none;
  std::int64_t like = 0;
  bool add = false;
};

/// Null if cuBLASLt is there, else why not.
const char* refuses_products();

/// Bytes that a product may use while it runs.
inline constexpr std::size_t kProductRoom = std::size_t{32} << 20;

void multiply(const Product& product, void* room, cudaStream_t stream);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
