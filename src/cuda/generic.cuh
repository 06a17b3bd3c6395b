// The row operations for whatever no faster kernel takes: any dtype, stride, axis, mask and length, by the scalar
// definition, a chunk a warp. Three steps with stream order between them: chunks to states, states to one a row (the
// canonical tree, 32 nodes a step), and the results from the row's state.
#pragma once

#include "cuda/operand_at.cuh"
#include "cuda/ragged_chunks.cuh"
#include "cuda/tree_nodes.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The probability of an element in a row whose state is regular; multiplier: of a term in its frame.
template <class T>
__device__ __forceinline__ T probability_of(T x, T c, double m, T multiplier) {
  using Lse = fold::LogSumExp<T>;
  const T term = Lse::is_fast(m)                    ? fold::term<fold::Scalar<T>>(x, c, Lse::narrow(m))
                 : ::fabs(x) == fold::infinity<T>() ? T(0)
                                                    : fold::term_wide(x, c, m);
  return fold::Normaliser<T>::probability(term, multiplier);
}

/// A row's scale as elements are multiplied by it (see lift::Factor), in either precision.
template <class T>
struct RowFactor {
  fold::Scale<T> scale;
  T c, times;

  __device__ explicit RowFactor(double value) : scale(fold::make_scale<T>(value)), c(scale.c), times(T(1)) {
    const bool finite = ::fabs(c) < fold::infinity<T>();
    if (finite && c != T(0)) return;
    times = finite ? T(0) : fold::canonical_nan<T>();
    c = T(1);
  }
  __device__ T operator()(T x) const { return times == T(1) ? x : fold::Scalar<T>::mul(x, times); }
};

/// What the warps of a launch take each.
struct GenericItems {
  std::int64_t count;
  bool across = false;                         ///< lanes have rows: see Share
  const std::int64_t* first_chunks = nullptr;  ///< see share_of()
};

/// Which elements of a row a lane handles: i = first + lane + 32 j, or with `across`, rows side by side and i = first +
/// j.
struct Share {
  std::int64_t row, first, step;
  int count;
};

/// The share of a warp that takes this item. Where rows, not their elements, lie side by side, lanes take rows.
/// first_chunks: of ragged rows, whose chunks are then the items, one row's behind another's; row p.rows if there is
/// none.
__device__ __forceinline__ Share share_of(const RowProblem& p, std::int64_t item, bool across,
                                          const std::int64_t* first_chunks = nullptr) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (first_chunks != nullptr) {
    const std::int64_t row = row_of_chunk(first_chunks, p.rows, item);
    return {row, (item - first_chunks[row]) * lift::kChunk + lane, 32, lift::kPerLane};
  }
  if (!across) {
    const std::int64_t chunks = (p.n + lift::kChunk - 1) / lift::kChunk;
    return {item / chunks, item % chunks * lift::kChunk + lane, 32, lift::kPerLane};
  }
  const std::int64_t segments = (p.n + 31) / 32;
  return {item / segments * 32 + lane, item % segments * 32, 1, 32};
}

