// What linear_cross_entropy does with a block of its logits, beside their loss: classes [first, first + classes) of all
// rows.
#pragma once

#include "cuda/cublas_lt.hpp"
#include "cuda/elements.hpp"
#include "cuda/in_order.cuh"
#include "cuda/levels.cuh"
#include "cuda/states.hpp"
#include "front/linear_problem.hpp"
#include "softfold/fold/softcap.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A block's share of a matrix of `rows` lines of n elements, `stride` apart: a run of one line.
struct Run {
  static constexpr int kThreads = 256, kEach = 8, kElements = kThreads * kEach;
  std::int64_t row;
  std::int64_t at, column;  ///< of the thread's first element; the next ones are kThreads further
  std::int64_t n;

  __device__ Run(std::int64_t n_, std::int64_t stride) : n(n_) {
    const std::int64_t across = (n + kElements - 1) / kElements;
    row = blockIdx.x / across;
    column = (blockIdx.x - row * across) * kElements + threadIdx.x;
    at = row * stride + column;
  }
  static std::int64_t blocks(std::int64_t rows, std::int64_t n) { return rows * ((n + kElements - 1) / kElements); }
  template <class F>
  __device__ void each(const F& f) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (column + i * kThreads < n) f(at + i * kThreads, column + i * kThreads);
  }
};

/// z = z + bias, then within the cap.
template <class E, class T = fold::FoldType<E>>
__global__ void __launch_bounds__(Run::kThreads)
    finish_logits(E* logits, std::int64_t n, std::int64_t stride, const Operand bias, T cap) {
  begin_in_order();
  Run(n, stride).each([&](std::int64_t at, std::int64_t column) {
    T z = fold::widen(logits[at]);
    if (bias.given) z = fold::Scalar<T>::add(z, element_at<T>(bias.dtype, bias.data + column * bias.axis_stride));
    if (cap > T(0)) z = fold::soft_capped(z, cap);
    logits[at] = fold::narrow<E>(z);
  });
}

/// Gradients of what the cap gave to gradients of what it took.
template <class E, class T = fold::FoldType<E>>
__global__ void __launch_bounds__(Run::kThreads)
    uncap(const E* logits, E* gradients, std::int64_t n, std::int64_t stride, T cap) {
  begin_in_order();
  Run(n, stride).each([&](std::int64_t at, std::int64_t) {
    gradients[at] =
        fold::narrow<E>(fold::soft_cap_gradient<T>(fold::widen(gradients[at]), fold::widen(logits[at]), cap));
  });
}

/// The sums of columns, a thread each, in the order of the rows.
template <class E>
__global__ void __launch_bounds__(256)
    sum_columns(const E* gradients, std::int64_t rows, std::int64_t n, std::int64_t stride, const Operand sums) {
  begin_in_order();
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= n) return;
  double sum = 0;
#pragma unroll 8
  for (std::int64_t r = 0; r < rows; ++r)
    sum = __dadd_rn(sum, static_cast<double>(fold::widen(gradients[r * stride + column])));
  put(sums.dtype, sums.data + column * sums.axis_stride, sum);
}

/// The algorithm of a product with a row for every row of x is one for so many of them that also takes a single one,
/// whatever the batch, and wherever its rows lie.
inline constexpr std::int64_t kLikeRows = 8192;

/// Whether vectors lie one after the other, as a matrix product takes them.
inline bool is_matrix(const Operand& o, std::int64_t rows, std::int64_t columns) {
  const auto size = static_cast<std::int64_t>(size_of(o.dtype));
  return (columns == 1 || o.axis_stride == size) &&
         (rows <= 1 || (o.strides[0] >= columns * size && o.strides[0] % size == 0));
}
/// Such vectors from the first one on.
inline Matrix matrix_of(const Operand& o, std::int64_t first, std::int64_t rows, std::int64_t columns) {
  if (!o.given) return {};  // the rest of an operand that is not given is not set
  const auto size = static_cast<std::int64_t>(size_of(o.dtype));
  return {first > 0 ? o.data + first * o.strides[0] : o.data, o.dtype, rows, columns,
          rows > 1 ? o.strides[0] / size : columns};
}

