// Rows of a problem, one after another, and what a row's elements look like to the chunk operations.
#pragma once

#include "cpu/chunk_ops.hpp"
#include "front/problem.hpp"

#include <algorithm>
#include <cmath>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// Where one row's operands lie, each at the row's first element.
struct Row {
  const char* x;
  char* y;
  const char* mask;
  char* result;         ///< lse (or dlse, which is read)
  char* states;         ///< (m, d, scale, digits)
  std::int64_t n;       ///< elements of x and y
  std::int64_t length;  ///< of which the first so many exist
  double scale;
  const char* dy;
};

/// Walks the rows of a problem from `first` on.
class RowCursor {
 public:
  RowCursor(const RowProblem& p, std::int64_t first) : p_(p) {
    for (int d = p.outer_rank - 1; d >= 0; --d) {
      at_[axis(d)] = 0;
      if (first == 0) continue;  // and no division by a size of 0, where there is no row to stand on
      at_[axis(d)] = first % p.outer[axis(d)];
      first /= p.outer[axis(d)];
    }
    for (std::size_t s = 0; s < p.operands.size(); ++s) {
      base_[s] = nullptr;
      if (!p.operands[s].given) continue;
      base_[s] = p.operands[s].data;
      for (int d = 0; d < p.outer_rank; ++d) base_[s] += at_[axis(d)] * p.operands[s].strides[axis(d)];
      given_[given_count_++] = static_cast<std::uint8_t>(s);
    }
  }

  Row row() const {
    Row r{base(Slot::x), base(Slot::y), base(Slot::mask), base(Slot::row), base(Slot::states),
          p_.n,          p_.n,          p_.scale,         base(Slot::dy)};
    if (p_[Slot::offsets].given) {
      const auto& o = p_[Slot::offsets];
      // Checked when the plan was made; clamped, since they may have changed: no memory outside x is touched.
      const std::int64_t begin = std::clamp<std::int64_t>(integer(o.dtype, base(Slot::offsets)), 0, p_.ragged_elements);
      const std::int64_t end = integer(o.dtype, base(Slot::offsets) + o.strides[0]);
      r.n = r.length = std::clamp<std::int64_t>(end, begin, begin + std::min(p_.n, p_.ragged_elements - begin)) - begin;
      r.x += begin * p_[Slot::x].axis_stride;
      if (r.dy != nullptr) r.dy += begin * p_[Slot::dy].axis_stride;
      if (r.y != nullptr) r.y += begin * p_[Slot::y].axis_stride;
      if (r.mask != nullptr) r.mask += begin * p_[Slot::mask].axis_stride;
    }
    if (p_[Slot::length].given)
      r.length = std::clamp<std::int64_t>(integer(p_[Slot::length].dtype, base(Slot::length)), 0, r.n);
    if (p_.causal) {
      const auto last = axis(p_.outer_rank - 1);
      r.length = std::clamp<std::int64_t>(at_[last] + 1 + p_.n - p_.outer[last], 0, r.length);
    }
    if (p_[Slot::scales].given) {
      const char* at = base(Slot::scales);
      r.scale *= p_[Slot::scales].dtype == DType::float64 ? *reinterpret_cast<const double*>(at)
                                                          : static_cast<double>(*reinterpret_cast<const float*>(at));
    }
    return r;
  }

  void next() {
    for (int d = p_.outer_rank - 1; d >= 0; --d) {
      if (at_[axis(d)] + 1 < p_.outer[axis(d)]) return step(d, 1);
      step(d, -at_[axis(d)]);
    }
  }

  /// How many rows from here on lie stride() apart.
  std::int64_t even_rows() const {
    return p_.outer_rank == 0 ? 1 : p_.outer[axis(p_.outer_rank - 1)] - at_[axis(p_.outer_rank - 1)];
  }
  std::int64_t stride(Slot s) const { return p_.outer_rank == 0 ? 0 : p_[s].strides[axis(p_.outer_rank - 1)]; }

