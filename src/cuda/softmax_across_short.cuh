// softmax and log_softmax of short plain rows that lie side by side: a thread has some neighbouring rows whole, in
// registers.
#pragma once

#include "cuda/across_frame.cuh"
#include "cuda/across_words.cuh"
#include "cuda/sm90.cuh"
#include "cuda/softmax_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kShortThreads = 128;  ///< of a block
inline constexpr int kShortBytes = 8;      ///< of each element of a thread's rows: 256 a warp

struct AcrossShort {
  const char* x;
  char* y;
  std::int64_t x_axis, x_outer, y_axis, y_outer;  ///< bytes between neighbours
  int n;
  unsigned across, words;  ///< words of kShortBytes side by side, and in all
  Empty empty;
  fold::Scale<float> scale;
  float two_kappa;  ///< of fold::LogNormaliser
};

/// The tree over a row's elements, of which the first kCount may exist: those 16 apart first.
template <int kCount, class Term>
__device__ __forceinline__ float add_short(const Term& term) {
  using S = fold::Scalar<float>;
  float half[16];
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    half[j] = term(j);
    if (j + 16 < kCount) half[j] = S::add(half[j], term(j + 16));
  }
#pragma unroll
  for (int stride = 8; stride > 0; stride /= 2) {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (j < stride) half[j] = S::add(half[j], half[j + stride]);
  }
  return half[0];
}

/// A row whose elements are special or lie far apart, by the general fold.
template <class E, bool kLog, int kCount>
__device__ __noinline__ void across_short_any(const AcrossShort& p, const char* x, char* y) {
  using Lse = fold::LogSumExp<float>;
  const lift::Factor factor(p.scale.c);
  float v[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j)
    v[j] = j < p.n ? fold::widen(*reinterpret_cast<const E*>(x + j * p.x_axis)) : lift::absent(factor.c);
  const lift::Extremes e = lift::extremes_of(v);
  const float top = factor.c > 0.F ? e.high : e.low;
  const bool finite = fabsf(top) < fold::infinity<float>();
  const double m = finite ? Lse::frame(top, factor.c).m : 0.;
  float terms[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) terms[j] = v[j];
  const float unit = terms_in_frame(terms, factor.c, m);
  typename Lse::State state{m, fold::Scalar<float>::mul(add_short<kCount>([&](int j) { return terms[j]; }), unit)};
  if (!finite)
    state = fold::is_nan(top)                 ? Lse::not_a_number()
            : (top > 0.F) == (factor.c > 0.F) ? Lse::plus_infinity()
                                              : Lse::identity();
  const fold::Normaliser<float> norm(state);
  if (norm.regular) {
#pragma unroll
    for (int j = 0; j < kCount && !kLog; ++j) v[j] = terms[j];
    finish<kLog>(v, false, factor, fold::Scalar<float>::mul(norm.multiplier(m), unit), state, p.scale);
  }
  const Constant constant = constant_of<kLog>(state, p.empty);
#pragma unroll
  for (int j = 0; j < kCount; ++j)
    if (j < p.n) *reinterpret_cast<E*>(y + j * p.y_axis) = fold::narrow<E>(norm.regular ? v[j] : constant.value);
}

/// A thread's rows: of up to kCount elements, and of more than kCount - 8 where that is 16 or more.
template <class E, bool kLog, int kCount>
struct AcrossShortRows {
  using S = fold::Scalar<float>;
  using Frame = AcrossFrame;
  static constexpr int kSize = static_cast<int>(sizeof(E)), kRows = kShortBytes / kSize;
  static constexpr int kOfWord = 4 / kSize;  ///< rows of a 4-byte word
  static constexpr int kSure = kCount > 16 ? kCount - 8 : 1;
  using Words = AcrossWord<E, kOfWord>;

  uint2* words;            ///< the thread's in shared memory, where elements arrive: all are on their way at once
  float v[kRows][kCount];  ///< terms (log_softmax: elements, when they are written)
  float sums[kRows], magic[kRows];
  int high[kRows];

  static __device__ __forceinline__ void unpack(const uint2& word, float (&x)[kRows]) {
    float part[2][kOfWord];
    Words::unpack(fold::bits_as<typename Words::Word>(word.x), part[0]);
    Words::unpack(fold::bits_as<typename Words::Word>(word.y), part[1]);
#pragma unroll
    for (int row = 0; row < kRows; ++row) x[row] = part[row / kOfWord][row % kOfWord];
  }

