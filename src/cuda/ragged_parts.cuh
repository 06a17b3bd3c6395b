// What a group of lanes holds of a row, most often a ragged one, with a mask, a scale of its own, or operands of
// several dtypes, strides and alignments: elements one at a time, as AnyElements has them. A part is a chunk, or a row
// that is shorter.
#pragma once

#include "cuda/any_elements.cuh"
#include "cuda/backward.cuh"
#include "cuda/ragged_any.cuh"
#include "cuda/ragged_long.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where a row's elements lie.
struct PartedRow : BackwardRow {
  std::int64_t index;

  /// Of rows of one length.
  __device__ __forceinline__ PartedRow(const RowProblem& p, std::int64_t row)
      : BackwardRow(p, RowPlace(p, row)), index(row) {}
  /// Of ragged ones.
  __device__ __forceinline__ PartedRow(const RowProblem& p, const RaggedRow& r)
      : BackwardRow({p[Slot::x].data, p[Slot::y].data, nullptr, r.n, r.n, p.scale, r.begin}, p[Slot::dy].data),
        index(r.index) {
    const Operand &dy_of = p[Slot::dy], &mask_of = p[Slot::mask], &scales = p[Slot::scales];
    x += begin * p[Slot::x].axis_stride;
    y += begin * p[Slot::y].axis_stride;
    dy += begin * dy_of.axis_stride;
    if (mask_of.given) mask = mask_of.data + begin * mask_of.axis_stride;
    if (scales.given) scale *= real_at(scales.dtype, scales.data + r.index * scales.strides[0]);
  }
};

/// AnyElements of rows that do not fill their lanes, whose operands are all on their way at a time.
template <int kLanes_, int kCount_>
struct RaggedElements : AnyElements<kLanes_, kCount_, 1> {
  using Base = AnyElements<kLanes_, kCount_, 1>;
  using Base::kCount, Base::kLanes, Base::lane;
  using Words = typename Base::Words;

  using Base::Base;

  /// on_each(j, place) of the lane's elements from `kFrom` to `kTo` that lie in front of n, by elements' common step.
  template <int kFrom = 0, int kTo = kCount, class Byte, class Visit>
  __device__ __forceinline__ void visit(Byte* first, std::int64_t step, int n, const Visit& on_each) const {
    const int rest = n - lane;
    Byte* at = first + (lane + kFrom * kLanes) * step;
    const auto all = [&](const auto& has) {
#pragma unroll
      for (int j = kFrom; j < kTo; ++j, at += kLanes * step)
        if (has(j)) on_each(j, at);
    };
    // Of longer rows most chunks are whole.
    if (kLanes == 32 && n == Base::kSlots) return all([](int) { return true; });
    all([&](int j) { return kLanes * j < rest; });
  }
  /// words[j] of those, which are of type Bits.
  template <class Bits, int kFrom = 0, int kTo = kCount, int kWords>
  __device__ __forceinline__ void fetch_bits(unsigned (&words)[kWords], const char* first, std::int64_t stride,
                                             int n) const {
    constexpr std::int64_t kSize = sizeof(Bits);
    const auto on_each = [&](int j, const char* at) { words[j - kFrom] = *reinterpret_cast<const Bits*>(at); };
#pragma unroll
    for (unsigned& word : words) word = 0U;
    stride == kSize ? visit<kFrom, kTo>(first, kSize, n, on_each) : visit<kFrom, kTo>(first, stride, n, on_each);
  }
  __device__ __forceinline__ void fetch(Words& words, const Operand& o, const char* first, int n) const {
    size_of(o.dtype) == 4 ? fetch_bits<unsigned>(words, first, o.axis_stride, n)
                          : fetch_bits<unsigned short>(words, first, o.axis_stride, n);
  }
  /// Which of some elements the mask shows.
  template <int kFrom, int kTo>
  __device__ __forceinline__ unsigned shown(const char* mask, std::int64_t stride, int n) const {
    unsigned bytes[kTo - kFrom], bits = 0;
    fetch_bits<unsigned char, kFrom, kTo>(bytes, mask, stride, n);
#pragma unroll
    for (int j = kTo; j-- > kFrom;) bits = __funnelshift_l(0U - bytes[j - kFrom], bits, 1);  // its sign
    return bits << kFrom;
  }
  /// Elements [begin, begin + n); and_fetch(): what else is to be on its way with them.
  template <class Fetch>
  __device__ __forceinline__ void load(const RowProblem& p, const Row& r, std::int64_t begin, int n,
                                       const Fetch& and_fetch) {
    fetch(this->raw, p[Slot::x], r.x + begin * p[Slot::x].axis_stride, n);
    and_fetch();
    if (r.mask == nullptr) {
      const int own = (n - lane + kLanes - 1) / kLanes;
      this->present.words[0] = own == 0 ? 0U : Base::kAll >> (kCount - own);
      return;
    }
    const std::int64_t stride = p[Slot::mask].axis_stride;
    const char* mask = r.mask + begin * stride;
    // In two halves: more bytes on their way have no registers.
    constexpr int kHalf = kCount == 32 ? 16 : kCount;
    unsigned& bits = this->present.words[0];
    bits = shown<0, kHalf>(mask, stride, n);
    if constexpr (kHalf < kCount) bits += shown<kHalf, kCount>(mask, stride, n);
  }

