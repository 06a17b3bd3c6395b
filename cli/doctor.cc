// softfold doctor
#include "arguments.hpp"
#include "fabricated.hpp"
#include "machine.hpp"
#include "report.hpp"
#include "self_test.hpp"
#include "verbs.hpp"

#include "cpu/targets.hpp"
#include "softfold/softfold.hpp"

#include <fmt/format.h>

namespace softfold::cli {
namespace {

/// Something that may be there: empty `why_not` if it is.
struct Part {
  std::string name, why_not;
};

Part part_of(const std::string& name, const std::function<void()>& attempt) {
  try {
    attempt();
    return {name, ""};
  } catch (const Error& error) {
    return {name, error.allowed + (error.fix.empty() ? "" : "; try: " + error.fix)};
  }
}

void plan_tiny(Op op, DeviceKind device) {
  const Fabricated o(op, {2, 8}, -1, DType::float32, DType::float32, {device, 0});
  if (op == Op::attention) {
    plan(op, o.inputs(), o.outputs(), AttentionOptions{});
  } else {
    plan(op, o.inputs(), o.outputs(), RowOptions{});
  }
}

/// Every kernel of linear_cross_entropy says why it cannot, by name: of these, one reason.
Part find_cublas(const CudaFound& cuda) {
  constexpr const char* name = "cuBLASLt";
  if (cuda.targets.empty()) return {name, "compiled without CUDA"};
  try {
    plan_tiny(Op::linear_cross_entropy, DeviceKind::cuda);
    return {name, ""};
  } catch (const Error& error) {
    const std::size_t begin = error.allowed.find(": ");
    if (error.code != Code::unsupported || begin == std::string::npos) return {name, error.got};
    return {name, error.allowed.substr(begin + 2, error.allowed.find("; ") - begin - 2)};
  }
}

std::vector<std::string_view> operations() {
  std::vector<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(kLastOp); ++i) {
    const Op op = static_cast<Op>(i);
    if (part_of("", [op] { plan_tiny(op, DeviceKind::cpu); }).why_not.empty()) names.push_back(name_of(op));
  }
  return names;
}

/// All that is looked at, before any of it is told.
struct Findings {
  std::vector<Part> backends;
  CudaFound cuda;
  std::vector<SelfTest> tests;
  std::size_t wrong = 0;
};

Findings examine() {
  Findings f;
  f.tests = self_test();
  f.cuda = find_cuda();
  if (f.cuda.why_not.empty()) {
    try {
      CudaDevice device;
      const std::vector<SelfTest> there = self_test_on(device);
      f.tests.insert(f.tests.end(), there.begin(), there.end());
    } catch (const Error& error) {
      f.cuda.why_not = "its self-test ended with " + error.got;
    }
  }
  f.backends = {part_of("cpu", [] { plan_tiny(Op::softmax, DeviceKind::cpu); }),
                part_of("oneTBB", [] { make_tbb_executor(1); }),
                find_cublas(f.cuda),
                {"cuda", f.cuda.why_not}};
  for (const SelfTest& t : f.tests) f.wrong += t.hash != t.expected ? 1 : 0;
  return f;
}

struct DoctorVerb {
  bool json = false;

  void declare(Command& command) {
    command.flag("--json", json, "print an object");
    command.footer("Exit status 14 if a result has other bits than it must have.");
  }

  void run() const {
    const Findings f = examine();
    if (json) {
      print(as_json(f));
    } else {
      tell(f);
    }
    if (f.wrong > 0)
      throw Error(Code::verification, fmt::format("{} of {} results with other bits", f.wrong, f.tests.size()),
                  fmt::format("the bits of definition {}", bits_version()),
                  "report it with the output of softfold doctor --json");
  }

