// Attention for whatever no faster kernel takes: any dtype, head size, mask, bias and device. A block holds some rows
// of q and walks over the keys its rows see, 32 at a time: a lane is a key for the scores, and columns of v for the
// sum. Arithmetic is in float32 (float64 for float64 operands), by FMA.
#include "cuda/attention_sequence.cuh"
#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kKeys = 32;
constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;

/// kColumns of v a lane, kRows queries a warp: the registers allow one or the other to be large.
template <class T_, int kColumns_, int kRows_>
struct PortableTile {
  using T = T_;
  static constexpr int kColumns = kColumns_, kRows = kRows_, kBlockRows = kWarps * kRows_;
  /// An odd row stride, so that 32 lanes reading 32 rows meet in no bank.
  static __host__ __device__ int row_stride(const AttentionProblem& p) { return (p.d > p.dv ? p.d : p.dv) | 1; }
  static int shared_bytes(const AttentionProblem& p) {
    return static_cast<int>(sizeof(T)) * (kBlockRows * p.d + kKeys * row_stride(p));
  }
};

/// What a warp holds of its rows.
template <class C>
struct PortableRows {
  using T = typename C::T;
  T m[C::kRows], d[C::kRows], out[C::kRows][C::kColumns];  ///< every lane has the same m and d
  T term[C::kRows];                                        ///< this lane's key
};

/// `count` rows of `columns` to shared memory; rows from `exist` on are 0.
template <class T>
__device__ void load_rows(T* to, int stride, const AttentionTensor& from, std::int64_t offset, int count,
                          std::int64_t exist, int columns) {
  const auto size = static_cast<std::int64_t>(size_of(from.dtype));
  for (int i = static_cast<int>(threadIdx.x); i < count * columns; i += kThreads) {
    const int row = i / columns, column = i - row * columns;
    to[row * stride + column] =
        row < exist ? element_at<T>(from.dtype, from.data + (offset + row * from.token + column) * size) : T(0);
  }
}

/// A score in base 2: -inf where the key is hidden, NaN for one of +inf.
template <class T>
__device__ T score_of(const AttentionProblem& p, const AttentionSequence& s, std::int64_t b, std::int64_t h,
                      std::int64_t i, std::int64_t j, T product) {
  const T hidden = -fold::infinity<T>();
  if (j < first_key(p, s, i) || j >= last_key(p, s, i)) return hidden;
  const auto at = [&](const ScoreOperand& o) {
    return b * o.strides[0] + h * o.strides[1] + i * o.strides[2] + j * o.strides[3];
  };
  if (p.mask.given && p.mask.data[at(p.mask)] == 0) return hidden;
  T score = product * static_cast<T>(p.scale);
  if (p.softcap != 0.F) {
    const T cap = static_cast<T>(p.softcap);
    score = cap * ::tanh(score / cap);
  }
  if (p.slopes.given) {
    const T slope =
        static_cast<T>(reinterpret_cast<const float*>(p.slopes.data)[b * p.slopes.batch + h * p.slopes.stride]);
    score = fold::Scalar<T>::fma(-slope, static_cast<T>(::llabs(i + s.end - s.tq - j)), score);
  }
  if (p.bias.given) {
    const T bias =
        bias_at<T>(p.bias.dtype, p.bias.data + at(p.bias) * static_cast<std::int64_t>(size_of(p.bias.dtype)));
    if (bias == hidden) return hidden;
    score += bias;
  }
  if (fold::is_nan(score) || score == fold::infinity<T>()) return fold::canonical_nan<T>();
  return score * static_cast<T>(kLog2E);
}

template <class T>
__device__ T warp_max(T x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = ::fmax(x, __shfl_xor_sync(~0U, x, distance));
  return x;
}
template <class T>
__device__ T warp_sum(T x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0U, x, distance);
  return x;
}

/// The next 32 keys' scores to terms; brings the rows to the new shift.
template <class C>
__device__ void push_scores(PortableRows<C>& rows, int r, typename C::T score) {
  using T = typename C::T;
  const T m = ::fmax(rows.m[r], ::rint(warp_max(score)));
  const T shift = m == -fold::infinity<T>() ? T(0) : m;
  rows.term[r] = ::exp2(score - shift);
  const T factor = rows.m[r] == m ? T(1) : ::exp2(rows.m[r] - shift);
  rows.m[r] = m;
  rows.d[r] = fold::Scalar<T>::fma(rows.d[r], factor, warp_sum(rows.term[r]));
#pragma unroll
  for (int c = 0; c < C::kColumns; ++c) rows.out[r][c] *= factor;
}

/// Keys with a term of 0 are left out: what lies behind a mask may be anything.
template <class C>
__device__ void push_values(PortableRows<C>& rows, const typename C::T* v, int stride, int columns, int lane) {
  using T = typename C::T;
#pragma unroll 1
  for (int key = 0; key < kKeys; ++key) {
    T value[C::kColumns];
#pragma unroll
    for (int c = 0; c < C::kColumns; ++c) value[c] = lane + 32 * c < columns ? v[key * stride + lane + 32 * c] : T(0);
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      const T term = __shfl_sync(~0U, rows.term[r], key);
      if (term == T(0)) continue;
#pragma unroll
      for (int c = 0; c < C::kColumns; ++c) rows.out[r][c] = fold::Scalar<T>::fma(term, value[c], rows.out[r][c]);
    }
  }
}

