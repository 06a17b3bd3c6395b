// What a SIMD target offers: operations on contiguous runs of elements, for every way elements are stored. Schedules
// are written once against this table; the arithmetic under it is compiled once per target (chunk_ops.cc).
#pragma once

#include "softfold/fold/float16.hpp"
#include "softfold/lift/chunks.hpp"
#include "softfold/lift/guess.hpp"
#include "softfold/tensor.hpp"

#include <array>
#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// Every run of elements has a finite c > 0 and lies contiguously; -inf is an element that is not there.
template <class T>
struct ChunkOps {
  using State = typename fold::LogSumExp<T>::State;
  using Normaliser = fold::Normaliser<T>;
  using LogNormaliser = fold::LogNormaliser<T>;
  /// Room that reduce needs behind `terms`, aligned to 64 bytes.
  static constexpr int kTermsRoom = lift::kChunk + 16;

  /// The state of x[0..n), 0 < n <= kChunk. `terms` is scratch, of kTermsRoom.
  using Reduce = lift::Reduced<T> (*)(const void* x, int n, T c, T* terms, lift::Guess<T>& guess);
  /// y = terms * multiplier. No term lies between 0 and `least`. `stream`: past the cache (y is not read soon).
  using WriteTerms = void (*)(const T* terms, std::int64_t n, T multiplier, T least, void* y, bool stream);
  /// Softmax of rows of n <= kChunk elements, x and y stored alike, `stride` bytes apart: how many rows were done. The
  /// next one, if any, is empty, holds +inf or NaN, or is outside the fast range.
  using SmallRows = std::int64_t (*)(const char* x, std::int64_t x_stride, char* y, std::int64_t y_stride,
                                     std::int64_t rows, int n, T c, T* terms, lift::Guess<T>& guess, bool stream);
  /// y = the probabilities of x[0..n) in the row's frame. y may be x.
  using Write = void (*)(const void* x, std::int64_t n, T c, const Normaliser& row, void* y, bool stream);
  using WriteLog = void (*)(const void* x, std::int64_t n, const LogNormaliser& row, void* y, bool stream);

  std::array<Reduce, 4> reduce;               ///< by x's dtype
  std::array<Reduce, 4> reduce_keeping;       ///< by x's dtype; leaves the terms in `terms`
  std::array<SmallRows, 4> small_rows;        ///< by x's dtype
  std::array<WriteTerms, 4> write_terms;      ///< by y's dtype
  std::array<std::array<Write, 4>, 4> write;  ///< by x's dtype and y's
  std::array<std::array<WriteLog, 4>, 4> write_log;
  LogNormaliser (*log_normaliser)(const State&, const fold::Scale<T>&);
  T (*finish)(const State&, const fold::Scale<T>&);
};

/// The table of the chosen target (targets.hpp).
template <class T>
const ChunkOps<T>& chunk_ops();

template <class S>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<S, double>) return DType::float64;
  if constexpr (std::is_same_v<S, fold::Float16>) return DType::float16;
  if constexpr (std::is_same_v<S, fold::BFloat16>) return DType::bfloat16;
  return DType::float32;
}
constexpr std::size_t index(DType t) { return static_cast<std::size_t>(t); }
static_assert(index(DType::float32) < 4 && index(DType::float64) < 4 && index(DType::float16) < 4 &&
              index(DType::bfloat16) < 4);

/// Calls f with a value of the type that a floating dtype is stored as.
template <class F>
decltype(auto) with_dtype(DType t, F&& f) {
  switch (t) {
    case DType::float64: return f(double{});
    case DType::float16: return f(fold::Float16{});
    case DType::bfloat16: return f(fold::BFloat16{});
    default: return f(float{});
  }
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
