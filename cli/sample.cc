// softfold sample IN TOKENS
#include "arguments.hpp"
#include "blocks.hpp"
#include "compute.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include "softfold/softfold.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace softfold::cli {
namespace {

/// The scales of a fold in float32, without 0 and what is below.
constexpr double kLeastScale = 8.2e-39, kMostScale = 2.35e38;
Said said_of_scales() {
  return {fmt::format("a positive number, {} .. {}", kLeastScale, kMostScale),
          "--scale 1, or --temperature 0 for the largest element"};
}

struct SampleVerb {
  std::string input, tokens, log_probabilities, top_tokens, top_log_probabilities, order = "vllm", of;
  std::int64_t top = 0;
  SampleOptions options;
  InputOptions reading;
  RunOptions running;

  void declare(Command& command) {
    command.positional("IN", input, "logits (..., n): one element of each row is drawn");
    command.positional("TOKENS", tokens, "where they stand, int64, one a row");
    command.positional("LP", log_probabilities, "their log-probabilities, float32, if wanted", false);
    command.option("--temperature", options.temperature, "logits are divided by it; 0 takes the largest; default 1");
    command.option("--top-k", options.top_k, "only the k largest; default 0: all", Among{0});
    command.option("--top-p", options.top_p, "only the fewest largest with this share of the probability; default 1");
    command.option("--min-p", options.min_p, "only those at least this probable beside the largest; default 0");
    command.option("--order", order, "vllm (min-p first) or hugging-face (min-p last); default vllm");
    command.option("--of", of,
                   "log-probabilities of the raw logits, or of what was sampled from: raw, sampled; default raw");
    command.option("--top-logprobs", top, "of each row, best first, the N largest tokens and log-probabilities",
                   Among{0});
    command.option("--top-tokens", top_tokens, "where these tokens go: (..., N), int64");
    command.option("--top-lp", top_log_probabilities, "and their log-probabilities: (..., N), float32");
    command.option("--seed", options.seed, "of the draws: 0 .. 2^64 - 1; default 0");
    command.option("--offset", options.offset, "which draw of this seed: 0 .. 2^64 - 1; default 0");
    command.option("--scale", options.rows.scale, "of the logits, beside the temperature; default 1", said_of_scales());
    reading.declare(command);
    running.declare(command);
    command.footer("The same seed and offset draw the same, whatever the threads and --memory.");
  }

  void run() const;
  Needs needs(const Geometry& g, std::size_t element, const Room& room) const;
};

/// The files that are written: those not asked for are absent.
struct Drawn {
  std::optional<io::ArrayOutput> tokens, lp, top_tokens, top_lp;
  std::int64_t top;
  std::int64_t without_token = 0;  ///< rows from which nothing can be drawn: their token is -1

