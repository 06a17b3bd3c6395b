// What shards are folded and joined with: elements as they are folded, a chunk's state, the partials of a row.
#pragma once

#include "cuda/generic.cuh"
#include "front/shard_problem.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// How elements are folded, and as what they lie in partials: times this, with a finite c > 0; what does not exist is
/// -inf.
template <class T>
struct FoldedScale {
  T c, times;

  __device__ __forceinline__ explicit FoldedScale(double scale) : c(fold::make_scale<T>(scale).c), times(T(1)) {
    const T size = ::fabs(c);
    const bool finite = size < fold::infinity<T>();
    if (!finite || size == T(0)) times = finite ? T(0) : fold::canonical_nan<T>();
    if (finite && c < T(0)) times = T(-1);
    c = finite && size > T(0) ? size : T(1);
  }
};

/// The state of a chunk of such elements, of which each lane of the warp holds every 32nd. v is consumed.
__device__ __forceinline__ fold::LogSumExp<float>::State fold_chunk(float (&v)[lift::kPerLane], float c) {
  return lift::WarpFold<1>::terms(v, c).state;
}
__device__ __forceinline__ fold::LogSumExp<double>::State fold_chunk(double (&v)[lift::kPerLane], double c) {
  using Lse = fold::LogSumExp<double>;
  double most = -fold::infinity<double>();
  bool nan = false;
#pragma unroll
  for (int j = 0; j < lift::kPerLane; ++j) {
    nan |= fold::is_nan(v[j]);
    most = v[j] > most ? v[j] : most;
  }
#pragma unroll 1
  for (int distance = 16; distance > 0; distance /= 2) {
    const double other = shuffle(most, distance);
    most = other > most ? other : most;
  }
  if (__any_sync(lift::kWholeWarp, nan)) return Lse::not_a_number();
  if (most == fold::infinity<double>()) return Lse::plus_infinity();
  if (most == -fold::infinity<double>()) return Lse::identity();
  const auto frame = Lse::frame(most, c);
  // Turned by one place a step: the registers keep constant names without unrolling the body.
#pragma unroll 1
  for (int i = 0; i < lift::kPerLane; ++i) {
    double term = 0.;
    if (v[0] != -fold::infinity<double>())
      term = frame.fast ? fold::term<fold::Scalar<double>>(v[0], c, Lse::narrow(frame.m))
                        : fold::term_wide(v[0], c, frame.m);
#pragma unroll
    for (int j = 0; j + 1 < lift::kPerLane; ++j) v[j] = v[j + 1];
    v[lift::kPerLane - 1] = term;
  }
  return {frame.m, add_chunk(v)};
}

/// A row's elements as they are folded.
template <class T>
struct FoldedRow {
  const RowProblem& p;
  Row row;
  FoldedScale<T> scale;

  __device__ __forceinline__ FoldedRow(const RowProblem& problem, const Row& of)
      : p(problem), row(of), scale(of.scale) {}

  __device__ __forceinline__ bool exists(std::int64_t i) const { return is_present(row, p[Slot::mask].axis_stride, i); }
  __device__ __forceinline__ T element(std::int64_t i) const {
    if (!exists(i)) return -fold::infinity<T>();
    const Operand& x = p[Slot::x];
    return fold::Scalar<T>::mul(element_at<T>(x.dtype, row.x + i * x.axis_stride), scale.times);
  }
  /// The state of the chunk that begins there, by a warp; what lies behind the row does not exist.
  __device__ __forceinline__ typename fold::LogSumExp<T>::State chunk_state(std::int64_t begin) const {
    const std::int64_t first = begin + threadIdx.x % 32;
    T v[lift::kPerLane];
    if constexpr (sizeof(T) == 8) {
      load<double>(v, first);
    } else if (p[Slot::x].dtype == DType::bfloat16) {
      load<fold::BFloat16>(v, first);
    } else if (p[Slot::x].dtype == DType::float16) {
      load<fold::Float16>(v, first);
    } else {
      load<float>(v, first);
    }
    return fold_chunk(v, scale.c);
  }

