#include "bench_attention.hpp"

#include "arguments.hpp"
#include "blocks.hpp"
#include "elements.hpp"
#include "machine.hpp"
#include "progress.hpp"

#include "softfold/softfold.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <vector>

namespace softfold::cli {
namespace {

constexpr std::pair<Rung, const char*> kRungs[] = {{Rung::naive, "naive"},   {Rung::safe, "safe"},
                                                   {Rung::merged, "merged"}, {Rung::online, "online"},
                                                   {Rung::tiled, "tiled"},   {Rung::fused, "fused"}};

/// What a child process tells of its work.
struct ChildTold {
  double seconds = 0;
  int threads = 0;
  char why_not[240] = {};
};

/// Runs `work` in a child process; gives what it told, and the most memory that it had resident.
std::pair<ChildTold, double> in_child(const std::function<ChildTold()>& work) {
  int ends[2];
  if (::pipe(ends) != 0) throw Error(Code::io, "no pipe to a child process", "one more open file");
  const pid_t child = ::fork();
  if (child < 0) throw Error(Code::out_of_memory, "no child process", "one more process");
  if (child == 0) {
    ChildTold told;
    try {
      told = work();
    } catch (const std::exception& e) {
      std::string_view(e.what()).substr(0, sizeof told.why_not - 1).copy(told.why_not, sizeof told.why_not - 1);
    }
    const bool written = ::write(ends[1], &told, sizeof told) == static_cast<ssize_t>(sizeof told);
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  ChildTold told;
  const bool whole = ::read(ends[0], &told, sizeof told) == static_cast<ssize_t>(sizeof told);
  ::close(ends[0]);
  rusage usage{};
  int status = 0;
  ::wait4(child, &status, 0, &usage);
  if (!whole) throw Error(Code::out_of_memory, "a child process that ended early", "more memory", "a smaller --n");
  return {told, 1024. * static_cast<double>(usage.ru_maxrss)};
}

/// The operands, made in the child that uses them.
struct Operands {
  std::vector<std::int64_t> shape;
  Buffer q, k, v, out;
  DType dtype;

  Operands(const AttentionRace& race, std::int64_t length)
      : shape{race.heads, length, race.d},
        q(bytes(race)),
        k(bytes(race)),
        v(bytes(race)),
        out(bytes(race)),
        dtype(race.dtype) {
    std::mt19937 random(1);
    for (Buffer* b : {&q, &k, &v, &out})
      with_floating(dtype, [&]<class S>(S) {
        auto* to = reinterpret_cast<S*>(b->data());
        for (std::int64_t i = 0; i < shape[0] * shape[1] * shape[2]; ++i)
          to[i] = fold::narrow<S>(static_cast<float>(random() % 4001) / 1000.F - 2.F);
      });
  }
  std::size_t bytes(const AttentionRace& race) const {
    return static_cast<std::size_t>(shape[0] * shape[1] * shape[2]) * size_of(race.dtype);
  }
};

ChildTold run_rung(const AttentionRace& race, std::int64_t length, std::optional<Rung> rung) {
  Operands o(race, length);
  const auto executor = make_thread_executor(race.threads);  // here: threads do not outlive a fork
  const View inputs[] = {View(static_cast<const void*>(o.q.data()), o.dtype, o.shape),
                         View(static_cast<const void*>(o.k.data()), o.dtype, o.shape),
                         View(static_cast<const void*>(o.v.data()), o.dtype, o.shape)};
  const View out(static_cast<void*>(o.out.data()), o.dtype, o.shape);
  AttentionOptions options;
  options.causal = race.causal;
  ChildTold told;
  told.threads = executor->concurrency();
  if (!rung) return told;  // the operands alone
  options.rung = *rung;
  const Plan plan = softfold::plan(Op::attention, inputs, {&out, 1}, options, {executor.get(), nullptr, nullptr});
  std::vector<double> seconds;
  const Stopwatch all;
  do {
    const Stopwatch one;
    plan.run();
    seconds.push_back(one.seconds());
  } while (all.seconds() < race.seconds);
  const auto median = seconds.begin() + std::ssize(seconds) / 2;
  std::nth_element(seconds.begin(), median, seconds.end());
  told.seconds = *median;
  return told;
}

}  // namespace

std::vector<Json> race_attention(const AttentionRace& race, const std::string& commit) {
  const Machine m = machine();
  std::vector<Json> list;
  for (const std::int64_t length : race.lengths) {
    const double operands = in_child([&] { return run_rung(race, length, {}); }).second;
    for (const auto& [rung, name] : kRungs) {
      const auto [told, peak] = in_child([&, which = rung] { return run_rung(race, length, which); });
      const bool ran = told.why_not[0] == 0;
      const double pairs =
          static_cast<double>(race.heads * length) * static_cast<double>(length) * (race.causal ? .5 : 1);
      Json record{{"op", "attention"},
                  {"dtype", name_of(race.dtype)},
                  {"shape", {1, race.heads, race.heads, length, length, race.d}},
                  {"case", fmt::format("{}{} threads", race.causal ? "causal, " : "", told.threads)},
                  {"who", fmt::format("softfold:attention_{}", name)},
                  {"ms", ran ? Json(std::round(told.seconds * 1e7) / 1e4) : Json()},
                  {"bytes", 4 * race.heads * length * race.d * static_cast<std::int64_t>(size_of(race.dtype))},
                  {"flops", 4 * pairs * static_cast<double>(race.d)},
                  {"memory_bytes", ran ? Json(std::max(0., peak - operands)) : Json()},
                  {"device", fmt::format("{}, {} processors", m.cpu, m.processors)},
                  {"driver", m.system},
                  {"commit", commit.empty() ? Json() : Json(commit)},
                  {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))}};
      if (!ran) record.set("why", std::string(told.why_not));
      list.push_back(record);
    }
  }
  return list;
}

void tell_attention(const AttentionRace& race, const std::vector<Json>& records) {
  std::int64_t length = -1;
  for (const Json& record : records) {
    const auto& r = record.tree();
    if (length != r["shape"][3]) {
      length = r["shape"][3];
      fmt::print("attention of {} heads, T = {}, D = {}, {}, {}\n", race.heads, length, race.d, name_of(race.dtype),
                 r["case"].get<std::string>());
      fmt::print("{:<10}{:>12}{:>10}{:>14}\n", "", "ms", "GFLOP/s", "memory");
    }
    const std::string who = r["who"], name = who.substr(who.rfind('_') + 1);
    if (r["ms"].is_null()) {
      fmt::print("{:<10}{}\n", name, r["why"].get<std::string>());
      continue;
    }
    fmt::print("{:<10}{:>12.2f}{:>10.1f}{:>14}\n", name, r["ms"].get<double>(),
               r["flops"].get<double>() / r["ms"].get<double>() * 1e-6, human_bytes(r["memory_bytes"].get<double>()));
  }
}

}  // namespace softfold::cli