/// The tree over a chunk in the layout of share_of: element lane + 32 j.
template <class T>
__device__ __forceinline__ T add_chunk(T (&v)[lift::kPerLane]) {
#pragma unroll
  for (int stride = lift::kPerLane / 2; stride > 0; stride /= 2) {
#pragma unroll
    for (int j = 0; j < lift::kPerLane; ++j)
      if (j < stride) v[j] = fold::Scalar<T>::add(v[j], v[j + stride]);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v[0] = fold::Scalar<T>::add(v[0], shuffle(v[0], distance));
  return v[0];
}

__device__ __forceinline__ bool is_present(const Row& r, std::int64_t mask_stride, std::int64_t i) {
  return i < r.length && (r.mask == nullptr || r.mask[i * mask_stride] != 0);
}

/// The state of a chunk: lift::reduce_chunk across a warp. x: whose row begins at r.x.
template <class T>
__device__ __forceinline__ typename fold::LogSumExp<T>::State chunk_state(const RowProblem& p, const Operand& x,
                                                                          const Row& r, const Share& share) {
  using Lse = fold::LogSumExp<T>;
  const RowFactor<T> factor(r.scale);
  T v[lift::kPerLane];
  unsigned present = 0;
  T extreme = T(0);
  bool any = false, nan = false, plus = false;
#pragma unroll
  for (int j = 0; j < lift::kPerLane; ++j) {
    const std::int64_t i = share.first + 32 * j;
    v[j] = T(0);
    if (!is_present(r, p[Slot::mask].axis_stride, i)) continue;
    v[j] = factor(element_at<T>(x.dtype, r.x + i * x.axis_stride));
    present |= 1U << j;
    if (fold::is_nan(v[j])) {
      nan = true;
    } else if (::fabs(v[j]) == fold::infinity<T>()) {
      plus |= (v[j] > T(0)) == (factor.c > T(0));
    } else if (!any || (factor.c < T(0) ? v[j] < extreme : v[j] > extreme)) {
      extreme = v[j];
      any = true;
    }
  }
#pragma unroll 1
  for (int distance = 16; distance > 0; distance /= 2) {
    const int other = shuffle(any ? 1 : 0, distance);
    const T far = shuffle(extreme, distance);
    if (other != 0 && (!any || (factor.c < T(0) ? far < extreme : far > extreme))) extreme = far;
    any = any || other != 0;
  }
  nan = __any_sync(lift::kWholeWarp, nan);
  plus = __any_sync(lift::kWholeWarp, plus);
  if (nan) return Lse::not_a_number();
  if (plus) return Lse::plus_infinity();
  if (!any) return Lse::identity();
  const auto frame = Lse::frame(extreme, factor.c);
#pragma unroll
  for (int j = 0; j < lift::kPerLane; ++j) {
    if ((present >> j & 1U) == 0) {
      v[j] = T(0);
    } else {
      v[j] = frame.fast ? fold::term<fold::Scalar<T>>(v[j], factor.c, Lse::narrow(frame.m))
                        : fold::term_wide(v[j], factor.c, frame.m);
    }
  }
  return {frame.m, add_chunk(v)};
}

template <class T>
__global__ void __launch_bounds__(128)
    fold_chunks(const __grid_constant__ RowProblem p, GenericItems items, typename fold::LogSumExp<T>::State* states) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items.count) return;
  const Share share = share_of(p, item, false, items.first_chunks);
  if (share.row >= p.rows) return;
  const Row r = row_at(p, RowPlace(p, share.row));
  const auto s = chunk_state<T>(p, p[Slot::x], r, share);
  if (threadIdx.x % 32 == 0) states[item] = s;
}

/// The sums of a backward pass. Gradient is fold::SoftmaxGradient or fold::LogSoftmaxGradient.
template <class T, template <class> class Gradient>
__global__ void __launch_bounds__(128)
    sum_chunks(const __grid_constant__ RowProblem p, GenericItems items, GradientState<T>* states) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items.count) return;
  const Share share = share_of(p, item, false, items.first_chunks);
  if (share.row >= p.rows) return;
  const RowPlace place(p, share.row);
  const Row r = row_at(p, place);
  const Operand &y = p[Slot::x], &dy = p[Slot::dy];
  const char* gradient = dy.data + place.offset(dy) + r.begin * dy.axis_stride;
  T v[lift::kPerLane];
  bool any = false;
#pragma unroll
  for (int j = 0; j < lift::kPerLane; ++j) {
    const std::int64_t i = share.first + 32 * j;
    v[j] = fold::Sum<T>::identity();
    if (!is_present(r, p[Slot::mask].axis_stride, i)) continue;
    const T value = element_at<T>(y.dtype, r.x + i * y.axis_stride);
    any |= !(value == Gradient<T>::nothing());
    v[j] = Gradient<T>::leaf(value, element_at<T>(dy.dtype, gradient + i * dy.axis_stride));
  }
  any = __any_sync(lift::kWholeWarp, any);
  const T sum = add_chunk(v);
  if (threadIdx.x % 32 == 0) states[item] = {sum, any ? 1U : 0U};
}

/// A state as it lies in memory.
struct StoredState {
  double m, d, scale, digits;
};