  template <bool kNan = false>
  __device__ __forceinline__ void store(const RowProblem& p, const Row& r, std::int64_t begin, int n,
                                        const float (&v)[kCount]) const {
    const Operand& o = p[Slot::y];
    with_elements_of(o, [&]<class E, bool kSide>() {
      const std::int64_t step = kSide ? static_cast<std::int64_t>(sizeof(E)) : o.axis_stride;
      visit(r.y + begin * o.axis_stride, step, n, [&](int j, char* at) {
        *reinterpret_cast<E*>(at) = kNan ? fold::narrow<E>(v[j]) : Packed<E>::narrow(v[j]);
      });
    });
  }
};

/// Of softmax and log_softmax, or of what leaves one result a row.
template <class Elements, RaggedLeaves kLeaves>
struct SoftmaxPart {
  using Real = float;
  using Lse = fold::LogSumExp<Real>;
  using State = Lse::State;
  static constexpr int kLanes = Elements::kLanes, kCount = Elements::kCount, kSlots = Elements::kSlots;
  static constexpr bool kOfRow = kLeaves == RaggedLeaves::row, kLog = kLeaves == RaggedLeaves::log_softmax;
  static constexpr int kThreads = 768;                     ///< that a processor has registers for
  static constexpr int kShortThreads = kLog ? 768 : 1024;  ///< the same of up to 16 slots a lane
  static constexpr int kBlockThreads = 384;                ///< of blocks that have a row, at most
  using Fold = lift::WarpFold<Elements::kWidth, kLanes, kCount>;

  Elements tile;
  fold::Scale<float> scale;
  lift::Factor factor;
  float v[kCount];
  typename Fold::Folded own;

  __device__ __forceinline__ SoftmaxPart(const RowProblem& p, const PartedRow& r)
      : tile(p, r.x, 0), scale(scale_of(p, r)), factor(scale.c) {}

  /// The n elements from `begin` on, and their state. By all lanes of a warp.
  __device__ __forceinline__ void load(const RowProblem& p, const PartedRow& r, std::int64_t begin, int n) {
    tile.load(p, r, begin, n, [] {});
    own = tile.template fold<Fold, kLog>(v, factor);
  }
  __device__ __forceinline__ State state() const { return own.state; }
  /// What was loaded becomes the results of a row of this state; kWhole: it is the whole row.
  template <bool kWhole>
  __device__ __forceinline__ void write(const RowProblem& p, const PartedRow& r, std::int64_t begin, int n,
                                        const State& row) {
    const fold::Normaliser<float> norm(row);
    if (!norm.regular) return fill(p, r, begin, n, n, row);
    float multiplier = 1.F;
    if (!kLog) multiplier = kWhole ? norm.reciprocal : norm.multiplier(own.state.m);
    finish<kLog>(v, own.dense, factor, fold::Scalar<float>::mul(multiplier, own.unit), row, scale);
    tile.store(p, r, begin, n, v);
  }
  /// The same of what was not: of n elements, of which the first `length` exist.
  __device__ __forceinline__ void rewrite(const RowProblem& p, const PartedRow& r, std::int64_t begin, int length,
                                          int n, const State& row) {
    const fold::Normaliser<float> norm(row);
    if (!norm.regular) return fill(p, r, begin, length, n, row);
    tile.load(p, r, begin, length, [] {});
    Elements::widen(v, tile.raw, tile.dtype);
    const float missing = lift::absent(factor.c), times = factor.plain ? 1.F : factor.times;
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = tile.present(i) ? v[i] * times : missing;
    const float unit = kLog ? 1.F : terms_in_frame(v, factor.c, row.m);
    finish<kLog>(v, false, factor, fold::Scalar<float>::mul(norm.reciprocal, unit), row, scale);
    tile.store(p, r, begin, n, v);
  }

