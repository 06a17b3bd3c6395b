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
    const std::int64_t stride = p[Slot::x].axis_stride;
    unsigned there = 0;
#pragma unroll
    for (int j = 0; j < lift::kPerLane; ++j) there |= exists(first + 32 * j) ? 1U << j : 0U;
#pragma unroll
    for (int j = 0; j < lift::kPerLane; ++j) {
      v[j] = -fold::infinity<T>();
      if ((there >> j & 1U) != 0)
        v[j] = static_cast<T>(fold::widen(*reinterpret_cast<const E*>(row.x + (first + 32 * j) * stride)));
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

  /// Whether they are what fold_shard writes, agree, with the other rows' too, and lie end to end.
  __device__ __noinline__ bool are_sound() const {
    bool good = true;
    for (std::int64_t i = lane_; i < parts_; i += 32) {
      const double* p = part(i);
      good = good && fault_of(p, width_) == PartialFault::none && agrees(p);
    }
    if (!__all_sync(lift::kWholeWarp, good)) return false;
    for (std::int64_t i = 0; i < parts_; ++i) good = good && has_sound_numbers(part(i));
    return __all_sync(lift::kWholeWarp, good) && lie_end_to_end();
  }

  /// Whether all of them were folded with this target.
  __device__ bool have_target(std::int64_t target) const {
    bool same = true;
    for (std::int64_t i = lane_; i < parts_; i += 32)
      same = same && part(i)[kTargetIndex] == static_cast<double>(target);
    return __all_sync(lift::kWholeWarp, same);
  }

  /// The state of the chunks [first, last), which are a node of the tree and no part of a larger one in a partial.
  /// held: room for a chunk; has the elements of the last one that cuts divide.
  template <class T>
  __device__ __noinline__ typename fold::LogSumExp<T>::State state(std::int64_t first, std::int64_t last,
                                                                   T* held) const {
    using Lse = fold::LogSumExp<T>;
    const T c = FoldedScale<T>(scale()).c;
    const std::int64_t end = min(lift::kChunk * last, size());
    lift::TreeBuilder<Lse> tree;
    for (std::int64_t begin = lift::kChunk * first; begin < end;) {
      const PartialPieces pieces(part_of(begin));
      const lift::ShardLayout& l = pieces.layout;
      const bool has_head = l.begin >= lift::kChunk * first;
      if (has_head && takes_chunk(pieces.head, l.begin, l.first, held)) tree.push(held_state(held, l.first, c));
      const double* node = pieces.nodes;
      for (std::int64_t chunk = l.first / lift::kChunk; chunk < min(last, l.stop()); node += 2) {
        const int level = l.level_at(chunk);
        if (chunk >= first) tree.push({node[0], static_cast<T>(node[1])}, level);
        chunk += std::int64_t{1} << level;
      }
      if (l.last < end && takes_chunk(pieces.tail, l.last, l.end, held)) tree.push(held_state(held, l.end, c));
      begin = l.end;
    }
    return tree.root();
  }
  template <class T>
  __device__ __forceinline__ typename fold::LogSumExp<T>::State state(T* held) const {
    return state(0, lift::chunk_count(size()), held);
  }

  /// How the partials have a node of the tree: as one of theirs, or, of a chunk that cuts divide, its elements.
  enum class Held { not_as_one, as_node, as_elements };
  __device__ Held holds(std::int64_t chunk, int level) const {
    const lift::ShardLayout l = PartialPieces(part_of(lift::kChunk * chunk)).layout;
    if (lift::kChunk * chunk >= l.last) return level == 0 ? Held::as_elements : Held::not_as_one;
    std::int64_t node = l.first / lift::kChunk;
    while (node < chunk) node += std::int64_t{1} << l.level_at(node);
    return node == chunk && l.level_at(node) == level ? Held::as_node : Held::not_as_one;
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

  /// As far as this lane looks at them.
  __device__ __forceinline__ bool has_sound_numbers(const double* p) const {
    const PartialPieces pieces(p);
    const lift::ShardLayout& l = pieces.layout;
    bool good = true;
    const double* node = pieces.nodes;
    int turn = 0;
    for (std::int64_t chunk = l.first / lift::kChunk; chunk < l.stop(); node += 2, ++turn) {
      const int level = l.level_at(chunk);
      if (turn % 32 == lane_) good = good && is_node(p, node, level);
      chunk += std::int64_t{1} << level;
    }
    for (std::int64_t j = lane_; j < best(); j += 32) good = good && is_best(p, j);
    return good;
  }

  /// The parts that begin at an element: how many, how many of them have elements, and one of these.
  struct Here {
    std::int64_t count, full_count;
    const double* full;
  };
  __device__ Here at(std::int64_t begin) const {
    Here here{0, 0, nullptr};
    for (std::int64_t base = 0; base < parts_; base += 32) {
      const double* p = part(min(base + lane_, parts_ - 1));
      const bool begins = base + lane_ < parts_ && p[kOffset] == static_cast<double>(begin);
      const unsigned full = __ballot_sync(lift::kWholeWarp, begins && p[kLength] > 0);
      here.count += __popc(__ballot_sync(lift::kWholeWarp, begins));
      here.full_count += __popc(full);
      if (full != 0) here.full = part(base + __ffs(static_cast<int>(full)) - 1);
    }
    return here;
  }
  __device__ bool lie_end_to_end() const {
    const std::int64_t n = size();
    std::int64_t seen = 0, end = 0;
    for (;;) {
      const Here here = at(end);
      seen += here.count;
      if (here.full_count != (end < n ? 1 : 0)) return false;
      if (end == n) return seen == parts_;
      end += static_cast<std::int64_t>(here.full[kLength]);
    }
  }

  /// Takes the single elements [begin, end), at `from`, of one chunk; whether this chunk is then complete.
  template <class T>
  __device__ __forceinline__ bool takes_chunk(const double* from, std::int64_t begin, std::int64_t end, T* held) const {
    for (std::int64_t i = begin + lane_; i < end; i += 32) held[i % lift::kChunk] = static_cast<T>(from[i - begin]);
    return begin < end && (end % lift::kChunk == 0 || end == size());
  }
  /// The state of the chunk that ends there.
  template <class T>
  __device__ __forceinline__ typename fold::LogSumExp<T>::State held_state(const T* held, std::int64_t end, T c) const {
    const int n = static_cast<int>((end - 1) % lift::kChunk) + 1;
    T v[lift::kPerLane];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < lift::kPerLane; ++j) v[j] = lane_ + 32 * j < n ? held[lane_ + 32 * j] : -fold::infinity<T>();
    __syncwarp();
    return fold_chunk(v, c);
  }

  const char* first_;
  const double* like_;  ///< of the first row
  std::int64_t parts_, stride_, width_;
  int lane_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
