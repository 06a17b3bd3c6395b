// merge_states, merge_attention and merge_blocks: parts' weights in double as fold/parts.hpp has them.
#include "cuda/generic.cuh"
#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"
#include "softfold/fold/parts.hpp"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxParts = MergeProblem::kMaxParts;

/// Where a row lies in each of several operands, its place along the outer axes found once. 64-bit divisions are slow:
/// none for the first axis, and 32-bit ones for rows below 2^32.
template <int kOperands>
struct RowOffsets {
  std::int64_t at[kOperands] = {};

  __device__ RowOffsets(const MergeProblem& p, std::int64_t row, const Operand* const (&operands)[kOperands]) {
    for (int d = p.outer_rank - 1; d >= 0; --d) {
      const auto axis = static_cast<std::size_t>(d);
      std::int64_t place = row;
      if (d > 0) {
        const std::int64_t n = p.outer[axis];
        const bool small = ((row | n) >> 32) == 0;
        row = small ? static_cast<unsigned>(row) / static_cast<unsigned>(n) : row / n;
        place -= row * n;
      }
#pragma unroll
      for (int i = 0; i < kOperands; ++i) at[i] += place * operands[i]->strides[axis];
    }
  }
};
__device__ std::int64_t row_offset(const MergeProblem& p, const Operand& o, std::int64_t row) {
  return RowOffsets<1>(p, row, {&o}).at[0];
}

template <class T>
__device__ StoredState merged(const StoredState* parts, int count) {
  using Lse = fold::LogSumExp<T>;
  typename Lse::State states[kMaxParts];
  for (int i = 0; i < count; ++i) states[i] = given_state<T>(parts[i], parts[0].scale);
  const auto s = lift::reduce_nodes<Lse>(states, count);
  return {s.m, fold::canonical(static_cast<double>(s.d)), parts[0].scale, static_cast<double>(fold::Real<T>::kDigits)};
}

__global__ void __launch_bounds__(kThreads) merge_states_rows(const __grid_constant__ MergeProblem p) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= p.rows) return;
  StoredState parts[kMaxParts];
  const std::int64_t at = row_offset(p, p.statistic.view, row);
  for (int i = 0; i < p.parts; ++i)
    parts[i] = *reinterpret_cast<const StoredState*>(p.statistic.data[static_cast<std::size_t>(i)] + at);
  char* to = p.out_statistic.data[0] + row_offset(p, p.out_statistic.view, row);
  *reinterpret_cast<StoredState*>(to) =
      parts[0].digits == fold::Real<double>::kDigits ? merged<double>(parts, p.parts) : merged<float>(parts, p.parts);
}

/// Statistics are float32 or float64.
__device__ double statistic_at(DType t, const char* at) {
  return t == DType::float64 ? *reinterpret_cast<const double*>(at)
                             : static_cast<double>(*reinterpret_cast<const float*>(at));
}

/// A row's parts as they are read, from memory each time.
struct PartsOfRow {
  const MergeProblem& p;
  std::int64_t at;  ///< in each part's statistics
  __device__ fold::PartSum operator[](int i) const {
    const DType t = p.statistic.view.dtype;
    const char* part = p.statistic.data[static_cast<std::size_t>(i)] + at;
    return {statistic_at(t, part), p.statistics == Statistics::lse ? 1. : statistic_at(t, part + size_of(t))};
  }
};

/// One number a part that lie `kRows` apart, in shared memory: side by side for the rows.
template <class T, int kRows>
struct Column {
  T* first;
  __device__ T& operator[](int i) const { return first[i * kRows]; }
};

/// What each part contributes to a row: shares, the live parts from the largest share down, and the joint statistic.
/// `share` and `live` have p.parts places.
template <class Share, class Live>
struct Shares {
  fold::PartSum joint;
  Share share;
  Live live;
  int count = 0;

