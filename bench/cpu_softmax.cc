// softfold's row operations on this CPU beside the machine's own ceilings, taken in turn in one run: a streaming copy
// of the same bytes, a pure read, and for one huge row two reads and one write. Prints a table; with --out DIR appends
// the records of DESIGN section 5 to DIR/<op>.jsonl.
//
//   cpu_softmax [--threads 1,2] [--simd avx2] [--rounds 15] [--bytes 256M] [--only TEXT] [--fused 32K]
//               [--deviation 3] [--out DIR]
//
// A tensor is taken in slices of 36 MB, in turn by everyone, and the figures are those of the turn whose share of the
// ceiling is the median. In the cache, where there is no ceiling, a time is the sixteenth part of all from below. One
// thread's time is its processor time.
#include "cli/turn.hpp"
#include "clock.hpp"
#include "cpu/parallel.hpp"
#include "cpu/targets.hpp"
#include "cpu/tuning.hpp"
#include "softfold/fold/float16.hpp"
#include "softfold/softfold.h"
#include "softfold/softfold.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using namespace softfold;

struct Settings {
  std::vector<int> threads;
  std::int64_t bytes = std::int64_t{256} << 20;
  int rounds = 15;
  float deviation = 3;
  std::string only, out;
};

/// Page-aligned memory in large pages where the system gives them, as array libraries allocate it.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, 4096)) {
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    madvise(p, bytes_, MADV_HUGEPAGE);
    std::memset(p, 0, bytes_);
    data_ = static_cast<char*>(p);
  }
  ~Memory() { munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* data() const { return data_; }

 private:
  std::size_t bytes_;
  char* data_;
};

/// Normal logits, stored as `t`: one block, repeated.
void fill(char* x, DType t, std::int64_t count, float deviation) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.F, deviation);
  constexpr std::int64_t block = 1 << 18;
  const auto size = static_cast<std::int64_t>(size_of(t));
  for (std::int64_t i = 0; i < std::min(block, count); ++i) {
    const float v = normal(generator);
    const double wide = v;
    const auto half = t == DType::float16 ? fold::narrow<fold::Float16>(v).bits : fold::narrow<fold::BFloat16>(v).bits;
    const void* from = t == DType::float32   ? static_cast<const void*>(&v)
                       : t == DType::float64 ? &wide
                                             : static_cast<const void*>(&half);
    std::memcpy(x + i * size, from, static_cast<std::size_t>(size));
  }
  for (std::int64_t at = block; at < count; at += block)
    std::memcpy(x + at * size, x, static_cast<std::size_t>(std::min(block, count - at) * size));
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void copy_part(char* to, const char* from, std::int64_t bytes, int ahead) {
  for (std::int64_t i = 0; i < bytes; i += 64) {
    if (ahead != 0) _mm_prefetch(from + i + ahead, _MM_HINT_T0);
    const __m256i a = _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i b = _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), b);
  }
  _mm_sfence();
}
__attribute__((target("avx2"))) void read_part(const char* from, std::int64_t bytes) {
  __m256i a = _mm256_setzero_si256(), b = a;
  for (std::int64_t i = 0; i < bytes; i += 64) {
    a = _mm256_or_si256(a, _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i)));
    b = _mm256_or_si256(b, _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i + 32)));
  }
  asm volatile("" ::"x"(_mm256_or_si256(a, b)));
}
#else
void copy_part(char* to, const char* from, std::int64_t bytes, int) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
void read_part(const char* from, std::int64_t bytes) {
  std::uint64_t all = 0;
  for (std::int64_t i = 0; i < bytes; i += 8) all |= *reinterpret_cast<const std::uint64_t*>(from + i);
  asm volatile("" ::"r"(all));
}
#endif

constexpr std::int64_t kSlice = std::int64_t{36} << 20;
constexpr std::int64_t kPart = std::int64_t{1} << 20;

void for_parts(Executor& e, std::int64_t bytes, const std::function<void(std::int64_t, std::int64_t)>& f) {
  parallel_for(e, (bytes + kPart - 1) / kPart,
               [&](std::int64_t i) { f(i * kPart, std::min(kPart, bytes - i * kPart)); });
}

/// One thing to be timed. The names of ceilings begin with '='.
struct Contender {
  std::string who;
  std::function<void(std::int64_t slice)> run;
  std::vector<double> times = {};  ///< seconds for a slice, one a turn
};