  /// next(), `rows` times, at most even_rows().
  void skip(std::int64_t rows) {
    if (rows == 0) return;
    if (p_.outer_rank > 0) step(p_.outer_rank - 1, rows - 1);
    next();
  }

 private:
  void step(int d, std::int64_t by) {
    at_[axis(d)] += by;
    for (std::size_t g = 0; g < given_count_; ++g) base_[given_[g]] += by * p_.operands[given_[g]].strides[axis(d)];
  }
  static std::size_t axis(int d) { return static_cast<std::size_t>(d); }
  char* base(Slot s) const { return base_[static_cast<std::size_t>(s)]; }
  static std::int64_t integer(DType t, const char* at) {
    return t == DType::int32 ? *reinterpret_cast<const std::int32_t*>(at) : *reinterpret_cast<const std::int64_t*>(at);
  }

  const RowProblem& p_;
  std::array<std::int64_t, kMaxRank> at_;
  std::array<char*, static_cast<std::size_t>(Slot::count)> base_;
  std::array<std::uint8_t, static_cast<std::size_t>(Slot::count)> given_;
  std::size_t given_count_ = 0;
};

/// The c that elements are folded with, once they are as below.
template <class T>
T folded_c(const fold::Scale<T>& scale) {
  const T c = std::fabs(scale.c);
  return c > T(0) && c < fold::infinity<T>() ? c : T(1);
}

/// A row's elements as the chunk operations want them: contiguous, with a finite c > 0, -inf for what is not there.
/// Where memory already looks like that they are read in place, else gathered chunk by chunk: negated for c < 0,
/// times 0 for c = 0 (an infinity then becomes the NaN that it should be), NaN for a scale that is not finite.
template <class T>
class Source {
 public:
  Source(const RowProblem& p, const Row& r, const fold::Scale<T>& scale)
      : x_(r.x),
        mask_(r.mask),
        stride_(p[Slot::x].axis_stride),
        mask_stride_(p[Slot::mask].axis_stride),
        stored_(p[Slot::x].dtype) {
    const auto size = static_cast<std::int64_t>(size_of(stored_));
    const bool regular = scale.c > T(0) && scale.c < fold::infinity<T>();
    in_place_ = regular && mask_ == nullptr && (stride_ == size || r.n == 1);
    size_ = size;
    dtype_ = in_place_ ? stored_ : dtype_of<T>();
    factor_ = regular ? T(1) : scale.c < T(0) ? T(-1) : scale.c == T(0) ? T(0) : fold::canonical_nan<T>();
    if (std::fabs(scale.c) == fold::infinity<T>()) factor_ = fold::canonical_nan<T>();
    c_ = folded_c(scale);
  }

  T c() const { return c_; }
  /// What at() points to.
  DType dtype() const { return dtype_; }
  /// Elements [begin, begin + n), n <= kChunk; `buffer` has room for kChunk.
  const void* at(std::int64_t begin, int n, T* buffer) const {
    if (in_place_) return x_ + begin * size_;
    gather(begin, n, buffer);
    return buffer;
  }

 private:
  void gather(std::int64_t begin, int n, T* to) const;

  const char* x_;
  const char* mask_;
  std::int64_t stride_, mask_stride_, size_;
  DType stored_, dtype_;
  bool in_place_;
  T factor_, c_;
};

template <class T>
void Source<T>::gather(std::int64_t begin, int n, T* to) const {
  const char* x = x_ + begin * stride_;
  with_dtype(stored_, [&]<class S>(S) {
    if constexpr (std::is_same_v<fold::FoldType<S>, T>) {
      for (int i = 0; i < n; ++i) to[i] = factor_ * fold::widen(*reinterpret_cast<const S*>(x + i * stride_));
    }
  });
  if (mask_ == nullptr) return;
  const char* mask = mask_ + begin * mask_stride_;
  for (int i = 0; i < n; ++i) to[i] = mask[i * mask_stride_] != 0 ? to[i] : -fold::infinity<T>();
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