/// Whether a matrix with a row for every row of x lies as the algorithm of any batch takes it: rows that could begin at
/// multiples of 16 bytes do.
inline bool lies_well(const Operand& o, std::int64_t rows, std::int64_t columns) {
  if (columns * static_cast<std::int64_t>(size_of(o.dtype)) % 16 != 0) return true;
  return reinterpret_cast<std::uintptr_t>(o.data) % 16 == 0 && (rows <= 1 || o.strides[0] % 16 == 0);
}
/// Such a matrix for products: the operand, or room for its rows one after the other.
inline Matrix placed(Parts& parts, const Operand& o, std::int64_t rows, std::int64_t columns) {
  if (!o.given || lies_well(o, rows, columns)) return matrix_of(o, 0, rows, columns);
  const auto bytes = static_cast<std::size_t>(rows * columns) * size_of(o.dtype);
  return {parts.bytes_for<char>(bytes), o.dtype, rows, columns, columns};
}
/// From the one to the other, unless they are the same.
inline void copy_rows(const Matrix& from, const Matrix& to, Stream stream) {
  if (from.data == to.data || from.rows == 0) return;
  const std::size_t size = size_of(from.dtype);
  check(cudaMemcpy2DAsync(to.data, static_cast<std::size_t>(to.stride) * size, from.data,
                          static_cast<std::size_t>(from.stride) * size, static_cast<std::size_t>(from.columns) * size,
                          static_cast<std::size_t>(from.rows), cudaMemcpyDefault, stream),
        "rows that do not begin at multiples of 16 bytes");
}

/// What a plan that was made without a device finds out when it runs.
inline void require(const char* why) {
  if (why != nullptr)
    throw Error(Code::unsupported, why, "products that cuBLASLt has", "another layout of x and weight");
}

/// The algorithms of one call's products.
struct Algorithms {
  Algorithm logits, dx, dweight;
};

struct LogitsBlock {
  const LinearProblem& p;
  Matrix x;
  char *logits = nullptr,
       *gradients = nullptr;  ///< of x's dtype, a row every `stride` bytes; the same memory where there is no softcap
  std::int64_t first = 0, classes, stride = 0;
  char* room = nullptr;  ///< of products
  Stream stream;
  Algorithms with{};

  /// Bytes from row to row of so many logits: every row begins at a multiple of 128.
  static std::int64_t stride_of(const LinearProblem& p, std::int64_t classes) {
    return (classes * static_cast<std::int64_t>(size_of(p[Slot::x].dtype)) + 127) / 128 * 128;
  }

  Matrix weight() const { return matrix_of(p[LinearSlot::weight], first, classes, p.depth); }
  std::int64_t element() const { return static_cast<std::int64_t>(size_of(p[Slot::x].dtype)); }
  Matrix matrix(char* data) const { return {data, p[Slot::x].dtype, p.rows, classes, stride / element()}; }
  Operand operand(char* data) const { return {data, p[Slot::x].dtype, true, element(), {stride}}; }
  Operand of_class(LinearSlot slot) const {
    Operand o = p[slot];
    if (o.given) o.data += first * o.axis_stride;
    return o;
  }

  /// These classes' rows of dweight.
  Product dweight() const {
    return {matrix(gradients), x, matrix_of(p[LinearSlot::dweight], first, classes, p.depth), Turn::transposed,
            Turn::none};
  }
  /// dx, or what these classes add to it.
  Product dx(const Matrix& sums, bool add) const {
    return {matrix(gradients), weight(), sums, Turn::none, Turn::none, add};
  }

  /// This block's logits, but for their bias and cap.
  Product products() const { return {x, weight(), matrix(logits), Turn::none, Turn::transposed}; }