/// Runs all of them in turn, slice by slice; every turn has one time of each.
void take_turns(std::vector<Contender>& all, int rounds, std::int64_t slices = 1, double (*clock)() = now) {
  for (int r = -1; r < rounds; ++r)
    for (std::int64_t i = 0; i < slices; ++i)
      for (std::size_t c = 0; c < all.size(); ++c) {
        // Nobody reads what the one before has just left in the cache.
        const std::int64_t slice =
            (i + static_cast<std::int64_t>(c) * slices / static_cast<std::int64_t>(all.size())) % slices;
        const double start = clock();
        all[c].run(slice);
        if (r >= 0) all[c].times.push_back(clock() - start);
      }
}

/// A short time of many.
double shortest(const Contender& c) {
  std::vector<double> times = c.times;
  std::sort(times.begin(), times.end());
  return times[times.size() / 16];
}

std::vector<std::vector<double>> ceilings_of(const std::vector<Contender>& all) {
  std::vector<std::vector<double>> times;
  for (const Contender& c : all)
    if (c.who[0] == '=') times.push_back(c.times);
  return times;
}

struct Case {
  Op op;
  DType dtype;
  std::int64_t rows, n;
  std::string label;
};

std::string machine() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

std::string commit() {
  std::string id = "unknown";
  if (FILE* f = popen("git rev-parse --short HEAD 2>/dev/null", "r")) {
    char line[64];
    if (std::fgets(line, sizeof line, f) != nullptr) id = std::string(line, std::strcspn(line, "\n"));
    pclose(f);
  }
  return id;
}

/// `ceiling`: nothing where the case has none.
void record(const Settings& s, const Case& c, const std::string& who, double seconds, std::int64_t bytes,
            std::optional<double> ceiling, int threads, std::optional<double> cycles = {}) {
  if (s.out.empty()) return;
  char date[32];
  const std::time_t t = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&t));
  static const std::string device = machine(), id = commit();
  std::ofstream f(s.out + "/" + std::string(name_of(c.op)) + ".jsonl", std::ios::app);
  f << "{\"op\":\"" << name_of(c.op) << "\",\"dtype\":\"" << name_of(c.dtype) << "\",\"shape\":[" << c.rows << ","
    << c.n << "],\"case\":\"" << c.label << ", " << threads << " threads";
  if (s.deviation != 3) f << ", deviation " << s.deviation;
  f << "\",\"who\":\"" << who << "\",\"ms\":" << seconds * 1e3 << ",\"bytes\":" << bytes
    << ",\"flops\":null,\"copy_ms\":" << (ceiling ? std::to_string(*ceiling * 1e3) : "null");
  if (cycles) f << ",\"cycles_per_element\":" << *cycles;
  f << ",\"bits\":" << bits_version() << ",\"device\":\"" << device << "\",\"driver\":\"" << cpu::current_target()
    << "\",\"commit\":\"" << id << "\",\"date\":\"" << date << "\"}\n";
}

