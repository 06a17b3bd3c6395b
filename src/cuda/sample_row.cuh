// One row as sample sees it on the GPU: its elements, and what it is drawn with.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/plain_chunk.cuh"
#include "softfold/fold/sample.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A row's elements before (`raw`) and after bias and bitmask; what is not there is -inf.
template <class Place>
struct SampleRowAt {
  static constexpr float kAll = -__builtin_inff();
  const SampleProblem& p;
  Place place;
  Row row;

  __device__ __forceinline__ SampleRowAt(const SampleProblem& problem, std::int64_t index)
      : p(problem), place(problem, index), row(row_at(problem, place)) {}

  __device__ __forceinline__ float raw(std::int64_t i) const {
    if (!is_present(row, p[Slot::mask].axis_stride, i)) return kAll;
    return element_at<float>(p[Slot::x].dtype, row.x + i * p[Slot::x].axis_stride);
  }
  __device__ __forceinline__ float processed(std::int64_t i) const {
    float v = raw(i);
    const Operand &bias = p[SampleSlot::bias], &words = p[SampleSlot::bitmask];
    if (v == kAll && !is_present(row, p[Slot::mask].axis_stride, i)) return v;
    if (bias.given)
      v = with_bias(v, element_at<float>(bias.dtype, bias.data + place.offset(bias) + i * bias.axis_stride));
    if (words.given &&
        !allowed(words.data + place.offset(words) + i / 32 * words.axis_stride, static_cast<int>(i % 32)))
      v = kAll;
    return v;
  }
  /// -inf forbids an element.
  static __device__ __forceinline__ float with_bias(float v, float bias) {
    return bias == kAll ? kAll : fold::Scalar<float>::add(v, bias);
  }
  static __device__ __forceinline__ bool allowed(const char* word, int bit) {
    return (static_cast<std::uint32_t>(*reinterpret_cast<const std::int32_t*>(word)) >> bit & 1U) != 0;
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
  __device__ __forceinline__ void write_integer(SampleSlot slot, std::int64_t value) const {
    const Operand& o = p[slot];
    if (o.given) put_integer(o.dtype, o.data + place.offset(o), value);
  }
};

using SampleRow = SampleRowAt<RowPlace>;

/// How a row is drawn from.
struct DrawOptions {
  double scale, temperature, top_p, min_p;
  std::int64_t top_k;

  /// What the CPU refuses and a GPU cannot: such a row has nothing to draw from.
  SOFTFOLD_HD bool sound() const {
    const double most = fold::largest<double>();
    return scale > 0. && scale <= most && temperature >= 0. && temperature <= most && top_p >= 0. && top_p <= 1. &&
           min_p >= 0. && min_p <= 1. && top_k >= 0;
  }
  /// Of the logits. A temperature whose inverse is beyond float32 is as good as 0.
  SOFTFOLD_HD fold::Scale<float> scaled() const {
    return fold::make_scale<float>(temperature > 0. ? scale / temperature : 1.);
  }
  SOFTFOLD_HD bool greedy() const { return temperature == 0. || scaled().c == fold::infinity<float>(); }
  SOFTFOLD_HD bool filters() const { return top_k > 0 || top_p < 1. || min_p > 0.; }
};

/// And what it is drawn with.
struct Draw : DrawOptions {
  double uniform;

  __device__ __forceinline__ Draw(const DrawOptions& options, double uniform_)
      : DrawOptions(options), uniform(uniform_) {}
  template <class Place>
  __device__ __forceinline__ Draw(const SampleRowAt<Place>& r, std::int64_t index)
      : DrawOptions{r.row.scale, r.real(SampleSlot::temperatures, r.p.temperature),
                    r.real(SampleSlot::top_ps, r.p.top_p), r.real(SampleSlot::min_ps, r.p.min_p),
                    r.integer(SampleSlot::top_ks, r.p.top_k)} {
    const std::int64_t id = r.integer(SampleSlot::row_ids, r.p[SampleSlot::seeds].given ? 0 : index);
    const auto word = [&](SampleSlot slot, std::uint64_t otherwise) {
      return static_cast<std::uint64_t>(r.integer(slot, static_cast<std::int64_t>(otherwise)));
    };
    uniform = fold::uniform(word(SampleSlot::seeds, r.p.seed), word(SampleSlot::offsets, r.p.offset),
                            static_cast<std::uint64_t>(id));
  }
};

struct Drawn {
  std::int64_t token;                   ///< -1: there is nothing to draw from
  fold::LogSumExp<float>::State state;  ///< of what was drawn from
};

/// The tree's levels above `nodes`, by `threads` threads of which this is `me`; the root.
template <class Sync>
__device__ __forceinline__ fold::LogSumExp<float>::State climb(fold::LogSumExp<float>::State* nodes,
                                                               std::int64_t chunks, int me, int threads,
                                                               const Sync& sync) {
  using Lse = fold::LogSumExp<float>;
  Lse::State* level = nodes;
#pragma unroll 1
  for (std::int64_t size = chunks; size > 1; size = (size + 1) / 2) {
    for (std::int64_t i = me; i < (size + 1) / 2; i += threads)
      level[size + i] = 2 * i + 1 < size ? Lse::merge(level[2 * i], level[2 * i + 1]) : level[2 * i];
    level += size;
    sync();
  }
  return chunks == 0 ? Lse::identity() : *level;
}

/// From the root of the tree in nodes to one of its leaves.
__device__ __forceinline__ std::int64_t leaf_of(const fold::LogSumExp<float>::State* nodes, std::int64_t chunks,
                                                fold::Descent& way, double row_m) {
  int top = 0;
  std::int64_t at = 0, size = chunks;
  for (; size > 1; ++top) at += size, size = (size + 1) / 2;
  std::int64_t leaf = 0;
#pragma unroll 1
  for (; top > 0; --top) {
    // The size of the level below: chunks, halved and rounded up top - 1 times.
    const std::int64_t below = (chunks + (std::int64_t{1} << (top - 1)) - 1) >> (top - 1);
    at -= below;
    leaf *= 2;
    if (leaf + 1 < below &&
        way.goes_right(fold::mass_of(nodes[at + leaf], row_m), fold::mass_of(nodes[at + leaf + 1], row_m)))
      ++leaf;
  }
  return leaf;
}

/// What brings sums in the frame of a chunk to the row's.
__device__ __forceinline__ double chunk_unit(double chunk_m, double row_m) {
  const auto exponent = static_cast<std::int64_t>(fmax(chunk_m - row_m, -1000.));
  return fold::bits_as<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// The way through a chunk. sums[s .. 2 s): the sums of its terms whose places agree modulo s.
__device__ __forceinline__ int place_of(const float* sums, double chunk_m, fold::Descent& way, double row_m) {
  const double unit = chunk_unit(chunk_m, row_m);
  int place = 0;
#pragma unroll 1
  for (int s = 1; s < lift::kChunk; s *= 2) {
    const double left = static_cast<double>(sums[2 * s + place]) * unit;
    const double right = static_cast<double>(sums[3 * s + place]) * unit;
    if (way.goes_right(left, right)) place += s;
  }
  return place;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
