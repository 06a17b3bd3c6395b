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
#include <filesystem>

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
  plan(op, o.inputs(), o.outputs(), RowOptions{});
}

std::vector<Part> backends() {
  std::vector<Part> parts{part_of("cpu", [] { plan_tiny(Op::softmax, DeviceKind::cpu); }),
                          part_of("oneTBB", [] { make_tbb_executor(1); }),
                          part_of("cuda", [] { plan_tiny(Op::softmax, DeviceKind::cuda); })};
  if (parts[2].why_not.empty() && !std::filesystem::exists("/dev/nvidiactl"))
    parts[2].why_not = "built, but this machine has no NVIDIA driver (/dev/nvidiactl)";
  return parts;
}

std::vector<std::string_view> operations() {
  std::vector<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Op::attention); ++i) {
    const Op op = static_cast<Op>(i);
    if (part_of("", [op] { plan_tiny(op, DeviceKind::cpu); }).why_not.empty()) names.push_back(name_of(op));
  }
  return names;
}

struct DoctorVerb {
  bool json = false;

  void declare(Command& command) {
    command.flag("--json", json, "print an object");
    command.footer("Exit status 14 if a result has other bits than it must have.");
  }

  void run() const {
    const std::vector<SelfTest> tests = self_test();
    std::size_t wrong = 0;
    for (const SelfTest& t : tests) wrong += t.hash != t.expected ? 1 : 0;
    if (json) {
      print(as_json(tests, wrong));
    } else {
      tell(tests, wrong);
    }
    if (wrong > 0)
      throw Error(Code::verification, fmt::format("{} of {} results with other bits", wrong, tests.size()),
                  fmt::format("the bits of definition {}", bits_version()),
                  "report it with the output of softfold doctor --json");
  }

  Json as_json(const std::vector<SelfTest>& tests, std::size_t wrong) const;
  void tell(const std::vector<SelfTest>& tests, std::size_t wrong) const;
};

Json DoctorVerb::as_json(const std::vector<SelfTest>& tests, std::size_t wrong) const {
  const Machine m = machine();
  Json parts = Json::object(), cases = Json::array();
  for (const Part& p : backends()) parts[p.name] = p.why_not.empty() ? Json(true) : Json(p.why_not);
  for (const SelfTest& t : tests)
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
          {"operations", operations()},
          {"self_test", {{"results", tests.size()}, {"wrong", wrong}, {"cases", cases}}}};
}

void DoctorVerb::tell(const std::vector<SelfTest>& tests, std::size_t wrong) const {
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
  for (const Part& p : backends()) fmt::print("{:<12}{}\n", p.name, p.why_not.empty() ? "yes" : "no: " + p.why_not);
  fmt::print("operations  {}\n", fmt::join(operations(), ", "));
  for (const SelfTest& t : tests)
    if (t.hash != t.expected)
      fmt::print("WRONG       {} on {}: {:016x}, must be {:016x}\n", t.case_name, t.target, t.hash, t.expected);
  fmt::print("self-test   {} results on {} SIMD targets against known bits: {}\n", tests.size(), cpu::targets().size(),
             wrong == 0 ? "all right" : fmt::format("{} WRONG", wrong));
}

}  // namespace

void add_doctor(Program& program) {
  program.add<DoctorVerb>("doctor", "this machine, what softfold finds on it, and a self-test against known bits");
}

}  // namespace softfold::cli
