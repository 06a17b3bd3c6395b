// Device views of a problem's rows, and tiles of elements between memory and registers.
#pragma once

#include "cuda/divisor.hpp"
#include "cuda/packed.cuh"
#include "front/problem.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where one row's operands lie, each at the row's first element, and what of it exists.
struct Row {
  const char* x;
  char* y;
  const char* mask;     ///< null if every element below `length` exists
  std::int64_t n;       ///< elements of x and y
  std::int64_t length;  ///< of which the first so many exist
  double scale;
  std::int64_t begin;  ///< ragged rows: the first element's place in x; else 0
};

__device__ __forceinline__ std::int64_t integer_at(DType t, const char* at) {
  return t == DType::int32 ? *reinterpret_cast<const std::int32_t*>(at) : *reinterpret_cast<const std::int64_t*>(at);
}

/// A scale, or a statistic, of float32 or float64.
__device__ __forceinline__ double real_at(DType t, const char* at) {
  return t == DType::float64 ? *reinterpret_cast<const double*>(at)
                             : static_cast<double>(*reinterpret_cast<const float*>(at));
}

/// Byte offsets of a row in its operands.
class RowPlace {
 public:
  __device__ __forceinline__ RowPlace(const RowProblem& p, std::int64_t row) : last_(row), rank_(p.outer_rank) {
    if (rank_ <= 1) return;
    // Mixed-radix digits of the row.
    std::int64_t rest = row;
#pragma unroll 1
    for (int d = rank_ - 1; d >= 0; --d) {
      const std::int64_t size = p.outer[static_cast<std::size_t>(d)];
      const std::int64_t next = quotient(rest, size);
      digits_[d] = rest - next * size;
      rest = next;
    }
    last_ = digits_[rank_ - 1];
  }
  __device__ __forceinline__ std::int64_t offset(const Operand& o) const {
    if (rank_ <= 1) return rank_ == 0 ? 0 : last_ * o.strides[0];
    std::int64_t at = 0;
#pragma unroll 1
    for (int d = 0; d < rank_; ++d) at += digits_[d] * o.strides[static_cast<std::size_t>(d)];
    return at;
  }
  /// The row's index along the last outer axis: its place in a causal score matrix.
  __device__ __forceinline__ std::int64_t last() const { return last_; }

 private:
  std::int64_t last_;
  int rank_;
  std::int64_t digits_[kMaxRank];
};

__device__ __forceinline__ std::int64_t clamp(std::int64_t a, std::int64_t high) { return a < 0 ? 0 : min(a, high); }

__device__ __forceinline__ Row row_at(const RowProblem& p, const RowPlace& place) {
  const Operand &x = p[Slot::x], &y = p[Slot::y], &mask = p[Slot::mask];
  Row r{x.data + place.offset(x), nullptr, nullptr, p.n, p.n, p.scale, 0};
  if (y.given) r.y = y.data + place.offset(y);
  if (mask.given) r.mask = mask.data + place.offset(mask);
  if (p[Slot::offsets].given) {
    const Operand& o = p[Slot::offsets];
    const char* at = o.data + place.offset(o);
    // A lying offset cannot be refused from here; it is clamped so that no memory outside x is touched.
    r.begin = clamp(integer_at(o.dtype, at), p.n);
    r.n = clamp(integer_at(o.dtype, at + o.strides[0]), p.n) - r.begin;
    if (r.n < 0) r.n = 0;
    r.length = r.n;
    r.x += r.begin * x.axis_stride;
    if (r.y != nullptr) r.y += r.begin * y.axis_stride;
    if (r.mask != nullptr) r.mask += r.begin * mask.axis_stride;
  }
  if (p[Slot::length].given)
    r.length = clamp(integer_at(p[Slot::length].dtype, p[Slot::length].data + place.offset(p[Slot::length])), r.n);
  if (p.causal)
    r.length = clamp(place.last() + 1 + p.n - p.outer[static_cast<std::size_t>(p.outer_rank - 1)], r.length);
  if (p[Slot::scales].given) {
    const char* at = p[Slot::scales].data + place.offset(p[Slot::scales]);
    r.scale *= real_at(p[Slot::scales].dtype, at);
  }
  return r;
}