 private:
  /// Every 32nd element from there, stored as E: all loads are on their way before the first is looked at.
  template <class E>
  __device__ __forceinline__ void load(T (&v)[lift::kPerLane], std::int64_t first) const {
    const std::int64_t step = 32 * p[Slot::x].axis_stride;
    const char* at = row.x + first * p[Slot::x].axis_stride;
    unsigned there = 0;
#pragma unroll
    for (int j = 0; j < lift::kPerLane; ++j) there |= exists(first + 32 * j) ? 1U << j : 0U;
#pragma unroll
    for (int j = 0; j < lift::kPerLane; ++j, at += step) {
      v[j] = -fold::infinity<T>();
      if ((there >> j & 1U) != 0) v[j] = static_cast<T>(fold::widen(*reinterpret_cast<const E*>(at)));
    }
    if (scale.times == T(1)) return;
#pragma unroll
    for (int j = 0; j < lift::kPerLane; ++j)
      if ((there >> j & 1U) != 0) v[j] = fold::Scalar<T>::mul(v[j], scale.times);
  }
};

/// The partials of a row, by a warp: all lanes call every function together, and get its result.
class GatheredRow {
 public:
  __device__ __forceinline__ GatheredRow(const RowProblem& p, const Gathered& gathered, std::int64_t row)
      : first_(gathered.first.data + RowPlace(p, row).offset(gathered.first)),
        like_(reinterpret_cast<const double*>(gathered.first.data)),
        parts_(gathered.parts),
        stride_(gathered.stride),
        width_(gathered.width),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ std::int64_t parts() const { return parts_; }
  __device__ __forceinline__ const double* part(std::int64_t i) const {
    return reinterpret_cast<const double*>(first_ + i * stride_);
  }
  /// What all of them say, where they are sound.
  __device__ __forceinline__ double scale() const { return part(0)[kScale]; }
  __device__ __forceinline__ std::int64_t size() const { return static_cast<std::int64_t>(part(0)[kSize]); }
  __device__ __forceinline__ std::int64_t best() const { return static_cast<std::int64_t>(part(0)[kBest]); }
  __device__ __forceinline__ bool has_targets() const { return part(0)[kHasTarget] == 1.; }
  __device__ __forceinline__ bool is_double() const { return part(0)[kDigits] == fold::Real<double>::kDigits; }

  /// Whether they are what fold_shard writes, agree, with the other rows' too, and lie end to end: together they have
  /// as many elements as the row, and none of them begins or ends inside another. A lane a part, as far as may be.
  __device__ __noinline__ bool are_sound() const {
    bool good = true;
    double elements = 0.;  // exact where no two parts have the same one
    for (std::int64_t i = lane_; i < parts_ && good; i += 32) {
      const double* p = part(i);
      good = fault_of(p, width_) == PartialFault::none && agrees(p) && has_sound_nodes(p) && lies_apart(i);
      elements += p[kLength];
    }
    if (!__all_sync(lift::kWholeWarp, good)) return false;
    for (std::int64_t i = 0; i < parts_; ++i)
      for (std::int64_t j = lane_; j < best(); j += 32) good = good && is_best(part(i), j);
    for (int distance = 16; distance > 0; distance /= 2) elements += shuffle(elements, distance);
    return __all_sync(lift::kWholeWarp, good) && elements == part(0)[kSize];
  }

  /// Whether all of them were folded with this target.
  __device__ bool have_target(std::int64_t target) const {
    bool same = true;
    for (std::int64_t i = lane_; i < parts_; i += 32)
      same = same && part(i)[kTargetIndex] == static_cast<double>(target);
    return __all_sync(lift::kWholeWarp, same);
  }

  /// The state of the row.
  template <class T>
  __device__ __noinline__ typename fold::LogSumExp<T>::State state() const {
    lift::TreeBuilder<fold::LogSumExp<T>> tree;
    for (std::int64_t begin = 0; begin < size();) {
      const PartialPieces pieces(part_of(begin));
      const lift::ShardLayout& l = pieces.layout;
      const std::int64_t divided = completed_by(l);
      if (divided >= 0) tree.push(divided_state<T>(divided));
      const double* node = pieces.nodes;
      l.for_nodes([&](std::int64_t, int level) {
        tree.push({node[0], static_cast<T>(node[1])}, level);
        node += 2;
      });
      begin = l.end;
    }
    return tree.root();
  }

