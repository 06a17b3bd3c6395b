// An array of any rank that owns its memory, in any layout, with bytes around and between its elements that must not
// change.
#pragma once

#include "support/tensor.hpp"

#include "softfold/fold/float16.hpp"
#include "softfold/tensor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace softfold_test {

using Shape = std::vector<std::int64_t>;

/// Calls f with a value of the type that dtype t stores.
template <class F>
decltype(auto) with_storage(DType t, F&& f) {
  switch (t) {
    case DType::float64: return f(double{});
    case DType::float16: return f(softfold::fold::Float16{});
    case DType::bfloat16: return f(softfold::fold::BFloat16{});
    case DType::int32: return f(std::int32_t{});
    case DType::int64: return f(std::int64_t{});
    case DType::boolean: return f(std::uint8_t{});
    default: return f(float{});
  }
}

inline std::int64_t count_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

class Array {
 public:
  static constexpr unsigned char kUntouched = 0xA5;

  Array() = default;
  Array(DType dtype, Shape shape, Layout layout = Layout::contiguous)
      : dtype_(dtype),
        shape_(std::move(shape)),
        strides_(shape_.size()),
        size_(size_of(dtype)),
        contiguous_(layout == Layout::contiguous) {
    lay_out(layout);
    std::int64_t low = 0, high = 1;
    for (std::size_t i = 0; i < shape_.size(); ++i)
      (strides_[i] < 0 ? low : high) += std::max<std::int64_t>(0, shape_[i] - 1) * strides_[i];
    origin_ = kGuard + static_cast<std::size_t>(-low) * size_;
    bytes_.assign(origin_ + static_cast<std::size_t>(high) * size_ + kGuard, kUntouched);
  }

  /// `width` numbers for each of `rows`, as states have: they lie side by side in every layout.
  static Array of_tuples(DType dtype, Shape rows, std::int64_t width, Layout layout) {
    rows.push_back(width);
    Array t(dtype, std::move(rows), layout_of_tuples(layout));
    t.tuples_ = true;
    return t;
  }
  static Array of_states(Shape rows, Layout layout) { return of_tuples(DType::float64, std::move(rows), 4, layout); }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  std::int64_t count() const { return count_of(shape_); }
  /// All memory, and where element (0, ..., 0) lies in it: what a device needs a copy of.
  std::vector<unsigned char>& bytes() { return bytes_; }
  const std::vector<unsigned char>& bytes() const { return bytes_; }
  std::size_t origin() const { return origin_; }

  View view(softfold::Device device = {}) { return view_at(bytes_.data(), device); }
  /// The same view over a copy of bytes() at `base`.
  View view_at(unsigned char* base, softfold::Device device = {}) const {
    return View(static_cast<void*>(base + origin_), dtype_, shape_, strides_, device);
  }

  /// The k-th element in the order of a contiguous tensor.
  template <class S>
  void set(std::int64_t k, S value) {
    std::memcpy(bytes_.data() + offset_of(k), &value, sizeof value);
  }
  template <class S>
  S get(std::int64_t k) const {
    S value;
    std::memcpy(&value, bytes_.data() + offset_of(k), sizeof value);
    return value;
  }
  /// Element k rounded from, or widened to, float64.
  void set_value(std::int64_t k, double value) {
    with_storage(dtype_, [&]<class S>(S) {
      if constexpr (std::is_integral_v<S>) {
        set(k, static_cast<S>(value));
      } else {
        set(k, softfold::fold::narrow<S>(value));
      }
    });
  }

  /// The elements in the order of a contiguous tensor, without what lies between them.
  std::vector<unsigned char> elements() const {
    std::vector<unsigned char> out(static_cast<std::size_t>(count()) * size_);
    for_each_run([&](std::size_t k, std::size_t at, std::size_t n) { std::memcpy(&out[k * size_], &bytes_[at], n); });
    return out;
  }
  void set_elements(const std::vector<unsigned char>& from) {
    for_each_run([&](std::size_t k, std::size_t at, std::size_t n) { std::memcpy(&bytes_[at], &from[k * size_], n); });
  }
  /// The same elements in another layout.
  Array relaid(Layout layout) const {
    Array t(dtype_, shape_, tuples_ ? layout_of_tuples(layout) : layout);
    t.tuples_ = tuples_;
    t.set_elements(elements());
    return t;
  }
  /// Whether every byte that is no element still is what it was.
  bool only_elements_written() const {
    Array blank = *this;
    for_each_run([&](std::size_t, std::size_t at, std::size_t n) { std::memset(&blank.bytes_[at], kUntouched, n); });
    return std::all_of(blank.bytes_.begin(), blank.bytes_.end(), [](unsigned char b) { return b == kUntouched; });
  }

 private:
  static constexpr std::size_t kGuard = 64;

  static Layout layout_of_tuples(Layout layout) { return layout == Layout::padded ? layout : Layout::contiguous; }

  void lay_out(Layout layout) {
    const auto rank = shape_.size();
    std::int64_t step = layout == Layout::every_second ? 2 : 1;
    for (std::size_t j = 0; j < rank; ++j) {
      const auto i = layout == Layout::transposed ? j : rank - 1 - j;
      strides_[i] = step;
      step *= std::max<std::int64_t>(1, shape_[i]);
      if (layout == Layout::padded) step += 3;
    }
    if (layout == Layout::reversed)
      for (auto& s : strides_) s = -s;
  }

  /// f(k, at, n): element k, in the order of a contiguous tensor, begins n bytes of elements side by side at byte `at`.
  /// Half of the matrix's time would go into finding every element's place by itself.
  template <class F>
  void for_each_run(F&& f) const {
    const auto elements = static_cast<std::size_t>(count());
    if (elements == 0) return;
    if (contiguous_) return f(std::size_t{0}, origin_, elements * size_);
    Shape index(shape_.size());
    std::int64_t at = 0;
    for (std::size_t k = 0; k < elements; ++k) {
      f(k, origin_ + static_cast<std::size_t>(at * static_cast<std::int64_t>(size_)), size_);
      for (std::size_t i = shape_.size(); i-- > 0;) {
        at += strides_[i];
        if (++index[i] < shape_[i]) break;
        at -= index[i] * strides_[i];
        index[i] = 0;
      }
    }
  }

  std::size_t offset_of(std::int64_t k) const {
    if (contiguous_) return origin_ + static_cast<std::size_t>(k) * size_;
    std::int64_t at = 0;
    for (std::size_t i = shape_.size(); i-- > 0;) {
      at += k % shape_[i] * strides_[i];
      k /= shape_[i];
    }
    return origin_ + static_cast<std::size_t>(at * static_cast<std::int64_t>(size_));
  }

  DType dtype_ = DType::float32;
  Shape shape_, strides_;
  std::size_t size_ = 4, origin_ = 0;
  bool contiguous_ = true, tuples_ = false;
  std::vector<unsigned char> bytes_;
};

}  // namespace softfold_test