  /// The root over count <= 256 nodes, by a warp.
  template <class Load>
  static __device__ __forceinline__ State merge(const Load& load, int count) {
    return lift::merge_states(load, count);
  }
  /// Over any number of nodes of RaggedListOf.
  static __device__ __forceinline__ State merge_groups(const State* states, std::int64_t count) {
    return state_of_groups(states, count);
  }

 private:
  /// One that all rows have is found once.
  static __device__ __forceinline__ fold::Scale<float> scale_of(const RowProblem& p, const PartedRow& r) {
    if (p[Slot::scales].given) return fold::make_scale<float>(r.scale);
    return fold::make_scale<float>(p.scale);
  }
  __device__ __forceinline__ void fill(const RowProblem& p, const PartedRow& r, std::int64_t begin, int length, int n,
                                       const State& row) const {
    tile.template fill<kLog>(p, r, begin, length, n, constant_of<kLog>(row, p.empty));
  }
};

/// Of the gradients of these.
template <class Elements, template <class> class Gradient>
struct GradientPart : GradientSlots<Gradient, Elements::kWidth, Elements::kLanes, Elements::kCount> {
  using State = GradientState<float>;
  static constexpr int kLanes = Elements::kLanes, kSlots = Elements::kSlots;
  static constexpr int kThreads = 512, kBlockThreads = 256, kShortThreads = 768;
  static constexpr bool kOfRow = false;

  Elements tile;
  State own;

  __device__ __forceinline__ GradientPart(const RowProblem& p, const PartedRow& r) : tile(p, r.x, 0) {}

  __device__ __forceinline__ void load(const RowProblem& p, const PartedRow& r, std::int64_t begin, int n) {
    fetch(p, r, begin, n);
    const lift::SumNode node = this->sum();
    own = {node.sum, __ballot_sync(lift::kWholeWarp, node.any != 0) & lift::lanes_of_group<kLanes>()};
  }
  __device__ __forceinline__ State state() const { return own; }
  template <bool>
  __device__ __forceinline__ void write(const RowProblem& p, const PartedRow& r, std::int64_t begin, int n,
                                        const State& row) {
    this->finish({row.sum, row.any}, static_cast<float>(r.scale));
    tile.template store<true>(p, r, begin, n, this->dy);
  }
  __device__ __forceinline__ void rewrite(const RowProblem& p, const PartedRow& r, std::int64_t begin, int length,
                                          int n, const State& row) {
    fetch(p, r, begin, length);
    write<true>(p, r, begin, n, row);
  }

  template <class Load>
  static __device__ __forceinline__ State merge(const Load& load, int count) {
    const lift::SumNode all = lift::sum_some(
        [&](int i) {
          const State s = load(i);
          return lift::SumNode{s.sum, s.any};
        },
        count);
    return {all.sum, all.any};
  }
  static __device__ __forceinline__ State merge_groups(const State* states, std::int64_t count) {
    return merge_by_lanes<GradientFold<float>>(states, count);
  }

 private:
  __device__ __forceinline__ void fetch(const RowProblem& p, const PartedRow& r, std::int64_t begin, int n) {
    const Operand& o = p[Slot::dy];
    typename Elements::Words raw_dy;
    tile.load(p, r, begin, n, [&] { tile.fetch(raw_dy, o, r.dy + begin * o.axis_stride, n); });
    Elements::widen(this->y, tile.raw, tile.dtype);
    Elements::widen(this->dy, raw_dy, o.dtype);
    this->present = tile.present.words[0];
    this->hide();
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
