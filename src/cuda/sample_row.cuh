// One row as sample sees it on the GPU: its elements, and what it is drawn with.
#pragma once

#include "cuda/generic.cuh"
#include "softfold/fold/sample.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A row's elements before (`raw`) and after bias and bitmask; what is not there is -inf.
struct SampleRow {
  static constexpr float kAll = -__builtin_inff();
  const SampleProblem& p;
  RowPlace place;
  Row row;

  __device__ __forceinline__ SampleRow(const SampleProblem& problem, std::int64_t index)
      : p(problem), place(problem, index), row(row_at(problem, place)) {}

  __device__ __forceinline__ float raw(std::int64_t i) const {
    if (!is_present(row, p[Slot::mask].axis_stride, i)) return kAll;
    return element_at<float>(p[Slot::x].dtype, row.x + i * p[Slot::x].axis_stride);
  }
  __device__ __forceinline__ float processed(std::int64_t i) const {
    float v = raw(i);
    const Operand &bias = p[SampleSlot::bias], &words = p[SampleSlot::bitmask];
    if (v == kAll && !is_present(row, p[Slot::mask].axis_stride, i)) return v;
    if (bias.given) {
      const float b = element_at<float>(bias.dtype, bias.data + place.offset(bias) + i * bias.axis_stride);
      v = b == kAll ? kAll : fold::Scalar<float>::add(v, b);
    }
    if (words.given) {
      const char* at = words.data + place.offset(words) + i / 32 * words.axis_stride;
      if ((static_cast<std::uint32_t>(*reinterpret_cast<const std::int32_t*>(at)) >> (i % 32) & 1U) == 0) v = kAll;
    }
    return v;
  }
  __device__ __forceinline__ float at(std::int64_t i, bool of_raw) const { return of_raw ? raw(i) : processed(i); }

  __device__ __forceinline__ double real(SampleSlot slot, double otherwise) const {
    const Operand& o = p[slot];
    return o.given ? element_at<double>(o.dtype, o.data + place.offset(o)) : otherwise;
  }
  __device__ __forceinline__ std::int64_t integer(SampleSlot slot, std::int64_t otherwise) const {
    const Operand& o = p[slot];
    return o.given ? integer_at(o.dtype, o.data + place.offset(o)) : otherwise;
  }
  __device__ __forceinline__ void put_integer(SampleSlot slot, std::int64_t value) const {
    const Operand& o = p[slot];
    if (!o.given) return;
    char* to = o.data + place.offset(o);
    if (o.dtype == DType::int32) {
      *reinterpret_cast<std::int32_t*>(to) = static_cast<std::int32_t>(value);
    } else {
      *reinterpret_cast<std::int64_t*>(to) = value;
    }
  }
};

/// What a row is drawn with.
struct Draw {
  double scale, temperature, top_p, min_p, uniform;
  std::int64_t top_k;

  __device__ __forceinline__ Draw(const SampleRow& r, std::int64_t index)
      : scale(r.row.scale),
        temperature(r.real(SampleSlot::temperatures, r.p.temperature)),
        top_p(r.real(SampleSlot::top_ps, r.p.top_p)),
        min_p(r.real(SampleSlot::min_ps, r.p.min_p)),
        top_k(r.integer(SampleSlot::top_ks, r.p.top_k)) {
    const std::int64_t id = r.integer(SampleSlot::row_ids, r.p[SampleSlot::seeds].given ? 0 : index);
    const auto word = [&](SampleSlot slot, std::uint64_t otherwise) {
      return static_cast<std::uint64_t>(r.integer(slot, static_cast<std::int64_t>(otherwise)));
    };
    uniform = fold::uniform(word(SampleSlot::seeds, r.p.seed), word(SampleSlot::offsets, r.p.offset),
                            static_cast<std::uint64_t>(id));
  }
  /// What the CPU refuses and a GPU cannot: such a row has nothing to draw from.
  __device__ __forceinline__ bool sound() const {
    const double most = fold::largest<double>();
    return scale > 0. && scale <= most && temperature >= 0. && temperature <= most && top_p >= 0. && top_p <= 1. &&
           min_p >= 0. && min_p <= 1. && top_k >= 0;
  }
  __device__ __forceinline__ bool filters() const { return top_k > 0 || top_p < 1. || min_p > 0.; }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