template <class T>
__device__ __forceinline__ StoredState stored_state(const typename fold::LogSumExp<T>::State& s, double scale) {
  return {s.m, fold::canonical(static_cast<double>(s.d)), scale, static_cast<double>(fold::Real<T>::kDigits)};
}

/// The state that a row is given. What no row can have, or another scale's, cannot be refused from here: it is NaN.
template <class T>
__device__ __forceinline__ typename fold::LogSumExp<T>::State given_state(const StoredState& s, double scale) {
  const bool same = s.scale == scale || (fold::is_nan(s.scale) && fold::is_nan(scale));
  const bool sound = s.digits == fold::Real<T>::kDigits && fold::LogSumExp<T>::is_state(s.m, s.d);
  if (!same || !sound) return fold::LogSumExp<T>::not_a_number();
  return {s.m, static_cast<T>(s.d)};
}

template <class T>
__device__ __forceinline__ typename fold::LogSumExp<T>::State row_state(
    const RowProblem& p, const RowPlace& place, const Row& r, std::int64_t row,
    const typename fold::LogSumExp<T>::State* states) {
  if (states != nullptr) return states[row];
  const Operand& given = p[Slot::states];
  return given_state<T>(*reinterpret_cast<const StoredState*>(given.data + place.offset(given)), r.scale);
}

/// state and logsumexp: one result a row.
template <class T>
__device__ __forceinline__ void write_row(const RowProblem& p, std::int64_t row,
                                          const typename fold::LogSumExp<T>::State& state) {
  const RowPlace place(p, row);
  const Row r = row_at(p, place);
  if (p.op == Op::state) {
    const Operand& o = p[Slot::states];
    *reinterpret_cast<StoredState*>(o.data + place.offset(o)) = stored_state<T>(state, r.scale);
    return;
  }
  const Operand& o = p[Slot::row];
  put(o.dtype, o.data + place.offset(o), fold::LogSumExp<T>{fold::make_scale<T>(r.scale)}.finish(state));
}

template <class T>
__global__ void __launch_bounds__(128)
    write_row_results(const __grid_constant__ RowProblem p, const typename fold::LogSumExp<T>::State* states) {
  begin_in_order();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row < p.rows) write_row<T>(p, row, states[row]);
}

/// What softmax and log_softmax write in a row of this state. given: by a caller; it may not cover every element.
template <class T, bool kLog>
class SoftmaxOf {
 public:
  using Lse = fold::LogSumExp<T>;
  __device__ __forceinline__ SoftmaxOf(const typename Lse::State& s, double scale, Empty empty, bool given)
      : state_(s), scale_(scale), empty_(empty), given_(given), factor_(scale), norm_(s), log_norm_(s, factor_.scale) {
    log_norm_.set_c(factor_.c);
    multiplier_ = norm_.regular ? norm_.multiplier(s.m) : T(0);
  }
  /// x: of an element that is present.
  __device__ __forceinline__ T operator()(bool present, T x) const {
    if (present) x = factor_(x);
    if (present && given_ && !Lse{{scale_, factor_.c}}.covers(state_, x)) return fold::canonical_nan<T>();
    if (norm_.empty && empty_ == Empty::nan) return fold::canonical_nan<T>();
    if (norm_.empty || !present) return kLog ? -fold::infinity<T>() : T(0);
    if (!norm_.regular) return fold::canonical_nan<T>();
    if constexpr (kLog) return log_norm_.log_probability(x);
    return probability_of(x, factor_.c, state_.m, multiplier_);
  }

 private:
  typename Lse::State state_;
  double scale_;
  Empty empty_;
  bool given_;
  RowFactor<T> factor_;
  fold::Normaliser<T> norm_;
  fold::LogNormaliser<T> log_norm_;
  T multiplier_;
};

/// What the gradient of logsumexp is in a row of this state.
template <class T>
class LseGradientOf {
 public:
  __device__ __forceinline__ LseGradientOf(const typename fold::LogSumExp<T>::State& s, double scale, T dlse)
      : factor_(scale), through_{fold::Normaliser<T>(s), factor_.c, dlse, static_cast<T>(scale)} {}
  __device__ __forceinline__ T operator()(bool present, T x) const {
    if (through_.row.empty || !present) return T(0);
    return through_.row.regular ? through_(factor_(x)) : fold::canonical_nan<T>();
  }