void run_case(const Settings& s, const Case& c, int threads) {
  const std::string title = std::string(name_of(c.op)) + " " + std::string(name_of(c.dtype)) + " " +
                            std::to_string(c.rows) + "x" + std::to_string(c.n);
  if (title.find(s.only) == std::string::npos) return;
  const auto size = static_cast<std::int64_t>(size_of(c.dtype));
  const std::int64_t count = c.rows * c.n;
  const bool writes = c.op != Op::logsumexp, huge = c.rows == 1 && writes;
  const std::int64_t slices = c.rows == 1 ? 1 : std::max<std::int64_t>(1, count * size / kSlice);
  const std::int64_t rows = c.rows / slices, bytes = rows * c.n * size / 64 * 64;
  const Memory x(static_cast<std::size_t>(count * size)),
      y(static_cast<std::size_t>(writes ? count * size : c.rows * 8));
  fill(x.data(), c.dtype, count, s.deviation);
  const auto pool = threads == 1 ? nullptr : make_thread_executor(threads);
  Executor* const executor = threads == 1 ? &serial_executor() : pool.get();
  const Context context{executor, nullptr, nullptr};
  const std::int64_t shape[] = {rows, c.n};
  std::vector<Plan> plans;
  for (std::int64_t i = 0; i < slices; ++i) {
    const std::int64_t at = i * rows;
    const View vx(x.data() + at * c.n * size, c.dtype, shape);
    const View vy = writes ? View(y.data() + at * c.n * size, c.dtype, shape)
                           : View(y.data() + at * size, c.dtype, std::span(shape, 1));
    plans.push_back(plan(c.op, std::span(&vx, 1), std::span(&vy, 1), RowOptions{}, context));
  }
  const auto copy = [&](std::int64_t slice, int ahead) {
    const std::int64_t base = slice * rows * c.n * size / 64 * 64;
    for_parts(*executor, bytes, [&](std::int64_t at, std::int64_t n) {
      copy_part(y.data() + base + at, x.data() + base + at, n, ahead);
    });
  };
  const auto read = [&](std::int64_t slice) {
    const std::int64_t base = slice * rows * c.n * size / 64 * 64;
    for_parts(*executor, bytes, [&](std::int64_t at, std::int64_t n) { read_part(x.data() + base + at, n); });
  };
  std::vector<Contender> all;
  if (!writes) {
    all.push_back({"=read", read});
  } else {
    for (const int ahead : {0, 2048})
      all.push_back({"=copy", [&, ahead](std::int64_t i) {
                       if (huge) read(i);
                       copy(i, ahead);
                     }});
  }
  all.push_back({"softfold:" + std::string(plans[0].kernel()),
                 [&](std::int64_t i) { plans[static_cast<std::size_t>(i)].run(); }});
  take_turns(all, s.rounds, slices, threads == 1 ? thread_time : now);
  const double moved = static_cast<double>(bytes * slices) * (writes ? huge ? 3 : 2 : 1);
  const auto ceilings = ceilings_of(all);
  for (const Contender& who : all) {
    if (who.who[0] == '=') continue;
    const cli::Turn turn = cli::median_turn(who.times, ceilings);
    const double seconds = turn.seconds * static_cast<double>(slices),
                 ceiling = turn.ceiling * static_cast<double>(slices);
    std::printf("%-34s %d threads  %-28s %9.3f ms  %6.2f GB/s  ceiling %6.2f GB/s  ratio %.3f\n", title.c_str(),
                threads, who.who.c_str(), seconds * 1e3, moved / seconds / 1e9, moved / ceiling / 1e9,
                ceiling / seconds);
    record(s, c, who.who, seconds, static_cast<std::int64_t>(moved), ceiling, threads);
  }
  std::fflush(stdout);
}

/// Cycles of the core a nanosecond, from a chain of multiplications, each of which takes three.
double cycles_per_ns() {
#if defined(__x86_64__)
  double best = 1e30;
  for (int r = 0; r < 2000; ++r) {
    std::uint64_t a = 1;
    const double start = now();
    for (int i = 0; i < 1000; ++i) asm volatile("imul %0, %0\nimul %0, %0\nimul %0, %0\nimul %0, %0" : "+r"(a));
    best = std::min(best, now() - start);
  }
  return 12000 / (best * 1e9);
#else
  return 1;
#endif
}

void run_cached(const Settings& s, DType t, std::int64_t n) {
  const Case c{Op::softmax, t, std::max<std::int64_t>(1, 4096 / n), n, "in cache"};
  const std::string title =
      "cached softmax " + std::string(name_of(t)) + " " + std::to_string(c.rows) + "x" + std::to_string(n);
  if (title.find(s.only) == std::string::npos) return;
  const auto bytes = static_cast<std::size_t>(c.rows * n) * size_of(t);
  const Memory x(bytes), y(bytes);
  fill(x.data(), t, c.rows * n, s.deviation);
  const std::int64_t shape[] = {c.rows, n};
  const View vx(x.data(), t, shape), vy(y.data(), t, shape);
  const Context context{&serial_executor(), nullptr, nullptr};
  const Plan p = plan(c.op, std::span(&vx, 1), std::span(&vy, 1), RowOptions{}, context);
  constexpr int repeats = 8;
  std::vector<Contender> all;
  all.push_back({"softfold:" + std::string(p.kernel()), [&](std::int64_t) {
                   for (int i = 0; i < repeats; ++i) p.run();
                 }});
  take_turns(all, 2000);
  const double seconds = shortest(all[0]) / repeats;
  const double cycles = seconds * 1e9 * cycles_per_ns() / static_cast<double>(c.rows * n);
  std::printf("%-34s %d thread   %-28s %9.3f us  %.2f cycles an element\n", title.c_str(), 1, all[0].who.c_str(),
              seconds * 1e6, cycles);
  record(s, c, all[0].who, seconds, static_cast<std::int64_t>(2 * bytes), {}, 1, cycles);
}