  /// The chunk that cuts divide and whose last element a part has; -1: none.
  __device__ __forceinline__ std::int64_t completed_by(const lift::ShardLayout& l) const {
    const bool ends_one = l.begin < l.first && (l.first % lift::kChunk == 0 || l.first == size());
    return ends_one ? l.begin / lift::kChunk : -1;
  }
  /// Whether cuts divide a chunk.
  __device__ __forceinline__ bool is_divided(std::int64_t chunk) const {
    return lift::kChunk * chunk >= PartialPieces(part_of(lift::kChunk * chunk)).layout.last;
  }
  /// The elements of a chunk that cuts divide, of which each lane gets every 32nd.
  template <class T>
  __device__ __forceinline__ void load_divided(std::int64_t chunk, T (&v)[lift::kPerLane]) const {
    const std::int64_t begin = lift::kChunk * chunk, end = min(begin + lift::kChunk, size());
#pragma unroll
    for (int j = 0; j < lift::kPerLane; ++j) v[j] = -fold::infinity<T>();
    for (std::int64_t base = 0; base < parts_; base += 32) {
      const double* own = part(min(base + lane_, parts_ - 1));
      const bool has_some = base + lane_ < parts_ && own[kLength] > 0. && own[kOffset] < static_cast<double>(end) &&
                            own[kOffset] + own[kLength] > static_cast<double>(begin);
      for (unsigned here = __ballot_sync(lift::kWholeWarp, has_some); here != 0; here &= here - 1) {
        const PartialPieces pieces(part(base + __ffs(static_cast<int>(here)) - 1));
        const lift::ShardLayout& l = pieces.layout;
        const double* from = l.begin > begin ? pieces.head : pieces.tail;
        const std::int64_t first = max(l.begin, begin), last = min(l.end, end);
#pragma unroll
        for (int j = 0; j < lift::kPerLane; ++j) {
          const std::int64_t i = begin + lane_ + 32 * j;
          if (i >= first && i < last) v[j] = static_cast<T>(from[i - first]);
        }
      }
    }
  }
  template <class T>
  __device__ __noinline__ typename fold::LogSumExp<T>::State divided_state(std::int64_t chunk) const {
    T v[lift::kPerLane];
    load_divided(chunk, v);
    return fold_chunk(v, FoldedScale<T>(scale()).c);
  }

  /// The part that holds an element of the row.
  __device__ __forceinline__ const double* part_of(std::int64_t element) const {
    const auto place = static_cast<double>(element);
    for (std::int64_t base = 0; base < parts_; base += 32) {
      const double* p = part(min(base + lane_, parts_ - 1));
      const unsigned here = __ballot_sync(lift::kWholeWarp, p[kOffset] <= place && place < p[kOffset] + p[kLength]);
      if (here != 0) return part(min(base + __ffs(static_cast<int>(here)) - 1, parts_ - 1));
    }
    return nullptr;
  }

 private:
  __device__ __forceinline__ bool agrees(const double* p) const {
    const double scale = part(0)[kScale];
    return (p[kScale] == scale || (fold::is_nan(p[kScale]) && fold::is_nan(scale))) && p[kDigits] == like_[kDigits] &&
           p[kSize] == like_[kSize] && p[kBest] == like_[kBest] && p[kHasTarget] == like_[kHasTarget];
  }

  /// By one lane.
  static __device__ __forceinline__ bool has_sound_nodes(const double* p) {
    const PartialPieces pieces(p);
    const double* node = pieces.nodes;
    bool good = true;
    pieces.layout.for_nodes([&](std::int64_t, int level) {
      good = good && is_node(p, node, level);
      node += 2;
    });
    return good;
  }
  /// By one lane: whether a part lies inside no other, and none inside it.
  __device__ __forceinline__ bool lies_apart(std::int64_t i) const {
    const double begin = part(i)[kOffset], end = begin + part(i)[kLength];
    bool good = true;
    for (std::int64_t j = 0; j < parts_; ++j) {
      const double *p = part(j), other = p[kOffset];
      good = good && (j == i || begin >= other + p[kLength] || other >= end);
    }
    return good;
  }

  const char* first_;
  const double* like_;  ///< of the first row
  std::int64_t parts_, stride_, width_;
  int lane_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