 private:
  RowFactor<T> factor_;
  fold::LogSumExpGradient<T> through_;
};

/// What is written of rows whose states are known.
enum class Given { softmax, log_softmax, gradient };
/// Calls f with what is written of an element of a row of this state. gradient: of logsumexp; given: as of SoftmaxOf.
template <Given kWhat, class F>
__device__ __forceinline__ void with_result_of(const fold::LogSumExp<float>::State& s, double scale, Empty empty,
                                               float gradient, bool given, const F& f) {
  if constexpr (kWhat == Given::gradient) {
    f(LseGradientOf<float>(s, scale, gradient));
  } else {
    f(SoftmaxOf<float, kWhat == Given::log_softmax>(s, scale, empty, given));
  }
}

/// A row's results in a share of it: of(present, x).
template <class T, class Of>
__device__ __forceinline__ void write_share(const RowProblem& p, const Row& r, const Share& share, const Of& of) {
#pragma unroll 1
  for (int j = 0; j < share.count; ++j) {
    const std::int64_t i = share.first + share.step * j;
    if (i >= r.n) break;
    const bool present = is_present(r, p[Slot::mask].axis_stride, i);
    const T x = present ? element_at<T>(p[Slot::x].dtype, r.x + i * p[Slot::x].axis_stride) : T(0);
    put(p[Slot::y].dtype, r.y + i * p[Slot::y].axis_stride, of(present, x));
  }
}

/// The results of softmax and log_softmax from the rows' states; no states: those that were given, which may not cover
/// every element.
template <class T, bool kLog>
__global__ void __launch_bounds__(128) write_softmax(const __grid_constant__ RowProblem p, GenericItems items,
                                                     const typename fold::LogSumExp<T>::State* states) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items.count) return;
  const Share share = share_of(p, item, items.across, items.first_chunks);
  if (share.row >= p.rows) return;
  const RowPlace place(p, share.row);
  const Row r = row_at(p, place);
  const auto s = row_state<T>(p, place, r, share.row, states);
  write_share<T>(p, r, share, SoftmaxOf<T, kLog>(s, r.scale, p.empty, states == nullptr));
}

/// The gradients of softmax and log_softmax.
template <class T, template <class> class Gradient>
__global__ void __launch_bounds__(128)
    write_gradient(const __grid_constant__ RowProblem p, GenericItems items, const GradientState<T>* states) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items.count) return;
  const Share share = share_of(p, item, items.across, items.first_chunks);
  if (share.row >= p.rows) return;
  const RowPlace place(p, share.row);
  const Row r = row_at(p, place);
  const Operand &y = p[Slot::x], &dy = p[Slot::dy], &dx = p[Slot::y];
  const char* gradient = dy.data + place.offset(dy) + r.begin * dy.axis_stride;
  const Gradient<T> through{states[share.row].sum, static_cast<T>(r.scale)};
  const bool any = states[share.row].any != 0;
#pragma unroll 1
  for (int j = 0; j < share.count; ++j) {
    const std::int64_t i = share.first + share.step * j;
    if (i >= r.n) break;
    T result = T(0);
    if (any && is_present(r, p[Slot::mask].axis_stride, i))
      result = through(element_at<T>(y.dtype, r.x + i * y.axis_stride),
                       element_at<T>(dy.dtype, gradient + i * dy.axis_stride));
    put(dx.dtype, r.y + i * dx.axis_stride, result);
  }
}

/// The gradient of logsumexp.
template <class T>
__global__ void __launch_bounds__(128) write_lse_gradient(const __grid_constant__ RowProblem p, GenericItems items) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items.count) return;
  const Share share = share_of(p, item, items.across, items.first_chunks);
  if (share.row >= p.rows) return;
  const RowPlace place(p, share.row);
  const Row r = row_at(p, place);
  const Operand& dlse = p[Slot::row];
  const T gradient = fold::narrow<T>(element_at<T>(dlse.dtype, dlse.data + place.offset(dlse)));
  const auto s = row_state<T>(p, place, r, share.row, nullptr);
  write_share<T>(p, r, share, LseGradientOf<T>(s, r.scale, gradient));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
