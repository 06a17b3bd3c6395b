// softfold bench ladder | softmax | log-softmax | logsumexp | state [FILE]
#include "arguments.hpp"
#include "bench_attention.hpp"
#include "blocks.hpp"
#include "cuda.hpp"
#include "elements.hpp"
#include "machine.hpp"
#include "race.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include "softfold/lift/stream.hpp"
#include "softfold/softfold.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

namespace softfold::cli {
namespace {

/// Values as scores have them: within +-12 or so, most of them small.
void fill(std::byte* x, DType dtype, std::int64_t count) {
  with_floating(dtype, [&]<class S>(S) {
    auto* const to = reinterpret_cast<S*>(x);
    std::uint32_t state = 1;
    const auto next = [&] {
      return static_cast<double>((state = state * 1664525U + 1013904223U) >> 8) * 0x1p-24 - 0.5;
    };
    for (std::int64_t i = 0; i < count; ++i) to[i] = fold::narrow<S>(6 * (next() + next() + next() + next()));
  });
}

/// Refuses what every rung would: a race of none.
void check_scale(DType dtype, double scale) {
  with_floating(dtype, [&]<class S>(S) { lift::checked_scale<fold::FoldType<S>>(scale); });
}

struct BenchVerb {
  std::vector<std::string> words;
  std::string op_text, n_text, dtype_text, backend = "cpu", jsonl, commit;
  std::int64_t rows = 0;
  std::optional<std::int64_t> heads, head_dim;
  int threads = 0;
  double scale = 1, seconds = 0.3;
  bool json = false, causal = false;
  InputOptions reading;

  void declare(Command& command) {
    command.positionals("WHAT", words,
                        "ladder, softmax, log-softmax, logsumexp or state; then optionally a file's rows");
    command.option("--op", op_text, "what the ladder computes; default softmax");
    command.option("--n", n_text, "without a file: row lengths, as 1024,128K; default 1024,8192,131072");
    command.option("--rows", rows, "without a file: rows of each; default as many as make 64 MB, on a GPU 256 MB",
                   Among{0});
    command.option("--dtype", dtype_text, "without a file: float32, float64, float16, bfloat16; default float32");
    command.option("--scale", scale, "every element is multiplied by it; 1000 lets naive overflow");
    declare_threads(command, threads);
    command.option("--backend", backend, "where softmax and log-softmax are raced: cpu or cuda; default cpu");
    command.option("--seconds", seconds, "about how long each is measured; default 0.3");
    command.option("--jsonl", jsonl, "append one record a line to this file");
    command.option("--commit", commit, "what the records say about the code");
    command.option("--heads", heads, "of attention, whose lengths are --n: heads; default 1", Among{1, 4096});
    command.option("--d", head_dim, "of attention: D; default 64", Among{1, 512});
    command.flag("--causal", causal, "of attention");
    command.flag("--json", json, "print the records as a list");
    reading.declare(command);
    command.footer(
        "Times are of the median of many turns, each with a copy of the same bytes (logsumexp, state: a read).");
  }