  void commit() {
    std::vector<io::ArrayOutput*> given;
    for (auto* file : {&tokens, &lp, &top_tokens, &top_lp})
      if (*file) given.push_back(&**file);
    io::commit_all(given);
  }
};

/// Draws from every row of `file`, a box of whole rows at a time.
void draw(const io::ArrayFile& file, const Schedule& s, const SampleOptions& o, const Compute& compute, Drawn& to) {
  const Geometry g = geometry_of(file.shape(), -1), rows{g.rows(), g.n, 1}, one{g.rows(), 1, 1},
                 some{g.rows(), to.top, 1};
  const std::size_t element = size_of(file.dtype());
  const Boxes boxes(rows, s);
  const auto bytes = [](std::int64_t count, std::size_t size) { return static_cast<std::size_t>(count) * size; };
  if (boxes.empty()) return;
  const Slots in(s.slots, bytes(boxes[0].elements(), element)), at(s.slots, bytes(boxes[0].outers, 8));
  const Slots logs(s.slots, bytes(boxes[0].outers, sizeof(float)));
  const Slots top(s.slots, bytes(boxes[0].outers * to.top, 8)), top_logs(s.slots, bytes(boxes[0].outers * to.top, 4));
  std::vector<std::int64_t> ids(static_cast<std::size_t>(boxes[0].outers));
  Progress progress(file.bytes());
  run_steps(std::ssize(boxes), s.slots,
            {[&](std::int64_t i) {
               const Box& b = boxes[static_cast<std::size_t>(i)];
               read_box(file, rows, b, {in[i], bytes(b.elements(), element)});
             },
             [&](std::int64_t i) {
               if (g.n == 0 && i >= s.slots) return;  // rows of nothing are alike: no token
               const Box& b = boxes[static_cast<std::size_t>(i)];
               const std::int64_t whole[] = {b.outers, g.n}, per_row[] = {b.outers}, few[] = {b.outers, to.top};
               std::iota(ids.begin(), ids.end(), b.outer);  // a row draws by its place in the file
               SampleOptions here = o;
               here.row_ids = View(static_cast<const void*>(ids.data()), DType::int64, per_row);
               if (to.lp) here.log_probability = View(logs[i], DType::float32, per_row);
               if (to.top_tokens) here.top_tokens = View(top[i], DType::int64, few);
               if (to.top_lp) here.top_log_probabilities = View(top_logs[i], DType::float32, few);
               const View from(static_cast<const void*>(in[i]), file.dtype(), whole);
               const View drawn(at[i], DType::int64, per_row);
               compute.run(Op::sample, {&from, 1}, {&drawn, 1}, here);
               progress.add(bytes(b.elements(), element));
             },
             [&](std::int64_t i) {
               Box b = boxes[static_cast<std::size_t>(i)];
               b.columns = 1;
               const auto* const tokens = reinterpret_cast<const std::int64_t*>(at[i]);
               to.without_token += std::count(tokens, tokens + b.outers, std::int64_t{-1});
               write_box(*to.tokens, one, b, {at[i], bytes(b.outers, 8)});
               if (to.lp) write_box(*to.lp, one, b, {logs[i], bytes(b.outers, sizeof(float))});
               b.columns = to.top;
               if (to.top_tokens) write_box(*to.top_tokens, some, b, {top[i], bytes(b.elements(), 8)});
               if (to.top_lp) write_box(*to.top_lp, some, b, {top_logs[i], bytes(b.elements(), 4)});
             }});
}

/// A row has what is drawn from it, and its number, beside its logits: an element's share of that, at most. A thread
/// keeps an entry for each element that may be among the row's best, with --top-p one for each, and the row's nodes.
Needs SampleVerb::needs(const Geometry& g, std::size_t element, const Room& room) const {
  constexpr std::uint64_t entry = 16, spare = 600;
  const auto n = static_cast<std::uint64_t>(std::max<std::int64_t>(1, g.n));
  const auto best = static_cast<std::uint64_t>(std::clamp<std::int64_t>(options.top_k, top, std::max(top, g.n)));
  const std::uint64_t kept = std::min(n, 2 * best) + (options.top_p < 1 ? n : 0) + n / 512 + spare;
  const std::uint64_t row = 20 + 12 * static_cast<std::uint64_t>(top);
  const std::int64_t at_work = std::min<std::int64_t>(room.threads, g.rows());
  return {element, element + bytes_beside(row, g.n), room, static_cast<std::uint64_t>(at_work) * kept * entry};
}

void SampleVerb::run() const {
  constexpr std::string_view orders[] = {"vllm", "hugging-face"}, distributions[] = {"raw", "sampled"};
  SampleOptions o = options;
  o.order = static_cast<FilterOrder>(parse_word(order, "order", orders));
  if (!of.empty()) o.of = static_cast<Distribution>(parse_word(of, "distribution", distributions));
  if (!(o.rows.scale >= kLeastScale && o.rows.scale <= kMostScale))
    throw Error(Code::option, fmt::format("--scale {}", o.rows.scale), said_of_scales().allowed, said_of_scales().fix);
  const Compute compute(running);
  require_apart({tokens, log_probabilities, top_tokens, top_log_probabilities});
  if ((top == 0) != top_tokens.empty() || (top == 0) != top_log_probabilities.empty())
    throw Error(Code::option,
                fmt::format("--top-logprobs {} with {} of its files", top,
                            int{!top_tokens.empty()} + int{!top_log_probabilities.empty()}),
                "--top-logprobs N, --top-tokens and --top-lp together",
                "--top-logprobs 5 --top-tokens t.npy --top-lp p.npy");
  if (!of.empty() && log_probabilities.empty() && top == 0)
    throw Error(Code::option, fmt::format("--of {} without LP or --top-logprobs", of), "--of with LP or --top-logprobs",
                fmt::format("softfold sample IN TOKENS LP --of {}, or leave out --of", of));
  const io::ArrayFile file = reading.open(input, running.memory_bytes(), Elements::not_double);
  const Geometry g = geometry_of(file.shape(), -1);
  if (top > g.n)
    throw Error(Code::option, fmt::format("--top-logprobs {}", top), fmt::format("0 .. {}", g.n),
                fmt::format("--top-logprobs {}", g.n));
  compute.check_rows(Op::sample, {{file.dtype(), g.n}}, {{DType::int64}}, o);
  const Schedule s =
      make_row_schedule({g.rows(), g.n, 1}, needs(g, size_of(file.dtype()), compute.room(running.memory_bytes())));
  const std::vector<std::int64_t> shape(file.shape().begin(), file.shape().end() - 1);
  std::vector<std::int64_t> some = shape;
  some.push_back(top);
  Drawn drawn{{}, {}, {}, {}, top, 0};
  const auto create = [&](std::optional<io::ArrayOutput>& to, const std::string& path, const char* name, DType dtype,
                          const std::vector<std::int64_t>& dims) {
    if (!path.empty()) to.emplace(io::create_array(path, {name, dtype, dims}, {&file.file().id(), 1}));
  };
  create(drawn.tokens, tokens, "tokens", DType::int64, shape);
  create(drawn.lp, log_probabilities, "log_probabilities", DType::float32, shape);
  create(drawn.top_tokens, top_tokens, "top_tokens", DType::int64, some);
  create(drawn.top_lp, top_log_probabilities, "top_log_probabilities", DType::float32, some);
  const Stopwatch watch;
  draw(file, s, o, compute, drawn);
  file.file().check_unchanged();
  drawn.commit();
  if (running.json)
    return print({{"input", input},
                  {"shape", shape},
                  {"dtype", name_of(file.dtype())},
                  {"seed", o.seed},
                  {"rows_without_token", drawn.without_token},
                  {"backend", compute.backend()},
                  {"seconds", watch.seconds()},
                  {"peak_memory_bytes", peak_memory()}});
  fmt::print("one of each row of {} {} -> {} in {:.2f} s\n", text_of(file.shape()), name_of(file.dtype()),
             printable(tokens), watch.seconds());
  if (drawn.without_token > 0)
    fmt::print("token -1 in {} of {}: nothing can be drawn there\n", drawn.without_token, counted(g.rows(), "row"));
}

}  // namespace

void add_sample(Program& program) { program.add<SampleVerb>("sample", "an element of each row, drawn"); }

}  // namespace softfold::cli