  Json as_json(const Findings& f) const;
  void tell(const Findings& f) const;
};

Json cuda_as_json(const CudaFound& cuda) {
  Json devices = Json::array();
  for (const auto& d : cuda.devices)
    devices.push_back({{"name", d.name},
                       {"architecture", d.architecture},
                       {"processors", d.processors},
                       {"memory", d.memory},
                       {"available_memory", d.free_memory}});
  const auto text = [](const std::string& t) { return t.empty() ? Json() : Json(t); };
  return {{"compiled_for", text(cuda.targets)},
          {"runtime", text(cuda.runtime)},
          {"driver", text(cuda.driver)},
          {"devices", devices}};
}

Json DoctorVerb::as_json(const Findings& f) const {
  const Machine m = machine();
  Json parts = Json::object(), cases = Json::array();
  for (const Part& p : f.backends) parts.set(p.name, p.why_not.empty() ? Json(true) : Json(p.why_not));
  for (const SelfTest& t : f.tests)
    cases.push_back({{"target", t.target},
                     {"case", t.case_name},
                     {"hash", fmt::format("{:016x}", t.hash)},
                     {"expected", fmt::format("{:016x}", t.expected)}});
  return {{"version", version()},
          {"bits_version", bits_version()},
          {"compiler", __VERSION__},
          {"cpu", m.cpu},
          {"processors", m.processors},
          {"threads", default_executor().concurrency()},
          {"caches", {{"l1", m.l1}, {"l2", m.l2}, {"l3", m.l3}}},
          {"memory", m.memory},
          {"available_memory", m.available_memory},
          {"system", m.system},
          {"simd", {{"used", cpu::current_target()}, {"available", cpu::targets()}}},
          {"backends", parts},
          {"cuda", cuda_as_json(f.cuda)},
          {"operations", operations()},
          {"self_test", {{"results", f.tests.size()}, {"wrong", f.wrong}, {"cases", cases}}}};
}

void DoctorVerb::tell(const Findings& f) const {
  const Machine m = machine();
  const auto size = [](std::int64_t bytes) {
    return bytes == 0        ? std::string("?")
           : bytes < 1 << 20 ? fmt::format("{}K", bytes >> 10)
                             : fmt::format("{}M", bytes >> 20);
  };
  fmt::print("softfold    {}, bits {}, compiled by {} {}\n", version(), bits_version(),
#if defined(__clang__)
             "clang",
#else
             "g++",
#endif
             __VERSION__);
  fmt::print("machine     {}, {} processors, caches {} {} {}, {} of {} memory free, {}\n", m.cpu, m.processors,
             size(m.l1), size(m.l2), size(m.l3), size(m.available_memory), size(m.memory), m.system);
  fmt::print("SIMD        {} (runs here: {})\n", cpu::current_target(), fmt::join(cpu::targets(), ", "));
  fmt::print("threads     {}\n", default_executor().concurrency());
  for (const Part& p : f.backends) fmt::print("{:<12}{}\n", p.name, p.why_not.empty() ? "yes" : "no: " + p.why_not);
  if (!f.cuda.targets.empty())
    fmt::print("{:<12}compiled for sm_{}, CUDA {}; driver {}\n", "", f.cuda.targets, f.cuda.runtime,
               f.cuda.driver.empty() ? "none" : f.cuda.driver);
  for (const auto& d : f.cuda.devices)
    fmt::print("{:<12}{}, {}, {} processors, {} of {} memory free\n", "", d.name, d.architecture, d.processors,
               size(static_cast<std::int64_t>(d.free_memory)), size(static_cast<std::int64_t>(d.memory)));
  fmt::print("operations  {}\n", fmt::join(operations(), ", "));
  for (const SelfTest& t : f.tests)
    if (t.hash != t.expected)
      fmt::print("WRONG       {} on {}: {:016x}, must be {:016x}\n", t.case_name, t.target, t.hash, t.expected);
  fmt::print("self-test   {} results on {} SIMD targets{} against known bits: {}\n", f.tests.size(),
             cpu::targets().size(), f.cuda.why_not.empty() ? " and the GPU" : "",
             f.wrong == 0 ? "all right" : fmt::format("{} WRONG", f.wrong));
}

}  // namespace

void add_doctor(Program& program) {
  program.add<DoctorVerb>("doctor", "this machine, what softfold finds on it, and a self-test against known bits");
}

}  // namespace softfold::cli