  void run() const;
  void run_attention() const;
  void check_kind(bool ladder, Op op) const;
  DType dtype() const { return dtype_text.empty() ? DType::float32 : parse_dtype(dtype_text); }
  std::vector<std::int64_t> lengths() const;
  std::vector<Data> data() const;
  std::ofstream records_file() const;
  void write(const std::vector<Json>& all, std::ofstream& file) const;
  [[noreturn]] void refuse_records_file() const;
  bool on_gpu() const { return parse_backend(backend) == DeviceKind::cuda; }
  std::vector<Json> records(Op op, const Race& race, const Data& d, int concurrency) const;
  void tell(Op op, const Race& race, const Data& d) const;
};

std::vector<std::int64_t> BenchVerb::lengths() const {
  if (n_text.empty()) return {1024, 8192, 131072};
  std::vector<std::int64_t> all;
  for (std::size_t at = 0; at != std::string::npos;) {
    const std::size_t comma = n_text.find(',', at);
    const std::optional<std::int64_t> n = parse_count(std::string_view(n_text).substr(at, comma - at));
    at = comma == std::string::npos ? comma : comma + 1;
    if (!n)
      throw Error(Code::option, fmt::format("--n {}", n_text),
                  "row lengths joined by commas, as 1024,131072 or 1K,128K", "--n 1024,8192");
    all.push_back(*n);
  }
  return all;
}

/// Every rung in a process of its own: before this one has threads.
void BenchVerb::run_attention() const {
  if (rows != 0 || scale != 1 || on_gpu())
    throw Error(Code::option, "--rows, --scale or --backend of attention", "--heads, --n, --d, --causal",
                "leave them out");
  std::ofstream file = records_file();
  const AttentionRace race{lengths(), heads.value_or(1), head_dim.value_or(64), dtype(), causal, threads, seconds};
  for (const std::int64_t n : race.lengths)
    if (n < 1 || n > 1 << 20)
      throw Error(Code::option, fmt::format("--n {} of attention", n), "1 .. 1048576", "--n 2048");
  const std::vector<Json> all = race_attention(race, commit);
  if (!json) tell_attention(race, all);
  write(all, file);
}

/// The records' file first: where it cannot be written, a refusal is all that --json prints.
void BenchVerb::write(const std::vector<Json>& all, std::ofstream& file) const {
  if (!jsonl.empty()) {
    for (const Json& record : all) file << record.dump() << '\n';
    file.flush();
    if (!file) refuse_records_file();
  }
  if (json) print(all);
}

std::vector<Data> BenchVerb::data() const {
  if (words.size() == 2)
    for (const auto& [given, name] :
         {std::pair{!n_text.empty(), "--n"}, {rows != 0, "--rows"}, {!dtype_text.empty(), "--dtype"}})
      if (given)
        throw Error(Code::option, fmt::format("{} of the rows in '{}'", name, words[1]),
                    "the file's own, read as --tensor and --as say", fmt::format("leave out {}", name));
  const auto make = [this](DType type, std::int64_t m, std::int64_t n) {
    std::int64_t bytes = 0;
    if (m < 1 || n < 1 || __builtin_mul_overflow(m, n, &bytes) ||
        __builtin_mul_overflow(bytes, static_cast<std::int64_t>(size_of(type)), &bytes) ||
        bytes > machine().available_memory / 3)
      throw Error(Code::option, fmt::format("{} of {}", counted(m, "row"), n),
                  "at least one row of at least one element, in a third of the free memory",
                  words.size() == 2 ? "another file" : "--rows 1 --n 1024");
    const auto size = static_cast<std::size_t>(bytes), room = std::max(size, static_cast<std::size_t>(m) * 32);
    return Data{type, m, n, Buffer(size), Buffer(room), size, room};
  };
  std::vector<Data> all;
  if (words.size() == 2) {
    const io::ArrayFile file = reading.open_floating(words[1]);
    const Geometry g = geometry_of(file.shape(), -1);
    all.push_back(make(file.dtype(), g.outer, g.n));
    file.read(0, {all[0].x.data(), all[0].x_bytes});
    return all;
  }
  for (const std::int64_t n : lengths()) {
    const std::int64_t fitting = (std::int64_t{on_gpu() ? 256 : 64} << 20) /
                                 static_cast<std::int64_t>(size_of(dtype())) / std::max<std::int64_t>(1, n);
    all.push_back(make(dtype(), rows > 0 ? rows : std::max<std::int64_t>(1, fitting), n));
    fill(all.back().x.data(), dtype(), all.back().rows * n);
  }
  return all;
}

/// Refuses what would be left out: options of another kind of benchmark, files that nothing reads.
void BenchVerb::check_kind(bool ladder, Op op) const {
  const bool attention = op == Op::attention;
  if (words.size() > (attention ? 1 : 2))
    throw Error(Code::usage, fmt::format("bench {}{}", fmt::join(words, " "), attention ? " --op attention" : ""),
                attention ? "no file: attention's operands are made up" : "at most one file", "softfold bench ladder");
  if (!ladder && !op_text.empty())
    throw Error(Code::option, fmt::format("--op {} of bench {}", op_text, words[0]), "--op of bench ladder",
                "softfold bench ladder --op " + op_text);
  const bool file = words.size() == 2;
  for (const auto& [given, name] : {std::pair{!reading.tensor.empty(), "--tensor"}, {!reading.as.empty(), "--as"}})
    if (given && !file)
      throw Error(Code::option, fmt::format("{} without a file", name), "it says how a file is read",
                  fmt::format("softfold bench {} FILE {} ...", words[0], name));
  for (const auto& [given, name] :
       {std::pair{heads.has_value(), "--heads"}, {head_dim.has_value(), "--d"}, {causal, "--causal"}})
    if (given && !attention)
      throw Error(Code::option, fmt::format("{} of bench {}", name, words[0]), "bench ladder --op attention has it",
                  fmt::format("leave out {}", name));
}

void BenchVerb::run() const {
  static constexpr std::string_view kinds[] = {"ladder", "softmax", "log-softmax", "logsumexp", "state"};
  if (!(seconds >= 0) || !(seconds <= 3600))
    throw Error(Code::option, fmt::format("--seconds {}", seconds), "0 .. 3600", "--seconds 0.3");
  const bool ladder = parse_word(words[0], "benchmark", kinds) == 0;
  static constexpr Op raced[] = {Op::softmax, Op::log_softmax, Op::logsumexp, Op::state, Op::attention};
  const Op op = ladder ? op_text.empty() ? Op::softmax : parse_op(op_text, raced) : parse_op(words[0]);
  check_kind(ladder, op);
  if (op == Op::attention) return run_attention();
  if (on_gpu() && !writes_all(op))
    throw Error(Code::unsupported, fmt::format("bench {} --backend cuda", words[0]), "softmax, log-softmax",
                "--backend cpu");
  Racing racing{op, {Rung::automatic}, scale, seconds};
  if (ladder) racing.rungs = {Rung::naive, Rung::safe, Rung::online, Rung::tiled, Rung::fused};
  const Workers workers(threads);
  const std::vector<Data> inputs = data();
  for (const Data& d : inputs) check_scale(d.dtype, scale);
  std::ofstream file = records_file();
  std::vector<Json> all;
  for (const Data& d : inputs) {
    const Race result = on_gpu() ? race_on_gpu(racing, d) : race_here(racing, d, workers.executor());
    for (const Json& record : records(op, result, d, workers.threads())) all.push_back(record);
    if (!json) tell(op, result, d);
  }
  if (ladder && !json)
    fmt::print("naive, safe and online add in orders of their own: their bits may differ from the others'.\n");
  write(all, file);
}

void BenchVerb::refuse_records_file() const {
  throw Error(Code::io, fmt::format("the records' file '{}'", jsonl), "a file that can be written", "another folder");
}

/// Opened before anything is measured, and never the array that is.
std::ofstream BenchVerb::records_file() const {
  if (jsonl.empty()) return {};
  std::error_code no_such_file;
  if (words.size() == 2 && std::filesystem::equivalent(words[1], jsonl, no_such_file))
    throw Error(Code::option, fmt::format("--jsonl {}, the same file as the input '{}'", jsonl, words[1]),
                "a new file, or one of records", "--jsonl records.jsonl");
  std::ofstream file(jsonl, std::ios::app);
  if (!file) refuse_records_file();
  return file;
}

std::vector<Json> BenchVerb::records(Op op, const Race& race, const Data& d, int concurrency) const {
  const Machine m = machine();
  const CudaFound gpu = on_gpu() ? find_cuda() : CudaFound();
  const auto milliseconds = [](double s) { return std::round(s * 1e7) / 1e4; };
  std::vector<Json> list;
  for (const auto& [name, r] : race.runners) {
    Json record{{"op", name_of(op)},
                {"dtype", name_of(d.dtype)},
                {"shape", {race.rows, race.n}},
                {"case", on_gpu() ? "graph replays" : fmt::format("{} threads", concurrency)},
                {"who", r.kernel.empty() ? fmt::format("softfold:{}_{}", name_of(op), name) : "softfold:" + r.kernel},
                {"ms", r.why_not.empty() ? Json(milliseconds(r.turn.seconds)) : Json()},
                {"bytes", d.x_bytes + result_bytes(op, d)},
                {"flops", nullptr},
                {"copy_ms", milliseconds(r.why_not.empty() ? r.turn.ceiling : race.ceiling)},
                {"bits", r.why_not.empty() ? Json(r.hash) : Json()},
                {"device", on_gpu() ? gpu.devices.at(0).name : fmt::format("{}, {} processors", m.cpu, m.processors)},
                {"driver", on_gpu() ? "CUDA " + gpu.driver : m.system},
                {"commit", commit.empty() ? Json() : Json(commit)},
                {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))}};
    if (r.traffic) {
      record.set("reads", r.traffic->reads);
      record.set("bytes_per_element", r.traffic->bytes_per_element);
    }
    if (!r.why_not.empty()) record.set("why", r.why_not);
    record.set("nan_rows", r.nan_rows);
    list.push_back(record);
  }
  return list;
}