  __device__ Shares(const MergeProblem& p, std::int64_t at, const Share& s, const Live& l) : share(s), live(l) {
    joint = fold::join_parts(PartsOfRow{p, at}, p.parts, p.base == LogBase::two, share);
    const double least = p.value.view.dtype == DType::float64 ? fold::Real<double>::kSmallest
                                                              : static_cast<double>(fold::Real<float>::kSmallest);
    for (int i = 0; i < p.parts; ++i) {
      const double mine = share[i];
      if (mine < least) share[i] = 0.;
      if (mine < least || mine == 0.) continue;
      int to = count++;
      for (; to > 0 && share[live[to - 1]] < mine; --to) live[to] = live[to - 1];
      live[to] = static_cast<unsigned char>(i);
    }
  }
};

__device__ void write_statistic(const MergeProblem& p, std::int64_t at, const fold::PartSum& joint) {
  const DType t = p.out_statistic.view.dtype;
  char* to = p.out_statistic.data[0] + at;
  const bool base_two = p.base == LogBase::two;
  if (p.statistics == Statistics::lse) return put(t, to, fold::log_of(joint, base_two));
  const fold::PartSum stored = t == DType::float64 ? joint : fold::for_float32(joint, base_two);
  put(t, to, stored.log);
  put(t, to + size_of(t), stored.sum);
}

/// Element i of the merged row: share_0 x_0, then an FMA for each further part.
template <class T, class RowShares>
__device__ T combine(const MergeProblem& p, const RowShares& s, std::int64_t at) {
  if (s.count == 0) return T(0);
  if (fold::is_nan(s.share[s.live[0]])) return fold::canonical_nan<T>();
  const auto value = [&](int k) {
    return element_at<T>(p.value.view.dtype, p.value.data[static_cast<std::size_t>(s.live[k])] + at);
  };
  T sum = fold::Scalar<T>::mul(value(0), static_cast<T>(s.share[s.live[0]]));
  for (int k = 1; k < s.count; ++k) sum = fold::Scalar<T>::fma(value(k), static_cast<T>(s.share[s.live[k]]), sum);
  return sum;
}

/// Element of one block, brought to the joint sum.
template <class T>
__device__ T rescale(const MergeProblem& p, double share, const char* at) {
  if (share == 0.) return T(0);
  if (fold::is_nan(share)) return fold::canonical_nan<T>();
  return fold::Normaliser<T>::probability(element_at<T>(p.value.view.dtype, at), static_cast<T>(share));
}

template <class T>
__global__ void __launch_bounds__(kThreads) merge_parts_rows(const __grid_constant__ MergeProblem p) {
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= p.rows) return;
  double share[kMaxParts];
  unsigned char live[kMaxParts];
  const Operand &in = p.value.view, &out = p.out_value.view;
  const auto [statistic, out_statistic, from, to] =
      RowOffsets<4>(p, row, {&p.statistic.view, &p.out_statistic.view, &in, &out}).at;
  const Shares<double*, unsigned char*> s(p, statistic, share, live);
  __syncwarp();  // the joint statistic may lie where a part's does
  if (lane == 0) write_statistic(p, out_statistic, s.joint);
  for (std::int64_t i = lane; i < p.n; i += 32) {
    const std::int64_t read = from + i * in.axis_stride, write = to + i * out.axis_stride;
    if (p.op == Op::merge_attention) {
      put(out.dtype, p.out_value.data[0] + write, combine<T>(p, s, read));
      continue;
    }
    for (int k = 0; k < p.parts; ++k) {
      const auto part = static_cast<std::size_t>(k);
      put(out.dtype, p.out_value.data[part] + write, rescale<T>(p, s.share[k], p.value.data[part] + read));
    }
  }
}

/// merge_attention of rows whose elements lie side by side, in vectors of 16 bytes: a warp takes 32 rows, a lane each
/// for their shares and then all lanes for their elements. The same arithmetic as merge_parts_rows, so the same bits.
/// What the lanes know of each other's rows lies in shared memory: arrays of a thread's own, indexed by a run-time
/// part, would be local memory, and its traffic a sixth of the whole.
template <class E>
struct VectorRows {
  static constexpr int kNaN = -1, kEach = 16 / static_cast<int>(sizeof(E));
  std::int64_t from[kThreads], to[kThreads];
  int count[kThreads];  ///< live parts; kNaN: the row is NaN
  // and then, for each part: double share[kThreads], float weight[kThreads] and unsigned char live[kThreads], the last
  // two in the order of live parts

