// softfold's attention on this CPU beside what its FMA units can do, taken in turn in one run. Prints a table; with
// --out FILE appends the records of DESIGN section 5, with the peak of the same run as "fma_gflops".
//
//   cpu_attention [--threads 1,2] [--simd avx2] [--rounds 12] [--only TEXT] [--commit HASH] [--out FILE]
//
// A time is the shortest of all rounds; one thread's is its processor time. The peak is that of 12 or more independent
// chains of FMAs on every thread, the widest that the chosen SIMD target has.
#include "clock.hpp"
#include "cpu/parallel.hpp"
#include "cpu/targets.hpp"
#include "softfold/fold/float16.hpp"
#include "softfold/softfold.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <new>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using namespace softfold;

struct Settings {
  std::vector<int> threads;
  int rounds = 12;
  std::string only, out, commit;
};

constexpr int kSteps = 1000000, kChains = 12;

#if defined(__x86_64__)
/// Chains that start from different numbers, or the compiler would make one of them.
__attribute__((target("avx512f"), noinline)) void fma_chains_512() {
  __m512 a[kChains];
#pragma GCC unroll 12
  for (int k = 0; k < kChains; ++k) a[k] = _mm512_set1_ps(0.1F * static_cast<float>(k));
  const __m512 b = _mm512_set1_ps(0.999F), c = _mm512_set1_ps(1e-3F);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kChains; ++k) a[k] = _mm512_fmadd_ps(a[k], b, c);
  }
#pragma GCC unroll 12
  for (int k = 0; k < kChains; ++k) asm volatile("" ::"v"(a[k]));
}
__attribute__((target("avx2,fma"), noinline)) void fma_chains_256() {
  __m256 a[kChains];
#pragma GCC unroll 12
  for (int k = 0; k < kChains; ++k) a[k] = _mm256_set1_ps(0.1F * static_cast<float>(k));
  const __m256 b = _mm256_set1_ps(0.999F), c = _mm256_set1_ps(1e-3F);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kChains; ++k) a[k] = _mm256_fmadd_ps(a[k], b, c);
  }
#pragma GCC unroll 12
  for (int k = 0; k < kChains; ++k) asm volatile("" ::"x"(a[k]));
}
/// What one thread's fma_peak() does.
double flops_of_peak() { return 2. * kSteps * kChains * (cpu::current_target().starts_with("avx512") ? 16 : 8); }
void fma_peak() { cpu::current_target().starts_with("avx512") ? fma_chains_512() : fma_chains_256(); }
#else
double flops_of_peak() { return 0; }
void fma_peak() {}
#endif

/// B, H, Hkv, T, S, D.
struct Case {
  const char* name;
  DType dtype;
  std::int64_t batch, heads, kv_heads, queries, keys, d;
  bool causal;
};

constexpr Case kCases[] = {
    {"prefill", DType::float32, 1, 4, 4, 2048, 2048, 64, false},
    {"prefill", DType::float32, 1, 2, 2, 2048, 2048, 128, false},
    {"causal", DType::float32, 1, 2, 2, 2048, 2048, 128, true},
    {"prefill", DType::float32, 1, 1, 1, 2048, 2048, 256, false},
    {"prefill", DType::bfloat16, 1, 2, 2, 2048, 2048, 128, false},
    {"prefill", DType::float16, 1, 2, 2, 2048, 2048, 128, false},
    {"prefill", DType::float64, 1, 1, 1, 1024, 1024, 128, false},
    {"grouped", DType::float32, 1, 8, 2, 512, 2048, 128, true},
    {"decode", DType::float32, 1, 8, 8, 1, 16384, 128, false},
    {"decode, grouped", DType::float32, 1, 32, 8, 1, 16384, 128, false},
    {"decode", DType::bfloat16, 1, 8, 8, 1, 16384, 128, false},
};

/// A tensor on cache lines of its own.
struct Memory {
  char* data;
  std::vector<std::int64_t> shape;
  Memory(DType t, std::vector<std::int64_t> s) : shape(std::move(s)) {
    std::int64_t count = 1;
    for (const auto n : shape) count *= n;
    const auto bytes = (static_cast<std::size_t>(count) * size_of(t) + 4095) / 4096 * 4096;
    data = static_cast<char*>(std::aligned_alloc(4096, bytes));
    if (data == nullptr) throw std::bad_alloc();
    std::mt19937 random(static_cast<unsigned>(count));
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < count; ++i) {
      const float x = normal(random);
      switch (t) {
        case DType::float64: reinterpret_cast<double*>(data)[i] = static_cast<double>(x); break;
        case DType::float16: reinterpret_cast<fold::Float16*>(data)[i] = fold::narrow<fold::Float16>(x); break;
        case DType::bfloat16: reinterpret_cast<fold::BFloat16*>(data)[i] = fold::narrow<fold::BFloat16>(x); break;
        default: reinterpret_cast<float*>(data)[i] = x; break;
      }
    }
  }
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  View view(DType t) const { return View(static_cast<void*>(data), t, shape); }
};

