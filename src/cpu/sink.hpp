// Where a row's results go: contiguous or strided, and the values that whole rows or their ends are filled with.
#pragma once

#include "cpu/row.hpp"

#include <cstring>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// y of one row. Results are written chunk by chunk: to begin(), at most kChunk of them, then end().
class Sink {
 public:
  Sink(const RowProblem& p, const Row& r)
      : y_(r.y),
        mask_(r.mask),
        mask_stride_(p[Slot::mask].axis_stride),
        stride_(p[Slot::y].axis_stride),
        dtype_(p[Slot::y].dtype),
        size_(static_cast<std::int64_t>(size_of(dtype_))),
        contiguous_(stride_ == size_ || r.n == 1) {}

  DType dtype() const { return dtype_; }
  bool contiguous() const { return contiguous_; }

  void* begin(std::int64_t at) { return contiguous_ ? y_ + at * size_ : buffer_; }
  void end(std::int64_t at, std::int64_t n) {
    if (contiguous_) return;
    for (std::int64_t i = 0; i < n; ++i)
      std::memcpy(y_ + (at + i) * stride_, buffer_ + i * size_, static_cast<std::size_t>(size_));
  }

  /// Elements [from, to) become `value`.
  void fill(std::int64_t from, std::int64_t to, double value) {
    with_dtype(dtype_, [&]<class S>(S) {
      const S v = fold::narrow<S>(value);
      if (contiguous_) return std::fill(reinterpret_cast<S*>(y_) + from, reinterpret_cast<S*>(y_) + to, v);
      for (std::int64_t i = from; i < to; ++i) std::memcpy(y_ + i * stride_, &v, sizeof v);
    });
  }
  /// The elements of [from, to) that the mask lets exist become `value`.
  void fill_present(std::int64_t from, std::int64_t to, double value) {
    if (mask_ == nullptr) return fill(from, to, value);
    for (std::int64_t i = from; i < to; ++i)
      if (mask_[i * mask_stride_] != 0) fill(i, i + 1, value);
  }

 private:
  char* y_;
  const char* mask_;
  std::int64_t mask_stride_, stride_;
  DType dtype_;
  std::int64_t size_;
  bool contiguous_;
  alignas(64) char buffer_[lift::kChunk * 8];
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
