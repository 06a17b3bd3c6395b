// Every case of the list, run in every way that must not matter: threads, executors, SIMD targets, the caller's
// floating-point environment, layouts, in place, rungs. The bits are those of one plain run on one thread.
#include "backends/matrix.hpp"
#include "cpu/targets.hpp"
#include "cpu/tuning.hpp"
#include "support/environment.hpp"

#include "softfold/executor.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace softfold_test {
namespace {

TEST(Matrix, NamesAreUnique) {
  std::vector<std::string> names;
  for (const Case& c : cases()) names.push_back(c.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end())
      << *std::adjacent_find(names.begin(), names.end());
}

void expect_same_on(softfold::Executor& executor, const std::string& what) {
  softfold::Context context;
  context.cpu = &executor;
  expect_baseline_bits(what, [&](std::size_t i) {
    Problem p = Baseline::fresh(i);
    run(p, context);
    return p;
  });
}

TEST(Matrix, SameBitsOnAnyNumberOfThreads) {
  for (const int threads : kThreadCounts)
    expect_same_on(*softfold::make_thread_executor(threads), "std::thread " + std::to_string(threads));
}

TEST(Matrix, SameBitsOnAnyNumberOfTbbThreads) {
  std::unique_ptr<softfold::Executor> executor;
  try {
    executor = softfold::make_tbb_executor(1);
  } catch (const softfold::Error& e) {
    ASSERT_EQ(e.code, softfold::Code::unsupported);
    GTEST_SKIP() << e.what();
  }
  for (const int threads : kThreadCounts)
    expect_same_on(*softfold::make_tbb_executor(threads), "oneTBB " + std::to_string(threads));
}

/// The sizes at which schedules change, until the end of a test.
class WithTuning {
 public:
  explicit WithTuning(const softfold::cpu::Tuning& t) : before_(softfold::cpu::tuning()) {
    softfold::cpu::tuning() = t;
  }
  ~WithTuning() { softfold::cpu::tuning() = before_; }
  WithTuning(const WithTuning&) = delete;
  WithTuning& operator=(const WithTuning&) = delete;

