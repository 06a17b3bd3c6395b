// What bench/cpu_peers.py and cpu_consumers.py cannot time from Python: the machine's ceilings (a streaming copy, a
// pure read) and oneDNN's softmax and log-softmax and the gradient of the latter, as C functions for ctypes. Every
// function runs on `threads` threads and returns seconds.
#include <immintrin.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#if defined(SOFTFOLD_BENCH_ONEDNN)
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace {

using Clock = std::chrono::steady_clock;

template <class F>
double timed(F&& f) {
  const auto start = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Splits [0, bytes) into one 64-byte-aligned part a thread.
template <class F>
double on_threads(std::size_t bytes, int threads, F&& part) {
  return timed([&] {
    std::vector<std::thread> pool;
    const std::size_t step = bytes / static_cast<std::size_t>(threads) / 64 * 64;
    for (int t = 1; t < threads; ++t) {
      const std::size_t from = step * static_cast<std::size_t>(t);
      pool.emplace_back([=, &part] { part(from, t + 1 == threads ? bytes : from + step); });
    }
    part(0, threads == 1 ? bytes : step);
    for (auto& t : pool) t.join();
  });
}

}  // namespace

extern "C" {

/// Copies with streaming stores. Both pointers 64-byte aligned; bytes a multiple of 64.
__attribute__((target("avx2"))) double bench_copy(char* to, const char* from, std::size_t bytes, int threads) {
  return on_threads(
      bytes, threads, [=](std::size_t low, std::size_t high) __attribute__((target("avx2"))) {
        for (std::size_t i = low; i < high; i += 64) {
          _mm_prefetch(from + i + 2048, _MM_HINT_T0);
          const __m256i a = _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i));
          const __m256i b = _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i + 32));
          _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), a);
          _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), b);
        }
        _mm_sfence();
      });
}

/// Reads every byte once.
__attribute__((target("avx2"))) double bench_read(const char* from, std::size_t bytes, int threads) {
  return on_threads(
      bytes, threads, [=](std::size_t low, std::size_t high) __attribute__((target("avx2"))) {
        __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
        for (std::size_t i = low; i + 128 <= high; i += 128) {
          const auto* p = reinterpret_cast<const __m256i*>(from + i);
          a = _mm256_xor_si256(a, _mm256_load_si256(p));
          b = _mm256_xor_si256(b, _mm256_load_si256(p + 1));
          c = _mm256_xor_si256(c, _mm256_load_si256(p + 2));
          d = _mm256_xor_si256(d, _mm256_load_si256(p + 3));
        }
        a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
        volatile long long sink = _mm256_extract_epi64(a, 0);
        static_cast<void>(sink);
      });
}

#if defined(SOFTFOLD_BENCH_ONEDNN)
struct OneDnn {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::primitive primitive;
  std::unordered_map<int, dnnl::memory> arguments;

  /// A row-major matrix.
  static dnnl::memory::desc matrix(std::int64_t rows, std::int64_t n, std::string_view dtype) {
    using Type = dnnl::memory::data_type;
    const Type type = dtype == "bfloat16" ? Type::bf16 : dtype == "float16" ? Type::f16 : Type::f32;
    return {{rows, n}, type, dnnl::memory::format_tag::ab};
  }
};

/// Softmax, or with `log` log-softmax, over the last axis of [rows, n]; null where oneDNN has none of this dtype.
/// Its threads are OpenMP's.
void* bench_onednn_make(void* x, void* y, std::int64_t rows, std::int64_t n, const char* dtype, int log) {
  const auto forward_only = dnnl::prop_kind::forward_inference;
  try {
    auto s = std::make_unique<OneDnn>();
    const auto desc = OneDnn::matrix(rows, n, dtype);
    if (log != 0) {
      s->primitive = dnnl::logsoftmax_forward({{forward_only, desc, 1}, s->engine});
    } else {
      s->primitive = dnnl::softmax_forward({{forward_only, desc, 1}, s->engine});
    }
    s->arguments = {{DNNL_ARG_SRC, {desc, s->engine, x}}, {DNNL_ARG_DST, {desc, s->engine, y}}};
    return s.release();
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

/// The gradient dx of a log-softmax y for dy; null where oneDNN has none of this dtype.
void* bench_onednn_make_backward(void* y, void* dy, void* dx, std::int64_t rows, std::int64_t n, const char* dtype) {
  try {
    auto s = std::make_unique<OneDnn>();
    const auto desc = OneDnn::matrix(rows, n, dtype);
    const dnnl::logsoftmax_forward::primitive_desc forward({dnnl::prop_kind::forward_training, desc, 1}, s->engine);
    s->primitive = dnnl::logsoftmax_backward({{desc, desc, 1}, s->engine, forward});
    s->arguments = {{DNNL_ARG_DST, {desc, s->engine, y}},
                    {DNNL_ARG_DIFF_DST, {desc, s->engine, dy}},
                    {DNNL_ARG_DIFF_SRC, {desc, s->engine, dx}}};
    return s.release();
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

double bench_onednn_run(void* handle) {
  auto* s = static_cast<OneDnn*>(handle);
  return timed([s] {
    s->primitive.execute(s->stream, s->arguments);
    s->stream.wait();
  });
}

/// 1000000 major + 1000 minor + patch.
int bench_onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return 1000000 * v->major + 1000 * v->minor + v->patch;
}

void bench_onednn_free(void* handle) { delete static_cast<OneDnn*>(handle); }
#endif

}  // extern "C"