void BenchVerb::tell(Op op, const Race& race, const Data& d) const {
  const double ideal = static_cast<double>(d.x_bytes + result_bytes(op, d));
  fmt::print("{} of {} x {} {}, scale {}; {} takes {:.3g} ms, {}/s\n", name_of(op), race.rows, race.n, name_of(d.dtype),
             scale, writes_all(op) ? "a copy" : "a read", race.ceiling * 1e3, human_bytes(ideal / race.ceiling));
  fmt::print("{:<10}{:>6}{:>10}{:>11}{:>12}{:>11}{:>9}   {}\n", "", "reads", "B/element", "ms", "moved",
             writes_all(op) ? "copy, ms" : "read, ms", writes_all(op) ? "of copy" : "of read", "result");
  // There a read is no ceiling: it is bound by instructions, as what is raced beside it.
  const bool in_cache = !writes_all(op) && static_cast<std::int64_t>(d.x_bytes) <= machine().cache();
  std::map<std::string, std::string> absent;  // why, and which: one line for all of one reason
  for (const auto& [name, r] : race.runners) {
    if (!r.why_not.empty()) {
      std::string& names = absent[r.why_not];
      names += (names.empty() ? "" : ", ") + name;
      continue;
    }
    const auto count = static_cast<double>(race.rows) * static_cast<double>(race.n);
    const std::string moved =
        r.traffic ? human_bytes(r.traffic->bytes_per_element * count / r.turn.seconds) + "/s" : "";
    const std::string result = r.nan_rows > 0 ? fmt::format("NaN in {} of {} rows", r.nan_rows, race.rows) : r.hash;
    const std::string share = in_cache ? "in cache" : fmt::format("{:.0f}%", 100 * r.turn.ceiling / r.turn.seconds);
    fmt::print("{:<10}{:>6}{:>10}{:>11.3f}{:>12}{:>11.3f}{:>9}   {}\n", name,
               r.traffic ? fmt::to_string(r.traffic->reads) : "",
               r.traffic ? fmt::to_string(r.traffic->bytes_per_element) : "", r.turn.seconds * 1e3, moved,
               r.turn.ceiling * 1e3, share, result);
  }
  for (const auto& [why, names] : absent) fmt::print("not here: {}: {}\n", names, why);
  fmt::print("\n");
}

}  // namespace

void add_bench(Program& program) {
  program.add<BenchVerb>("bench", "times beside a copy of the same bytes: the ladder of algorithms, or one operation");
}

}  // namespace softfold::cli