/// Up to 32 * kLanes neighbouring elements of a row in the layout of lift::WarpFold, moved as aligned 16-byte vectors;
/// what does not fill a vector (the row's ends) is moved an element at a time.
template <class E, int kLanes, int kCount = lift::kPerLane>
struct Tile {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(E));
  static constexpr int kVectors = kCount / kWidth;
  static constexpr int kSlots = kCount * kLanes;

  int shift;  ///< elements between the last 16-byte boundary and the row's first element
  int lane;   ///< in the group

  __device__ __forceinline__ explicit Tile(const void* first)
      : shift(static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16 / sizeof(E))),
        lane(static_cast<int>(threadIdx.x) % kLanes) {}

  __device__ __forceinline__ int first_of(int j) const { return kWidth * (lane + kLanes * j) - shift; }
  /// The element in slot (j, k). A slot before the row's first element holds one from the tile's end.
  __device__ __forceinline__ int element(int j, int k) const {
    const int i = first_of(j) + k;
    return i < 0 ? i + kSlots : i;
  }
  /// A bit for each of kWidth aligned bytes that are not 0.
  static __device__ __forceinline__ unsigned mask_word(const char* at) {
    const auto bits = [](unsigned word) { return (__vcmpne4(word, 0U) & 0x08040201U) * 0x01010101U >> 24; };
    if constexpr (kWidth == 4) {
      return bits(*reinterpret_cast<const unsigned*>(at));
    } else {
      const uint2 words = *reinterpret_cast<const uint2*>(at);
      return bits(words.x) | bits(words.y) << 4;
    }
  }
  static __device__ __forceinline__ bool whole(int first, int n) { return first >= 0 && first + kWidth <= n; }

  /// The vectors of elements [0, n) of x; other slots hold `missing`.
  __device__ __forceinline__ void gather(uint4 (&raw)[kVectors], const char* x, int n, float missing) const {
    const E* e = reinterpret_cast<const E*>(x);
    if (shift == 0 && n == kSlots) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) raw[j] = reinterpret_cast<const uint4*>(e)[lane + kLanes * j];
      return;
    }
    if (n == kSlots) {
      // Only the group's first lane has a vector that is not whole, its first.
#pragma unroll
      for (int j = 1; j < kVectors; ++j) raw[j] = *reinterpret_cast<const uint4*>(e + first_of(j));
      if (lane != 0) {
        raw[0] = *reinterpret_cast<const uint4*>(e + first_of(0));
      } else {
        E part[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) part[k] = e[element(0, k)];
        raw[0] = Packed<E>::join(part);
      }
      return;
    }
    const E nothing = Packed<E>::narrow(missing);
    E none[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) none[k] = nothing;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      raw[j] = Packed<E>::join(none);
      if (whole(first_of(j), n)) raw[j] = *reinterpret_cast<const uint4*>(e + first_of(j));
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (whole(first_of(j), n) || first_of(j) >= n) continue;
      E part[kWidth];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const int i = element(j, k);
        part[k] = i < n ? e[i] : nothing;
      }
      raw[j] = Packed<E>::join(part);
    }
  }

  /// Elements [0, n) of x where the mask, if there is one, is not 0; other slots become lift::absent.
  __device__ __forceinline__ void load(float (&v)[kCount], const char* x, const char* mask, std::int64_t mask_stride,
                                       int n, const lift::Factor& factor) const {
    uint4 raw[kVectors];
    const float missing = lift::absent(factor.c);
    gather(raw, x, n, missing);
    const unsigned there = mask == nullptr ? 0U : present(mask, mask_stride, n);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
    if (!factor.plain) multiply(v, n, factor.times);
    if (mask != nullptr) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if ((there >> i & 1U) == 0) v[i] = missing;
    }
  }

  __device__ __forceinline__ void load(float (&v)[kCount], const char* x, int n, const lift::Factor& factor) const {
    load(v, x, nullptr, 0, n, factor);
  }

  /// Vectors to floats, times the factor where it is not plain; returns their extremes.
  __device__ __forceinline__ lift::Extremes unpack(float (&v)[kCount], const uint4 (&raw)[kVectors], int n,
                                                   const lift::Factor& factor) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
    if (factor.plain) return Packed<E>::extremes(raw);
    multiply(v, n, factor.times);
    return lift::extremes_of(v);
  }

  __device__ __forceinline__ void multiply(float (&v)[kCount], int n, float by) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        if (element(j, k) < n) v[j * kWidth + k] *= by;
    }
  }

  /// Which slots, from the lowest bit, hold one of the elements [0, n) whose mask byte is not 0; a null mask hides
  /// none.
  __device__ __forceinline__ unsigned present(const char* mask, std::int64_t stride, int n) const {
    static_assert(kCount == 32);
    if (mask == nullptr && n == kSlots) return 0xFFFFFFFFU;
    // A vector's mask bytes lie as its elements do: side by side, and in one aligned word or two.
    const bool words = mask != nullptr && stride == 1 &&
                       (reinterpret_cast<std::uintptr_t>(mask) - static_cast<unsigned>(shift)) % kWidth == 0;
    unsigned r = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      unsigned some = 0;
      if (whole(first_of(j), n) && (mask == nullptr || words)) {
        some = mask == nullptr ? (1U << kWidth) - 1U : mask_word(mask + first_of(j));
      } else {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const int i = element(j, k);
          if (i < n && (mask == nullptr || mask[i * stride] != 0)) some |= 1U << k;
        }
      }
      r |= some << (j * kWidth);
    }
    return r;
  }

  /// Elements [0, n) of y.
  __device__ __forceinline__ void store(char* y, int n, const float (&v)[kCount]) const {
    if (shift == 0 && n == kSlots) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j)
        reinterpret_cast<uint4*>(y)[lane + kLanes * j] = Packed<E>::pack(v + j * kWidth);
      return;
    }
    if (n == kSlots) {
      E* e = reinterpret_cast<E*>(y);
#pragma unroll
      for (int j = 1; j < kVectors; ++j) *reinterpret_cast<uint4*>(e + first_of(j)) = Packed<E>::pack(v + j * kWidth);
      if (lane != 0) {
        *reinterpret_cast<uint4*>(e + first_of(0)) = Packed<E>::pack(v);
      } else {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) e[element(0, k)] = Packed<E>::narrow(v[k]);
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) store_vector(y, n, j, v + j * kWidth);
  }
  /// The same where there may be a NaN among them, which Packed does not write.
  __device__ __forceinline__ void store_any(char* y, int n, const float (&v)[kCount]) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const int i = element(j, k);
        if (i < n) reinterpret_cast<E*>(y)[i] = fold::narrow<E>(v[j * kWidth + k]);
      }
    }
  }
  /// The one of the two that these values ask for.
  __device__ __forceinline__ void store_checked(char* y, int n, const float (&v)[kCount]) const {
    bool nan = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) nan |= fold::is_nan(v[i]);
    if (sizeof(E) == 2 && nan) return store_any(y, n, v);
    store(y, n, v);
  }
  __device__ __forceinline__ void store_vector(char* y, int n, int j, const float* v) const {
    E* e = reinterpret_cast<E*>(y);
    const int first = first_of(j);
    if (whole(first, n)) {
      *reinterpret_cast<uint4*>(e + first) = Packed<E>::pack(v);
      return;
    }
    if (first >= n) return;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const int i = element(j, k);
      if (i < n) e[i] = Packed<E>::narrow(v[k]);
    }
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
