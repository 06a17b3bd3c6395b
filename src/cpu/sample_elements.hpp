// What a row is drawn with, and what it is drawn from.
#pragma once

#include "cpu/chunk_ops.hpp"

#include <algorithm>
#include <limits>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// What a row is drawn with.
struct Draw {
  double scale, temperature, top_p, min_p;
  std::int64_t top_k;
  double uniform;

  bool filters() const { return top_k > 0 || top_p < 1 || min_p > 0; }
};

/// Elements side by side. What is not there is -inf.
struct Elements {
  const char* data;
  DType dtype;
  std::int64_t n;

  const void* at(std::int64_t i) const { return data + i * static_cast<std::int64_t>(size_of(dtype)); }
  float operator[](std::int64_t i) const {
    return with_dtype(dtype,
                      [&]<class S>(S) { return static_cast<float>(fold::widen(*static_cast<const S*>(at(i)))); });
  }
  /// Calls f(x, n, i) for pieces of at most `size` elements, the first of them element i.
  template <class F>
  void for_pieces(std::int64_t size, F&& f) const {
    for (std::int64_t i = 0; i < n; i += size) f(at(i), static_cast<int>(std::min(size, n - i)), i);
  }
  /// How many are at least x.
  std::int64_t count_from(float x) const {
    return with_dtype(dtype, [&]<class S>(S) {
      const S* e = reinterpret_cast<const S*>(data);
      return std::count_if(e, e + n, [x](S v) { return fold::widen(v) >= x; });
    });
  }
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