 private:
  softfold::cpu::Tuning before_;
};

// Small problems go the ways of large ones: from memory to memory, one row behind another, rows shared by threads.
TEST(Matrix, SameBitsOnEverySchedule) {
  const auto threads = softfold::make_thread_executor(2);
  for (const std::int64_t fused : {std::int64_t{0}, std::int64_t{1} << 20})
    for (const std::int64_t far : {std::int64_t{0}, std::int64_t{1} << 40})
      for (const bool shared : {false, true}) {
        softfold::cpu::Tuning t;
        t.fused_elements = t.fused_half_elements = fused;
        t.far_bytes = t.stream_bytes = far;
        t.inline_elements = 0;
        t.task_elements = 4096;
        t.block_elements = 2048;
        t.shared_row_elements = shared ? 1 : std::int64_t{1} << 40;
        t.result_stream_bytes = far;
        t.gradient_task_bytes = t.merge_task_bytes = 512;
        t.gradient_row_bytes = shared ? 0 : std::int64_t{1} << 40;
        t.gradient_run_chunks = 1;
        t.merge_piece_elements = shared ? 7 : std::int64_t{1} << 40;
        const WithTuning with(t);
        const std::string what = "fused up to " + std::to_string(fused) + ", far from " + std::to_string(far) +
                                 (shared ? ", shared rows" : "");
        if (!shared) expect_same_on(softfold::serial_executor(), what);
        expect_same_on(*threads, what + ", 2 threads");
      }
}

/// Gives the tasks out of order and some of them to other threads: no kernel may lean on the order.
class Backwards : public softfold::Executor {
 public:
  int concurrency() const override { return 5; }
  void run(std::int64_t tasks, Task task, void* argument) override {
    for (std::int64_t i = tasks; i-- > 0;) task(argument, i);
  }
};

TEST(Matrix, SameBitsWhateverTheOrderOfTheTasks) {
  Backwards executor;
  expect_same_on(executor, "tasks backwards");
}

TEST(Matrix, SameBitsOnEverySimdTarget) {
  const std::string best(softfold::cpu::current_target());
  softfold::cpu::Tuning far;
  far.far_bytes = far.stream_bytes = 0;
  for (const auto target : softfold::cpu::targets()) {
    ASSERT_TRUE(softfold::cpu::use_target(target));
    expect_same_on(softfold::serial_executor(), std::string(target));
    const WithTuning with(far);
    expect_same_on(softfold::serial_executor(), std::string(target) + ", from memory to memory");
  }
  ASSERT_TRUE(softfold::cpu::use_target(best));
  EXPECT_FALSE(softfold::cpu::use_target("abacus"));
}

// Where what is read and what is written past the cache have the same last 20 bits of their addresses, or nearly, the
// writing goes ahead of the reading.
TEST(Matrix, SameBitsWhereReadingAndWritingMeetInTheirAddresses) {
  constexpr std::size_t alike = std::size_t{1} << 20;
  softfold::cpu::Tuning far;
  far.far_bytes = far.stream_bytes = 0;
  const WithTuning with(far);
  std::vector<std::byte> memory(3 * alike);
  std::byte* const base = memory.data() + (alike - reinterpret_cast<std::uintptr_t>(memory.data()) % alike);
  Random random(5);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64})
    for (const std::int64_t n : {256, 1000, 1024, 3000}) {
      const std::int64_t shape[] = {7, n};
      const std::size_t row = static_cast<std::size_t>(n) * size_of(dtype), bytes = 7 * row;
      for (std::size_t i = 0; i < bytes; i += size_of(dtype)) {
        const double value = random.uniform(-9, 9);
        const auto put = [&](auto stored) { std::memcpy(base + i, &stored, sizeof stored); };
        if (dtype == DType::float64) put(value);
        if (dtype == DType::float32) put(static_cast<float>(value));
        if (dtype == DType::bfloat16) put(softfold::fold::narrow<softfold::fold::BFloat16>(value));
      }
      const View x(static_cast<const void*>(base), dtype, shape);
      for (const Op op : {Op::softmax, Op::log_softmax}) {
        std::vector<std::byte> plain(bytes + 64);
        softfold::plan(op, {&x, 1}, std::array<View, 1>{View(plain.data(), dtype, shape)}, softfold::RowOptions())
            .run();
        plain.resize(bytes);
        for (const int ahead : {0, 64, 320, 384, 512, 4032}) {
          std::byte* const y = base + alike + (row + 63) / 64 * 64 + static_cast<std::size_t>(ahead);
          softfold::plan(op, {&x, 1}, std::array<View, 1>{View(y, dtype, shape)}, softfold::RowOptions()).run();
          EXPECT_EQ(std::vector<std::byte>(y, y + bytes), plain) << n << " " << ahead;
        }
      }
    }
}

TEST(Matrix, SameBitsInEveryLayoutAndNothingElseWritten) {
  for (const Layout layout : {Layout::padded, Layout::every_second, Layout::transposed, Layout::reversed})
    expect_baseline_bits("layout " + std::to_string(static_cast<int>(layout)), [&](std::size_t i) {
      Problem p = Baseline::fresh(i);
      for (Array* t : p.operands()) *t = t->relaid(layout);
      run(p);
      for (const Array* t : p.operands()) EXPECT_TRUE(t->only_elements_written()) << cases()[i].name;
      return p;
    });
}

TEST(Matrix, InputsAreNeverWritten) {
  for (std::size_t k = 0; k < cases().size(); ++k) {
    Problem p = Baseline::fresh(k);
    const std::vector<Array> before = p.inputs;
    run(p);
    for (std::size_t i = 0; i < before.size(); ++i)
      EXPECT_EQ(p.inputs[i].bytes(), before[i].bytes()) << cases()[k].name;
  }
}

