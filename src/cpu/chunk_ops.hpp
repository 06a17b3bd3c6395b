// What a SIMD target offers: operations on contiguous runs of elements, for every way elements are stored. Schedules
// are written once against this table; the arithmetic under it is compiled once per target (chunk_ops-inl.hpp).
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

/// A row, or a run of whole chunks of one, that is to be reduced.
template <class T>
struct Ahead {
  const void* x;
  std::int64_t n;
  T c;
  T* terms;   ///< where the terms go, with room for kTermsRoom behind the last chunk's; those read behind may lie there
  bool keep;  ///< every chunk's terms have a place of their own
  lift::Reduced<T>* chunks;
};

/// A row, or a part of one, reduced already, that is to be written while something else is read.
template <class T>
struct Behind {
  enum Kind : std::uint8_t {
    nothing,
    terms,    ///< from: the terms, times `multiplier`
    row,      ///< from: the elements; y = their probabilities
    log_row,  ///< from: the elements; y = their log-probabilities
  };
  Kind kind = nothing;
  std::int64_t n = 0;
  const void* from = nullptr;
  void* y = nullptr;
  T multiplier = 0, c = 0;
  T least = 0;  ///< no term lies between 0 and this
  const fold::Normaliser<T>* normaliser = nullptr;
  const fold::LogNormaliser<T>* log_normaliser = nullptr;
};

/// Every run of elements has a finite c > 0 and lies contiguously; -inf is an element that is not there.
template <class T>
struct ChunkOps {
  using State = typename fold::LogSumExp<T>::State;
  using Normaliser = fold::Normaliser<T>;
  using LogNormaliser = fold::LogNormaliser<T>;
  /// Room that reduce needs behind `terms`, aligned to 64 bytes.
  static constexpr int kTermsRoom = lift::kChunk + 16;

  /// The state of x[0..n), 0 < n <= kChunk. `terms` is scratch, of kTermsRoom. `far`: x comes from memory.
  using Reduce = lift::Reduced<T> (*)(const void* x, int n, T c, T* terms, lift::Guess<T>& guess, bool far);
  /// Reduces what comes from memory, chunk by chunk, while what is behind it (as long and stored alike) goes there.
  using ReduceAndWrite = void (*)(const Ahead<T>& ahead, lift::Guess<T>& guess, const Behind<T>& behind);
  using WriteBehind = void (*)(const Behind<T>& behind);
  /// y = terms * multiplier. No term lies between 0 and `least`. `stream`: past the cache (y is not read soon).
  using WriteTerms = void (*)(const T* terms, std::int64_t n, T multiplier, T least, void* y, bool stream);
  /// Softmax of rows of n <= kChunk elements, x and y stored alike, `stride` bytes apart: how many rows were done. The
  /// next one, if any, is empty, holds +inf or NaN, or is outside the fast range.
  using SmallRows = std::int64_t (*)(const char* x, std::int64_t x_stride, char* y, std::int64_t y_stride,
                                     std::int64_t rows, int n, T c, T* terms, lift::Guess<T>& guess);
  /// y = the probabilities of x[0..n) in the row's frame. y may be x.
  using Write = void (*)(const void* x, std::int64_t n, T c, const Normaliser& row, void* y, bool stream);
  using WriteLog = void (*)(const void* x, std::int64_t n, const LogNormaliser& row, void* y, bool stream);

  /// Whether it can be seen at once that no element of x[0..n), n <= kChunk, lies above the frame m, or is NaN.
  using Covers = bool (*)(const void* x, int n, T c, double m);

  std::array<Reduce, 4> reduce;          ///< by x's dtype
  std::array<Reduce, 4> reduce_keeping;  ///< by x's dtype; leaves the terms in `terms`
  std::array<ReduceAndWrite, 4> reduce_and_write;
  std::array<WriteBehind, 4> write_behind;
  std::array<SmallRows, 4> small_rows;      ///< in the cache; `terms` has kTermsRoom
  std::array<SmallRows, 4> small_rows_far;  ///< from memory to memory
  std::array<Covers, 4> covers;
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