  static __host__ __device__ constexpr int bytes(int parts) {
    return static_cast<int>(sizeof(VectorRows)) +
           parts * kThreads * static_cast<int>(sizeof(double) + sizeof(float) + 1);
  }
  __device__ double* shares() { return reinterpret_cast<double*>(this + 1); }
  __device__ float* weights(int parts) { return reinterpret_cast<float*>(shares() + parts * kThreads); }
  __device__ unsigned char* live(int parts) {
    return reinterpret_cast<unsigned char*>(weights(parts) + parts * kThreads);
  }

  __device__ void make(const MergeProblem& p, std::int64_t row, int at) {
    const RowOffsets<4> offsets(p, row, {&p.value.view, &p.out_value.view, &p.statistic.view, &p.out_statistic.view});
    from[at] = offsets.at[0], to[at] = offsets.at[1];
    const Shares s(p, offsets.at[2], Column<double, kThreads>{shares() + at},
                   Column<unsigned char, kThreads>{live(p.parts) + at});
    write_statistic(p, offsets.at[3], s.joint);
    count[at] = s.count > 0 && fold::is_nan(s.share[s.live[0]]) ? kNaN : s.count;
    for (int k = 0; k < s.count; ++k) weights(p.parts)[k * kThreads + at] = static_cast<float>(s.share[s.live[k]]);
  }
};

/// Packs the elements; a NaN gets the bits that it has everywhere.
template <class E, int kEach>
__device__ uint4 pack_elements(const float (&x)[kEach]) {
  bool nan = false;
#pragma unroll
  for (const float e : x) nan |= fold::is_nan(e);
  if (!nan) return Packed<E>::pack(x);
  E narrow[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) narrow[i] = fold::narrow<E>(x[i]);
  return Packed<E>::join(narrow);
}

template <class E>
__global__ void __launch_bounds__(kThreads, 8)
    merge_attention_vectors(const __grid_constant__ MergeProblem p, int log_vectors) {
  using Rows = VectorRows<E>;
  constexpr int kEach = Rows::kEach, kAhead = 2;
  extern __shared__ __align__(16) char memory[];
  Rows& rows = *reinterpret_cast<Rows*>(memory);
  const int lane = static_cast<int>(threadIdx.x) % 32, mine = static_cast<int>(threadIdx.x) - lane;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + mine;
  if (first + lane < p.rows) rows.make(p, first + lane, mine + lane);
  __syncwarp();
  const float* weights = rows.weights(p.parts);
  const unsigned char* live = rows.live(p.parts);
  const int vectors = static_cast<int>(p.n) / kEach;
  const int total = static_cast<int>(min(max(p.rows - first, std::int64_t{0}), std::int64_t{32})) * vectors;
  for (int begin = lane; begin < total; begin += 32 * kAhead) {
    float sum[kAhead][kEach];
    int row[kAhead], at[kAhead], count[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int i = begin + 32 * u, r = i < total ? (log_vectors >= 0 ? i >> log_vectors : i / vectors) : 0;
      row[u] = mine + r, at[u] = 16 * (i - r * vectors), count[u] = i < total ? rows.count[row[u]] : 0;
#pragma unroll
      for (float& x : sum[u]) x = count[u] == Rows::kNaN ? fold::canonical_nan<float>() : 0.F;
    }
    // Two parts at a time: the second one's reads do not wait for the first one's.
    for (int k = 0; k < p.parts; k += 2) {
      uint4 raw[2][kAhead];
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          if (k + j >= count[u]) continue;
          const char* part = p.value.data[live[(k + j) * kThreads + row[u]]];
          raw[j][u] = __ldcs(reinterpret_cast<const uint4*>(part + rows.from[row[u]] + at[u]));
        }
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          if (k + j >= count[u]) continue;
          float x[kEach];
          Packed<E>::unpack(raw[j][u], x);
          const float weight = weights[(k + j) * kThreads + row[u]];
#pragma unroll
          for (int e = 0; e < kEach; ++e)
            sum[u][e] = k + j == 0 ? __fmul_rn(x[e], weight) : __fmaf_rn(x[e], weight, sum[u][e]);
        }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
      if (begin + 32 * u < total)
        *reinterpret_cast<uint4*>(p.out_value.data[0] + rows.to[row[u]] + at[u]) = pack_elements<E>(sum[u]);
  }
}