void run_one_call(const Settings& s) {
  const Case c{Op::softmax, DType::float32, 1, 64, "one call"};
  if (std::string("one call").find(s.only) == std::string::npos) return;
  alignas(64) float x[64] = {}, y[64];
  const std::int64_t shape[] = {1, 64};
  const View vx(x, DType::float32, shape), vy(y, DType::float32, shape);
  std::int64_t c_shape[] = {1, 64};
  const softfold_tensor cx{x, {1, 0}, 2, {2, 32, 1}, c_shape, nullptr, 0};
  const softfold_tensor cy{y, {1, 0}, 2, {2, 32, 1}, c_shape, nullptr, 0};
  constexpr int repeats = 100;
  const auto repeated = [](auto call) {
    return [call](std::int64_t) {
      for (int i = 0; i < repeats; ++i) call();
    };
  };
  std::vector<Contender> all;
  all.push_back({"softfold", repeated([&] { softmax(vx, vy); })});
  all.push_back({"softfold, C", repeated([&] { softfold_softmax(&cx, &cy, nullptr, nullptr); })});
  all.push_back({"softfold, the plan alone", repeated([&] { (void)plan(c.op, {&vx, 1}, {&vy, 1}, RowOptions()); })});
  take_turns(all, 2000);
  for (const Contender& who : all) {
    const double seconds = shortest(who) / repeats;
    std::printf("one call of softmax, 1x64 float32, %-26s %.0f ns\n", who.who.c_str(), seconds * 1e9);
    record(s, c, who.who, seconds, 512, {}, 1);
  }
}

std::int64_t number_of(const std::string& text) {
  std::size_t end = 0;
  const auto n = static_cast<std::int64_t>(std::stoll(text, &end));
  const std::string unit = text.substr(end);
  return unit == "K" ? n << 10 : unit == "M" ? n << 20 : unit == "G" ? n << 30 : n;
}

Settings settings_of(int argc, char** argv) {
  Settings s;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--threads") {
      std::stringstream list(value);
      for (std::string t; std::getline(list, t, ',');) s.threads.push_back(std::stoi(t));
    } else if (key == "--simd") {
      if (!cpu::use_target(value)) throw Error(Code::usage, "--simd " + value, "a target that runs here");
    } else if (key == "--rounds") {
      s.rounds = std::stoi(value);
    } else if (key == "--bytes") {
      s.bytes = number_of(value);
    } else if (key == "--only") {
      s.only = value;
    } else if (key == "--fused") {
      cpu::tuning().fused_elements = cpu::tuning().fused_half_elements = number_of(value);
    } else if (key == "--deviation") {
      s.deviation = std::stof(value);
    } else if (key == "--out") {
      s.out = value;
    } else {
      throw Error(Code::usage, key, "--threads, --simd, --rounds, --bytes, --only, --fused, --deviation, --out");
    }
  }
  if (s.threads.empty()) s.threads = {1, default_executor().concurrency()};
  return s;
}

void run_all(const Settings& s) {
  std::printf("%s, %s\n", machine().c_str(), std::string(cpu::current_target()).c_str());
  run_one_call(s);
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16, DType::float64})
    for (const std::int64_t n : {64, 256, 1000, 1024, 4096, 8192}) run_cached(s, t, n);
  for (const int threads : s.threads) {
    for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16, DType::float64})
        for (const std::int64_t n : {1 << 10, 1 << 12, 1 << 14, 1 << 15, 50257, 1 << 17}) {
          const std::int64_t rows = s.bytes / static_cast<std::int64_t>(size_of(t)) / n;
          run_case(s, {op, t, rows, n, "out of cache"}, threads);
        }
    for (const Op op : {Op::softmax, Op::logsumexp}) run_case(s, {op, DType::float32, 1, 1 << 26, "one row"}, threads);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run_all(settings_of(argc, argv));
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return static_cast<int>(e.code);
  }
  return 0;
}