  static __device__ __forceinline__ void ask(uint2* to, const char* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
  }

  /// False unless all elements lie close to their frames.
  __device__ __forceinline__ bool fold(const char* x, std::int64_t axis, int n, float c) {
#pragma unroll
    for (int j = 0; j < kCount; ++j, x += axis)
      if (j < kSure || j < n) ask(&words[j * kShortThreads], x);
    asm volatile("cp.async.wait_all;" ::: "memory");
    float first[kRows];
    unpack(words[0], first);
    int low[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row)
      magic[row] = Frame::guess(first[row], c), high[row] = low[row] = Frame::kFrame;
    // Terms of log_softmax are not kept: they take the tree's first level at once.
    float half[kRows][16];
#pragma unroll
    for (int j = 0; j < 16 && kLog; ++j) {
      take(j, n, c, low, [&](int row, float term) { half[row][j] = term; });
      if (j + 16 < kCount)
        take(j + 16, n, c, low, [&](int row, float term) { half[row][j] = S::add(half[row][j], term); });
    }
#pragma unroll
    for (int j = 0; j < kCount && !kLog; ++j) take(j, n, c, low, [&](int row, float term) { v[row][j] = term; });
    bool close = true;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (kLog) sums[row] = add_short<16>([&](int j) { return half[row][j]; });
      if (!kLog) sums[row] = add_short<kCount>([&](int j) { return v[row][j]; });
      close = close && Frame::is_close(high[row], low[row]);
    }
    return close;
  }
  /// The j-th elements' terms, 0 where none is.
  template <class Put>
  __device__ __forceinline__ void take(int j, int n, float c, int (&low)[kRows], const Put& put) {
    if (j >= kSure && j >= n) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) put(row, 0.F);
      return;
    }
    float x[kRows];
    unpack(words[j * kShortThreads], x);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float z = S::fma(x[row], c, magic[row]);
      high[row] = max(high[row], __float_as_int(z)), low[row] = min(low[row], __float_as_int(z));
      put(row, Frame::term(x[row], z, magic[row], c));
    }
  }

  __device__ __forceinline__ void write(char* y, const AcrossShort& p) {
#pragma unroll
    for (int j = 0; j < kCount && kLog; ++j) {
      float x[kRows] = {};
      if (j < kSure || j < p.n) unpack(words[j * kShortThreads], x);
#pragma unroll
      for (int row = 0; row < kRows; ++row) v[row][j] = x[row];
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      fold::LogSumExp<float>::State state{0., sums[row]};
      if constexpr (kLog) state = Frame::state(sums[row], high[row], magic[row]);
      finish<kLog, kCount>(
          v[row], true, S::div(1.F, state.d),
          [&] {
            fold::LogNormaliser<float> norm(state, p.scale);
            norm.two_kappa = p.two_kappa;
            return norm;
          },
          [](int) {});
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j, y += p.y_axis) {
      unsigned word[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float part[kOfWord];
#pragma unroll
        for (int row = 0; row < kOfWord; ++row) part[row] = v[i * kOfWord + row][j];
        word[i] = fold::bits_as<unsigned>(Words::pack(part));
      }
      if (j < kSure || j < p.n) *reinterpret_cast<uint2*>(y) = make_uint2(word[0], word[1]);
    }
  }
};

template <class E, bool kLog, int kCount>
__global__ void __launch_bounds__(kShortThreads, sizeof(E) == 4         ? (kCount == 32 ? 4 : 5)
                                                 : kLog || kCount == 32 ? 3
                                                                        : 4)
    softmax_across_short(const __grid_constant__ AcrossShort p) {
  begin_in_order();
  using Rows = AcrossShortRows<E, kLog, kCount>;
  const unsigned word = blockIdx.x * kShortThreads + threadIdx.x;
  if (word >= p.words) return;
  const unsigned outer = word / p.across;
  const std::int64_t column = std::int64_t{word - outer * p.across} * kShortBytes;
  const char* x = p.x + outer * p.x_outer + column;
  char* y = p.y + outer * p.y_outer + column;
  __shared__ uint2 words[kCount * kShortThreads];
  Rows own;
  own.words = words + threadIdx.x;
  if (own.fold(x, p.x_axis, p.n, p.scale.c)) return own.write(y, p);
#pragma unroll 1
  for (int row = 0; row < Rows::kRows; ++row)
    across_short_any<E, kLog, kCount>(p, x + row * Rows::kSize, y + row * Rows::kSize);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