  /// Finds the algorithms of this block's logits, of its part in dx, of its rows of dweight. Null if there are some,
  /// else why not.
  const char* choose(const Matrix& sums) {
    if (p.rows == 0) return nullptr;
    Product z = products(), d = dx(sums, false);
    z.a = like(x, x.columns), z.c = like(z.c, z.c.stride);
    d.a = like(d.a, d.a.stride), d.c = like(sums, sums.columns);
    bool all = find(with.logits, algorithm_for(z, 1));
    if (p[LinearSlot::dx].given) all = all && find(with.dx, algorithm_for(d, 1));
    if (p[LinearSlot::dweight].given) all = all && find(with.dweight, algorithm_for(dweight()));
    return all ? nullptr : kNoAlgorithm;
  }
  /// Null if these products can be computed by the algorithms that were chosen, else why not.
  const char* refuses(const Matrix& sums) const {
    if (p.rows == 0) return nullptr;
    bool all = takes(products(), with.logits);
    if (p[LinearSlot::dx].given) all = all && takes(dx(sums, false), with.dx);
    if (p[LinearSlot::dweight].given) all = all && takes(dweight(), with.dweight);
    return all ? nullptr : kNoAlgorithm;
  }

  /// z = x weight^T + bias, within the cap: of the rows from `begin` on.
  void fill(std::int64_t begin = 0) const {
    const std::int64_t rows = p.rows - begin;
    if (rows == 0) return;
    Product z = products();
    for (Matrix* m : {&z.a, &z.c}) *m = m->from(begin);
    multiply(z, with.logits, room, stream);
    if (!p[LinearSlot::bias].given && p.softcap == 0) return;
    with_elements([&]<class E>() {
      launch("finish_logits", finish_logits<E>, {Run::blocks(rows, classes), Run::kThreads}, stream,
             reinterpret_cast<E*>(z.c.data), classes, stride / element(), of_class(LinearSlot::bias), p.softcap);
    });
  }
  /// The gradients of capped logits become those of z.
  void remove_cap() const {
    if (p.softcap == 0) return;
    with_elements([&]<class E>() {
      launch("uncap", uncap<E>, {Run::blocks(p.rows, classes), Run::kThreads}, stream, reinterpret_cast<E*>(logits),
             reinterpret_cast<E*>(gradients), classes, stride / element(), p.softcap);
    });
  }
  /// These classes' rows of dweight and dbias.
  void put_class_gradients() const {
    const Operand& o = p[LinearSlot::dweight];
    if (o.given && p.rows > 0) multiply(dweight(), with.dweight, room, stream);
    if (o.given && p.rows == 0) {
      const Matrix m = matrix_of(o, first, classes, p.depth);
      const std::size_t size = size_of(o.dtype);
      check(cudaMemset2DAsync(m.data, static_cast<std::size_t>(m.stride) * size, 0,
                              static_cast<std::size_t>(p.depth) * size, static_cast<std::size_t>(classes), stream),
            "dweight");
    }
    if (!p[LinearSlot::dbias].given) return;
    with_elements([&]<class E>() {
      launch("sum_columns", sum_columns<E>, {ceil_div(classes, 256), 256}, stream,
             reinterpret_cast<const E*>(gradients), p.rows, classes, stride / element(), of_class(LinearSlot::dbias));
    });
  }

  template <class F>
  void with_elements(F&& f) const {
    if (p.is_double()) return f.template operator()<double>();
    with_element(p[Slot::x].dtype, f);
  }

 private:
  static constexpr const char* kNoAlgorithm =
      "cuBLASLt has no algorithm for these products that adds an element in one go; rows of x and weight that begin at "
      "multiples of 16 bytes have one";
  static bool find(Algorithm& to, const std::optional<Algorithm>& found) {
    if (found) to = *found;
    return found.has_value();
  }
  /// What stands for a matrix with a row for every row of x when an algorithm is looked for.
  static Matrix like(const Matrix& m, std::int64_t stride) { return {nullptr, m.dtype, kLikeRows, m.columns, stride}; }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