const char* vectors_refuse(const MergeProblem& p, const Context&) {
  if (p.op != Op::merge_attention) return "not merge_attention";
  const DType t = p.value.view.dtype;
  if (t == DType::float64 || p.out_value.view.dtype != t) return "float64, or out has another dtype than the parts";
  const auto size = static_cast<std::int64_t>(size_of(t));
  if (p.n * size % 16 != 0 || p.n >= 1 << 24) return "rows are not a multiple of 16 bytes, or 2^24 elements or longer";
  const auto refuses = [&](const MergeProblem::Operands& o, int count) {
    bool aligned = o.view.axis_stride == size;
    for (int i = 0; i < count; ++i)
      aligned &= reinterpret_cast<std::uintptr_t>(o.data[static_cast<std::size_t>(i)]) % 16 == 0;
    for (int i = 0; i < p.outer_rank; ++i) aligned &= o.view.strides[static_cast<std::size_t>(i)] % 16 == 0;
    return !aligned;
  };
  if (refuses(p.value, p.parts) || refuses(p.out_value, 1)) return "rows do not lie on 16 bytes";
  return nullptr;
}

void run_vectors(const MergeProblem& p, const Context& context) {
  const DeviceOf device(p.statistic.data[0]);
  const auto run = [&]<class E>(E) {
    const auto vectors = static_cast<unsigned>(p.n) / VectorRows<E>::kEach;
    const int log_vectors = std::has_single_bit(vectors) ? std::countr_zero(vectors) : -1;
    const Grid grid{(p.rows + kThreads - 1) / kThreads, kThreads, 1, VectorRows<E>::bytes(p.parts)};
    launch("merge_attention_vectors", merge_attention_vectors<E>, grid, stream_of(context), p, log_vectors);
  };
  switch (p.value.view.dtype) {
    case DType::bfloat16: return run(fold::BFloat16{});
    case DType::float16: return run(fold::Float16{});
    default: return run(0.F);
  }
}

const char* never_refuses(const MergeProblem&, const Context&) { return nullptr; }

/// A block's result may lie where that block does, but not where another does, which is read later.
const char* parts_refuse(const MergeProblem& p, const Context&) {
  if (p.op != Op::merge_blocks || p.rows * p.n == 0) return nullptr;
  for (int i = 0; i < p.parts; ++i)
    for (int j = 0; j < p.parts; ++j)
      if (i != j && p.out_value.data[static_cast<std::size_t>(i)] == p.value.data[static_cast<std::size_t>(j)])
        return "a block's result would overwrite another block";
  return nullptr;
}

void run_states(const MergeProblem& p, const Context& context) {
  const DeviceOf device(p.statistic.data[0]);
  launch("merge_states_rows", merge_states_rows, {(p.rows + kThreads - 1) / kThreads, kThreads}, stream_of(context), p);
}

void run_parts(const MergeProblem& p, const Context& context) {
  const DeviceOf device(p.statistic.data[0]);
  const Grid grid{(p.rows + kThreads / 32 - 1) / (kThreads / 32), kThreads};
  if (p.value.view.dtype == DType::float64) {
    launch("merge_parts_rows", merge_parts_rows<double>, grid, stream_of(context), p);
  } else {
    launch("merge_parts_rows", merge_parts_rows<float>, grid, stream_of(context), p);
  }
}

constexpr MergeKernel kStates[] = {{"merge_states_rows", never_refuses, run_states, nullptr}};
constexpr MergeKernel kParts[] = {{"merge_attention_vectors", vectors_refuse, run_vectors, nullptr},
                                  {"merge_parts_rows", parts_refuse, run_parts, nullptr}};

}  // namespace

std::span<const MergeKernel> merge_states_kernels() { return kStates; }
std::span<const MergeKernel> merge_parts_kernels() { return kParts; }

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