// In place: the output is the view of an input of its shape and dtype, each of them in turn.
TEST(Matrix, SameBitsInPlace) {
  int in_place = 0;
  for (std::size_t k = 0; k < cases().size(); k += kStep) {
    const Case& c = cases()[k];
    if (!c.rows) continue;
    for (std::size_t i = 0; i < Baseline::of(k).inputs.size(); ++i) {
      Problem p = Baseline::fresh(k);
      const Array& in = p.inputs[i];
      const bool is_states = in.shape() != p.inputs[0].shape();
      if (is_states || c.rows->op == Op::logsumexp || c.rows->op == Op::state || c.rows->op == Op::finish_logsumexp)
        continue;
      if (in.dtype() != p.outputs[0].dtype()) continue;
      Bound b = bind(p);
      b.outputs[0] = b.inputs[i];
      plan_of(b, p.op, false).run();
      EXPECT_EQ(difference(p.inputs[i], Baseline::of(k).outputs[0]), "") << c.name << " over input " << i;
      ++in_place;
    }
  }
  EXPECT_GT(in_place, 300 / static_cast<int>(kStep));
}

TEST(Matrix, SameBitsOnEveryRung) {
  using softfold::Rung;
  for (const Rung rung : {Rung::tiled, Rung::fused}) {
    int ran = 0;
    expect_baseline_bits("rung " + std::to_string(static_cast<int>(rung)), [&](std::size_t i) {
      Problem p = Baseline::fresh(i);
      p.rung = rung;
      try {
        run(p);
        ran += p.is_merge() ? 0 : 1;
      } catch (const softfold::Error& e) {  // a rung that the operation does not have, or a row that does not fit it
        EXPECT_EQ(e.code, softfold::Code::unsupported) << cases()[i].name << e.what();
        p = Baseline::of(i);
      }
      return p;
    });
    EXPECT_GT(ran, 50 / static_cast<int>(kStep)) << static_cast<int>(rung);
  }
}

// Sixteen environments; each case is run in four of them.
TEST(Matrix, SameBitsInAnyFloatingPointEnvironmentWhichIsLeftAsItWas) {
  const auto threads = softfold::make_thread_executor(3);
  constexpr int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  for (std::size_t turn = 0; turn < 4; ++turn)
    expect_baseline_bits("turn " + std::to_string(turn), [&](std::size_t i) {
      const std::size_t which = (4 * i + turn) % 16;
      softfold::Context context;
      context.cpu = which % 2 == 0 ? threads.get() : &softfold::serial_executor();
      Problem p = Baseline::fresh(i);
      const Bound b = bind(p);
      std::uint64_t before, after;
      {
        const CallersEnvironment environment(modes[(which / 4 + i / 4) % 4], which / 2 % 2 != 0);
        before = CallersEnvironment::control();
        plan_of(b, p.op, p.is_merge(), context).run();
        after = CallersEnvironment::control();
      }
      EXPECT_EQ(before, after) << cases()[i].name;
      return p;
    });
}

TEST(Matrix, TheSameIsRefusedInAnyFloatingPointEnvironment) {
  double x[] = {1, 2}, y[2];
  const std::int64_t shape[] = {2};
  const View in(static_cast<const void*>(x), DType::float64, shape), out(y, DType::float64, shape);
  for (const double scale : {5e-324, -1e-310, 1.5e-308, 1.3e308, 1.6e-308, -1.2e308, -0.})
    for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO})
      for (const bool flush : {false, true}) {
        softfold::RowOptions options;
        options.scale = scale;
        bool refused = false;
        {
          const CallersEnvironment environment(rounding, flush);
          try {
            softfold::plan(Op::softmax, {&in, 1}, {&out, 1}, options);
          } catch (const softfold::Error& e) {
            refused = e.code == softfold::Code::option;
          }
        }
        EXPECT_EQ(refused, scale != 0 && (std::abs(scale) < 1.55e-308 || scale > 1.25e308)) << scale << flush;
      }
}

// A plan is a value: it may be copied, and run again.
TEST(Matrix, APlanRunsAgain) {
  for (std::size_t k = 0; k < cases().size(); k += 3 * kStep) {
    Problem p = Baseline::fresh(k);
    const softfold::Plan plan = plan_of(bind(p), p.op, p.is_merge()), copy = plan;
    plan.run();
    for (Array& t : p.outputs) t.set_elements(std::vector<unsigned char>(t.elements().size(), 0x11));
    copy.run();
    EXPECT_EQ(difference(p, Baseline::of(k)), "") << cases()[k].name;
    EXPECT_FALSE(plan.kernel().empty());
  }
}

}  // namespace
}  // namespace softfold_test