void measure(const Case& c, int threads, const Settings& settings) {
  const Memory q(c.dtype, {c.batch, c.heads, c.queries, c.d}), k(c.dtype, {c.batch, c.kv_heads, c.keys, c.d}),
      v(c.dtype, {c.batch, c.kv_heads, c.keys, c.d}), out(c.dtype, {c.batch, c.heads, c.queries, c.d});
  const auto executor = make_thread_executor(threads);
  AttentionOptions options;
  options.causal = c.causal;
  const View inputs[] = {q.view(c.dtype), k.view(c.dtype), v.view(c.dtype)}, output = out.view(c.dtype);
  const Plan plan = softfold::plan(Op::attention, inputs, {&output, 1}, options, {.cpu = executor.get()});
  double (*const clock)() = threads == 1 ? thread_time : now;
  double best = 1e30, peak = 1e30;
  for (int round = 0; round < settings.rounds; ++round) {
    double begin = clock();
    parallel_for(*executor, threads, [](std::int64_t) { fma_peak(); });
    peak = std::min(peak, clock() - begin);
    begin = clock();
    plan.run();
    best = std::min(best, clock() - begin);
  }
  const double causal =
      static_cast<double>(c.queries) * (static_cast<double>(c.keys) - (static_cast<double>(c.queries) - 1) / 2);
  const double pairs = c.causal ? causal : static_cast<double>(c.queries * c.keys);
  const double flops = 4 * static_cast<double>(c.batch * c.heads) * pairs * static_cast<double>(c.d);
  const double unit = c.dtype == DType::float64 ? 0.5 : 1, most = unit * threads * flops_of_peak() / peak;
  const auto bytes =
      static_cast<std::int64_t>(size_of(c.dtype)) * c.batch * c.d * 2 * (c.heads * c.queries + c.kv_heads * c.keys);
  std::printf(
      "%-16s %-9s T=%-5lld S=%-6lld D=%-4lld H=%lld/%lld %d threads: %9.3f ms %8.1f GFLOP/s, %3.0f%% of %.0f; %.1f "
      "GB/s\n",
      c.name, name_of(c.dtype).data(), static_cast<long long>(c.queries), static_cast<long long>(c.keys),
      static_cast<long long>(c.d), static_cast<long long>(c.heads), static_cast<long long>(c.kv_heads), threads,
      best * 1e3, flops / best * 1e-9, 100 * flops / best / most, most * 1e-9,
      static_cast<double>(bytes) / best * 1e-9);
  if (settings.out.empty()) return;
  std::string cpu_name = "unknown", line;
  for (std::ifstream info("/proc/cpuinfo"); std::getline(info, line);)
    if (line.starts_with("model name")) cpu_name = line.substr(line.find(':') + 2);
  char date[16];
  const std::time_t today = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&today));
  std::ofstream(settings.out, std::ios::app)
      << "{\"op\": \"attention\", \"dtype\": \"" << name_of(c.dtype) << "\", \"shape\": [" << c.batch << ", " << c.heads
      << ", " << c.kv_heads << ", " << c.queries << ", " << c.keys << ", " << c.d << "], \"case\": \"" << c.name << ", "
      << threads << (threads == 1 ? " thread, " : " threads, ") << cpu::current_target()
      << "\", \"who\": \"softfold:" << plan.kernel() << "\", \"ms\": " << best * 1e3 << ", \"bytes\": " << bytes
      << ", \"flops\": " << flops << ", \"fma_gflops\": " << most * 1e-9
      << ", \"copy_ms\": null, \"bits\": null, \"device\": \"" << cpu_name << ", "
      << std::thread::hardware_concurrency() << " processors\", \"driver\": null, \"commit\": \"" << settings.commit
      << "\", \"date\": \"" << date << "\"}\n";
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--threads") {
      std::stringstream list(value);
      for (std::string n; std::getline(list, n, ',');) s.threads.push_back(std::atoi(n.c_str()));
    } else if (name == "--rounds") {
      s.rounds = std::atoi(value.c_str());
    } else if (name == "--only") {
      s.only = value;
    } else if (name == "--out") {
      s.out = value;
    } else if (name == "--commit") {
      s.commit = value;
    } else if (name != "--simd" || !cpu::use_target(value)) {
      std::fprintf(stderr, "cpu_attention: %s %s is not known here\n", name.c_str(), value.c_str());
      return 2;
    }
  }
  if (s.threads.empty()) s.threads = {1, static_cast<int>(std::thread::hardware_concurrency())};
  for (const int threads : s.threads)
    for (const Case& c : kCases)
      if (s.only.empty() || std::string(c.name).find(s.only) != std::string::npos) measure(c, threads, s);
}
