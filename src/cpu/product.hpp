// Products of matrices that lie in memory in any way, in float or double. Each element of a result is the sum over k of
// its products in runs of kProductDepth: a function of its row, its column and nothing else, on every machine.
#pragma once

#include "cpu/chunk_ops.hpp"
#include "cpu/parallel.hpp"
#include "cpu/product_ops.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// Element (i, k) lies `across` * i + `along` * k bytes behind data.
struct Factor {
  const char* data;
  DType dtype;
  std::int64_t across, along;
};

/// Memory for the time of a call: what is as large as logits are is not kept between calls.
template <class T>
class Room {
 public:
  explicit Room(std::int64_t count) : data_(static_cast<T*>(std::aligned_alloc(64, bytes_of(count)))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  T* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  static std::size_t bytes_of(std::int64_t count) {
    return (static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * sizeof(T) + 63) / 64 * 64;
  }
  std::unique_ptr<T, Free> data_;
};

/// Rows [first, first + count) of a factor at k in [from, from + depth), in panels of `width` rows: to[k * width + i]
/// of panel after panel, 0 for rows that are not there.
template <class T>
void pack(const Factor& f, std::int64_t first, std::int64_t count, std::int64_t from, int depth, int width, T* to) {
  with_dtype(f.dtype, [&]<class S>(S) {
    for (std::int64_t panel = 0; panel < count; panel += width, to += static_cast<std::ptrdiff_t>(width) * depth) {
      const int rows = static_cast<int>(std::min<std::int64_t>(width, count - panel));
      const char* at = f.data + (first + panel) * f.across + from * f.along;
      if (rows < width) std::fill_n(to, static_cast<std::ptrdiff_t>(width) * depth, T(0));
      const auto element = [&](std::int64_t i, std::int64_t k) {
        return static_cast<T>(fold::widen(*reinterpret_cast<const S*>(at + i * f.across + k * f.along)));
      };
      if (f.across == static_cast<std::int64_t>(sizeof(S))) {
        for (int k = 0; k < depth; ++k)
          for (int i = 0; i < rows; ++i)
            to[k * width + i] = static_cast<T>(fold::widen(reinterpret_cast<const S*>(at + k * f.along)[i]));
      } else {
        for (int i = 0; i < rows; ++i)
          for (int k = 0; k < depth; ++k) to[k * width + i] = element(i, k);
      }
    }
  });
}

/// c[i * stride + j] (+)= sum over k of a(i, k) b(j, k), i < m, j < n, k < depth.
template <class T>
class Product {
 public:
  Product(const Factor& a, const Factor& b, std::int64_t m, std::int64_t n, std::int64_t depth, T* c,
          std::int64_t stride, bool add)
      : a_(a), b_(b), m_(m), n_(n), depth_(depth), c_(c), stride_(stride), add_(add) {}

  void run(const Context& context) const {
    if (m_ == 0 || n_ == 0) return;
    Executor& executor = executor_of(context);
    const std::int64_t down = (m_ + kRows - 1) / kRows, width = block_width(down, executor.concurrency());
    const std::int64_t across = (n_ + width - 1) / width;
    parallel_for(executor, down * across, [&](std::int64_t task) {
      const std::int64_t i = task % down * kRows, j = task / down * width;
      block(i, std::min<std::int64_t>(kRows, m_ - i), j, std::min(width, n_ - j));
    });
  }

 private:
  /// Rows of a block: their panel of a run of k stays in the second cache.
  static constexpr std::int64_t kRows = 44 * kTileHeight, kColumns = 1024, kFewestColumns = 128;

  /// Columns of a block: fewer where that gives every thread something to do.
  std::int64_t block_width(std::int64_t down, int threads) const {
    std::int64_t width = kColumns;
    while (width > kFewestColumns && down * ((n_ + width - 1) / width) < 2 * threads) width /= 2;
    return width;
  }

  void block(std::int64_t i0, std::int64_t rows, std::int64_t j0, std::int64_t columns) const {
    const auto& ops = product_ops<T>();
    const auto round_up = [](std::int64_t n, int to) { return (n + to - 1) / to * to; };
    const Room<T> a(round_up(rows, kTileHeight) * kProductDepth), b(round_up(columns, ops.width) * kProductDepth);
    alignas(64) T edge[kTileHeight * kWidestTile];
    for (std::int64_t k = 0; k < depth_; k += kProductDepth) {
      const int depth = static_cast<int>(std::min<std::int64_t>(kProductDepth, depth_ - k));
      const bool add = add_ || k > 0;
      pack(a_, i0, rows, k, depth, kTileHeight, a.data());
      pack(b_, j0, columns, k, depth, ops.width, b.data());
      for (std::int64_t j = 0; j < columns; j += ops.width)
        for (std::int64_t i = 0; i < rows; i += kTileHeight) {
          T* c = c_ + (i0 + i) * stride_ + j0 + j;
          const T *pa = a.data() + i * depth, *pb = b.data() + j * depth;
          if (i + kTileHeight <= rows && j + ops.width <= columns) {
            ops.tile(pa, pb, depth, c, stride_, add);
            continue;
          }
          ops.tile(pa, pb, depth, edge, ops.width, false);
          for (std::int64_t r = 0; r < std::min<std::int64_t>(kTileHeight, rows - i); ++r)
            for (std::int64_t s = 0; s < std::min<std::int64_t>(ops.width, columns - j); ++s) {
              const T value = edge[r * ops.width + s];
              c[r * stride_ + s] = add ? fold::Scalar<T>::add(c[r * stride_ + s], value) : value;
            }
        }
    }
  }

  Factor a_, b_;
  std::int64_t m_, n_, depth_;
  T* c_;
  std::int64_t stride_;
  bool add_;
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