/// One row's out, lse and state, the sink merged into it.
template <class C>
__device__ void finish_row(const AttentionProblem& p, const AttentionSequence& s, std::int64_t h, std::int64_t i,
                           PortableRows<C>& rows, int r, int lane) {
  using T = typename C::T;
  T m = rows.m[r], d = rows.d[r], factor = T(1);
  if (p.sink.given) {
    const auto joined = join_sink(p, h, m, d);
    m = joined.m, d = joined.d, factor = joined.factor;
  }
  const auto row_of = [&](const AttentionTensor& x) {
    return s.q_batch * x.batch + h * x.head + (s.q_begin + i) * x.token;
  };
  const T inverse = d == T(0) ? T(0) : factor / d;
  const auto size = static_cast<std::int64_t>(size_of(p.out.dtype)), at = row_of(p.out);
#pragma unroll
  for (int c = 0; c < C::kColumns; ++c)
    if (const int column = lane + 32 * c; column < p.dv)
      put(p.out.dtype, p.out.data + (at + column) * size, rows.out[r][c] * inverse);
  if (p.lse.given && lane == 0) {
    const T lse = d == T(0) ? -fold::infinity<T>() : (m + ::log2(d)) * static_cast<T>(kLn2);
    put(p.lse.dtype, p.lse.data + row_of(p.lse) * static_cast<std::int64_t>(size_of(p.lse.dtype)), lse);
  }
  if (!p.state.given) return;
  T* state = reinterpret_cast<T*>(p.state.data) + row_of(p.state);
  if (lane == 0) state[0] = m, state[1] = d;
#pragma unroll
  for (int c = 0; c < C::kColumns; ++c)
    if (const int column = lane + 32 * c; column < p.dv) state[2 + column] = rows.out[r][c] * factor;
}

template <class C>
__global__ void __launch_bounds__(kThreads) attention_portable(const __grid_constant__ AttentionProblem p) {
  using T = typename C::T;
  extern __shared__ double memory[];
  T* q = reinterpret_cast<T*>(memory);
  T* kv = q + C::kBlockRows * p.d;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int stride = C::row_stride(p);
  const std::int64_t tiles = (p.tq + C::kBlockRows - 1) / C::kBlockRows;
  const std::int64_t tile = blockIdx.x % tiles, head = blockIdx.x / tiles;
  const std::int64_t h = head % p.q_heads, b = head / p.q_heads, kv_h = h / (p.q_heads / p.kv_heads);
  const AttentionSequence s = sequence_of(p, b);
  const std::int64_t begin = tile * C::kBlockRows, mine = begin + warp * C::kRows;
  if (begin >= s.tq) return;
  const std::int64_t last_row = min(begin + C::kBlockRows, s.tq) - 1;
  load_rows(q, p.d, p.q, s.q_batch * p.q.batch + h * p.q.head + (s.q_begin + begin) * p.q.token, C::kBlockRows,
            s.tq - begin, p.d);
  PortableRows<C> rows;
#pragma unroll
  for (int r = 0; r < C::kRows; ++r) {
    rows.m[r] = -fold::infinity<T>(), rows.d[r] = T(0);
#pragma unroll
    for (int c = 0; c < C::kColumns; ++c) rows.out[r][c] = T(0);
  }
  const std::int64_t high = last_key(p, s, last_row);
  for (std::int64_t key = first_key(p, s, begin) / kKeys * kKeys; key < high; key += kKeys) {
    const auto offset = [&](const AttentionTensor& x) {
      return s.kv_batch * x.batch + kv_h * x.head + (s.kv_begin + key) * x.token;
    };
    __syncthreads();
    load_rows(kv, stride, p.k, offset(p.k), kKeys, s.end - key, p.d);
    __syncthreads();
    T product[C::kRows] = {};
    for (int i = 0; i < p.d; ++i) {
      const T element = kv[lane * stride + i];
#pragma unroll
      for (int r = 0; r < C::kRows; ++r)
        product[r] = fold::Scalar<T>::fma(q[(warp * C::kRows + r) * p.d + i], element, product[r]);
    }
#pragma unroll
    for (int r = 0; r < C::kRows; ++r)
      push_scores<C>(rows, r, score_of<T>(p, s, b, h, min(mine + r, last_row), key + lane, product[r]));
    __syncthreads();
    load_rows(kv, stride, p.v, offset(p.v), kKeys, s.end - key, p.dv);
    __syncthreads();
    push_values<C>(rows, kv, stride, p.dv, lane);
  }
#pragma unroll
  for (int r = 0; r < C::kRows; ++r)
    if (mine + r <= last_row) finish_row<C>(p, s, h, mine + r, rows, r, lane);
}

/// The tile for a problem: the fewest columns that hold v's.
template <class F>
auto with_tile(const AttentionProblem& p, F&& f) {
  if (p.is_double()) return f.template operator()<PortableTile<double, 16, 2>>();
  if (p.dv <= 128) return f.template operator()<PortableTile<float, 4, 8>>();
  return f.template operator()<PortableTile<float, 16, 4>>();
}

const char* refuses(const AttentionProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  const DeviceOf device(p.out.data);
  const int available = traits_of(device.device()).shared_bytes;
  const bool fits = with_tile(p, [&]<class C>() { return C::shared_bytes(p) <= available; });
  return fits ? nullptr : "32 keys of D do not fit into the device's shared memory";
}

void run(const AttentionProblem& p, const Context& context) {
  const DeviceOf device(p.out.data);
  const cudaStream_t stream = stream_of(context);  // never overlapping: the kernel does not wait by itself
  with_tile(p, [&]<class C>() {
    const std::int64_t tiles = (p.tq + C::kBlockRows - 1) / C::kBlockRows;
    launch("attention_portable", attention_portable<C>,
           {p.sequences * p.q_heads * tiles, kThreads, 1, C::shared_bytes(p)}, stream, p);
  });
}

}  // namespace

const AttentionKernel attention_portable_kernel{"attention_portable", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
