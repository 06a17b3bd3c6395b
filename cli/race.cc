#include "race.hpp"

#include "cuda.hpp"
#include "elements.hpp"
#include "measure.hpp"

#include "softfold/softfold.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>

namespace softfold::cli {
namespace {

/// An input from this size on does not stay in the cache together with its result.
constexpr std::size_t kStreamedBytes = std::size_t{1} << 24;

std::string hash_of(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const std::byte b : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001B3U;
  return fmt::format("{:016x}", hash);
}

/// Where rows and results lie.
struct Place {
  const void* x;
  void* y;
  Device device;
};

Plan plan_of(Op op, const Data& d, const Place& at, Rung rung, double scale, const Context& context) {
  const std::int64_t full[] = {d.rows, d.n}, states[] = {d.rows, 4};
  const std::span<const std::int64_t> shape =
      op == Op::state ? std::span(states) : std::span(full).first(writes_all(op) ? 2 : 1);
  const View x(at.x, d.dtype, full, {}, at.device);
  const View y(at.y, op == Op::state ? DType::float64 : d.dtype, shape, {}, at.device);
  RowOptions options;
  options.scale = scale;
  options.rung = rung;
  return plan(op, {&x, 1}, {&y, 1}, options, context);
}

constexpr std::string_view name_of_rung(Rung rung) {
  constexpr std::string_view names[] = {"automatic", "naive", "safe", "online", "tiled", "fused"};
  return names[static_cast<int>(rung)];
}

/// Of all kernels' objections ("name: reason; name: reason") the one whose name is asked for; else all.
std::string objection(const std::string& all, const std::string& name) {
  const std::size_t at = all.find(name);
  if (at == std::string::npos) return all;
  const std::size_t begin = at + name.size();
  return all.substr(begin, all.find("; ", begin) - begin);
}

/// Of a plan that has run: what came out. `rung`: the kernel's name, or what names its rung.
Measured inspect(Op op, const Data& d, const Plan& plan, std::string_view rung) {
  Measured m;
  m.kernel = plan.kernel();
  m.traffic = traffic_of(op, rung, size_of(d.dtype), size_of(d.dtype));
  const std::size_t bytes = result_bytes(op, d);
  m.hash = hash_of({d.y.data(), bytes});
  const DType out = op == Op::state ? DType::float64 : d.dtype;
  const auto width = static_cast<std::int64_t>(bytes / size_of(out)) / d.rows;
  with_floating(out, [&]<class S>(S) {
    const auto* y = reinterpret_cast<const S*>(d.y.data());
    for (std::int64_t r = 0; r < d.rows; ++r, y += width)
      m.nan_rows += std::any_of(y, y + width, [](S v) { return std::isnan(fold::widen(v)); }) ? 1 : 0;
  });
  return m;
}

/// Of the runners' times, and their ceilings' behind them.
void find_turns(Race& race, const std::vector<std::vector<double>>& times) {
  const auto ran = std::count_if(race.runners.begin(), race.runners.end(),
                                 [](const auto& runner) { return runner.second.why_not.empty(); });
  const auto ceilings = std::span(times).subspan(static_cast<std::size_t>(ran));
  race.ceiling = median_turn(ceilings[0], ceilings).ceiling;
  std::size_t next = 0;
  for (auto& [name, m] : race.runners)
    if (m.why_not.empty()) m.turn = median_turn(times[next++], ceilings);
}

}  // namespace

std::size_t result_bytes(Op op, const Data& d) {
  const auto rows = static_cast<std::size_t>(d.rows);
  return op == Op::state ? rows * 32 : writes_all(op) ? d.x_bytes : rows * size_of(d.dtype);
}

Race race_here(const Racing& racing, const Data& d, Executor& executor) {
  const Op op = racing.op;
  Race race{d.rows, d.n, 0, {}};
  std::vector<Timed> work;
  for (const Rung rung : racing.rungs) {
    Measured m;
    try {
      const Plan plan = plan_of(op, d, {d.x.data(), d.y.data(), {}}, rung, racing.scale, {&executor, nullptr, nullptr});
      plan.run();
      m = inspect(op, d, plan, plan.kernel());
      work.push_back(by_the_clock([plan] { plan.run(); }));
    } catch (const Error& error) {
      if (rung == Rung::automatic) throw;  // nothing else to race
      m.why_not = objection(error.allowed, fmt::format("{}_{}: ", name_of(op), name_of_rung(rung)));
    }
    race.runners.emplace_back(name_of_rung(rung), std::move(m));
  }
  if (writes_all(op)) {
    // Stores past the cache throw y out of it, and whoever comes next would pay for that.
    if (d.x_bytes >= kStreamedBytes)
      work.push_back(by_the_clock([&] { streaming_copy(executor, d.y.data(), d.x.data(), d.x_bytes); }));
    work.push_back(by_the_clock([&] { plain_copy(executor, d.y.data(), d.x.data(), d.x_bytes); }));
  } else {
    work.push_back(by_the_clock([&] { pure_read(executor, d.x.data(), d.x_bytes); }));
  }
  find_turns(race, take_turns(work, racing.seconds));
  return race;
}

Race race_on_gpu(const Racing& racing, const Data& d) {
  const Op op = racing.op;
  constexpr double shortest = 2e-4;  // seconds between two events: launching the first replay counts for little
  CudaTrack track({d.x.data(), d.x_bytes}, d.y_bytes);
  const Place place{track.x(), track.y(), {DeviceKind::cuda, 0}};
  Race race{d.rows, d.n, 0, {}};
  std::vector<Timed> work;
  for (const Rung rung : racing.rungs) {
    Measured m;
    const std::string name = fmt::format("{}_{}", name_of(op), name_of_rung(rung));
    try {
      const Plan plan = track.plan([&](const Context& c) { return plan_of(op, d, place, rung, racing.scale, c); });
      track.run(plan, {d.y.data(), d.x_bytes});
      m = inspect(op, d, plan, name);
      work.push_back(track.timed(plan));
    } catch (const Error& error) {
      if (rung == Rung::automatic || error.code == Code::device) throw;
      m.why_not = objection(error.allowed, name + ": ");
    }
    race.runners.emplace_back(name_of_rung(rung), std::move(m));
  }
  work.push_back(track.timed_copy(d.x_bytes));
  find_turns(race, take_turns(work, racing.seconds, shortest));
  return race;
}

}  // namespace softfold::cli
