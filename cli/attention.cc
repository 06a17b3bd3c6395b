// softfold attention Q K V OUT
#include "attention_arguments.hpp"
#include "attention_reference.hpp"
#include "compute.hpp"
#include "elements.hpp"
#include "interrupt.hpp"
#include "measure.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include "softfold/io/array_output.hpp"
#include "softfold/plan.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

namespace softfold::cli {
namespace {

/// What is computed, in memory.
struct Work {
  AttentionOperands given;
  Loaded q, k, v, out;
  std::optional<Loaded> lse, state;

  std::vector<View> inputs() const { return {q.view(), k.view(), v.view()}; }
  void clear();
  double scores() const;
};

/// Of packed sequences: what a query sees that is in none of them, which no kernel writes.
void Work::clear() {
  std::ranges::fill(out.all(), std::byte{0});
  if (lse)
    with_floating(lse->dtype, [&]<class S>(S) {
      std::fill_n(reinterpret_cast<S*>(lse->bytes.data()), lse->count(), fold::narrow<S>(-fold::infinity<double>()));
    });
  if (!state) return;
  std::ranges::fill(state->all(), std::byte{0});
  with_floating(state->dtype, [&]<class S>(S) {
    for (std::int64_t i = 0; i < state->count(); i += state->shape.back())
      reinterpret_cast<S*>(state->bytes.data())[i] = fold::narrow<S>(-fold::infinity<double>());
  });
}

/// How many scores there would be, if they were there.
double Work::scores() const {
  const bool heads_first = given.options.layout == Layout::bhtd || q.shape.size() == 2;
  const auto tokens = [&](const Loaded& x) {
    return static_cast<double>(x.shape[x.shape.size() - (heads_first ? 2 : 3)]);
  };
  const double rows = static_cast<double>(q.count()) / static_cast<double>(q.shape.back());
  const auto* packed = std::get_if<Varlen>(&given.options.kv);
  if (packed == nullptr) return rows * tokens(k);
  double sum = 0;
  for (std::int64_t b = 0; b + 1 < packed->q_offsets.shape[0]; ++b) {
    const auto length = [b](const View& offsets) {
      return static_cast<double>(integer_at(offsets, b + 1) - integer_at(offsets, b));
    };
    sum += length(packed->q_offsets) * length(packed->kv_offsets);
  }
  return tokens(q) > 0 ? rows / tokens(q) * sum : 0;
}

/// What a run tells of itself.
struct Told {
  std::string kernel, backend;
  int threads;
  double seconds;
  std::uint64_t peak;
  std::optional<Checked> checked;
};

struct AttentionVerb {
  std::string q_path, k_path, v_path, out_path, lse_path, state_path, dtype;
  InputOptions q_reading, k_reading, v_reading;
  AttentionArguments arguments;
  RunOptions running;
  bool check = false;

  void declare(Command& command);
  void run() const;
  Work load() const;
  std::vector<io::ArrayOutput> create(const Work& work) const;
  void write(const Work& work, std::vector<io::ArrayOutput>& files) const;
  void tell(const Work& work, const Told& told) const;
};

void AttentionVerb::declare(Command& command) {
  command.positional("Q", q_path, "queries, .npy or .safetensors: (B, H, T, D), (H, T, D) or (T, D)");
  command.positional("K", k_path, "keys: (B, Hkv, S, D); query head h reads key head h / (H / Hkv)");
  command.positional("V", v_path, "values: (B, Hkv, S, Dv)");
  command.positional("OUT", out_path, "the result: its ending, .npy or .safetensors, decides the format");
  q_reading.declare(command, "q");
  k_reading.declare(command, "k");
  v_reading.declare(command, "v");
  arguments.declare(command);
  command.option("--lse", lse_path, "write the scores' logsumexp there, (B, H, T)");
  command.option("--state", state_path, "write each row's m, d and o there, (B, H, T, 2 + Dv)");
  command.option("--dtype", dtype, "of the result: the input's (default) or float32");
  command.flag("--check", check, "compare with the same attention, its scores materialised in float64");
  running.declare(command, false);
  command.footer(
      "--sink, --bias, --mask, --slopes, --lengths, --starts, --index and the offsets take FILE or\n"
      "FILE.safetensors:TENSOR; all but --bias and --mask also numbers, as --lengths 17,5.");
}

Work AttentionVerb::load() const {
  io::ArrayFile q = q_reading.open_floating(q_path), k = k_reading.open_floating(k_path),
                v = v_reading.open_floating(v_path);
  std::vector<std::int64_t> shape(q.shape().begin(), q.shape().end());
  if (!shape.empty() && !v.shape().empty()) shape.back() = v.shape().back();
  Work w{AttentionOperands(arguments),
         Loaded(q),
         Loaded(k),
         Loaded(v),
         Loaded(dtype.empty() ? q.dtype() : parse_dtype(dtype), shape),
         {},
         {}};
  std::vector<std::int64_t> rows(shape.begin(), shape.end() - (shape.empty() ? 0 : 1));
  if (w.given.options.layout == Layout::bthd && rows.size() >= 2)
    std::swap(rows[rows.size() - 1], rows[rows.size() - 2]);
  const DType folded = q.dtype() == DType::float64 ? DType::float64 : DType::float32;
  if (!lse_path.empty()) w.given.options.lse = w.lse.emplace(folded, rows).view();
  if (!state_path.empty()) {
    rows.push_back(2 + (shape.empty() ? 0 : shape.back()));
    w.given.options.state = w.state.emplace(folded, rows).view();
  }
  if (std::holds_alternative<Varlen>(w.given.options.kv)) w.clear();
  for (io::ArrayFile* file : {&q, &k, &v}) w.given.files.push_back(std::move(*file));
  return w;
}

std::vector<io::ArrayOutput> AttentionVerb::create(const Work& w) const {
  require_apart({out_path, lse_path, state_path});
  const std::vector<io::FileId> read = ids_of(w.given.files);
  std::vector<io::ArrayOutput> files;
  const auto add = [&](const std::string& path, const char* name, const Loaded& from) {
    files.push_back(io::create_array(path, {name, from.dtype, from.shape}, read));
  };
  add(out_path, "out", w.out);
  if (w.lse) add(lse_path, "lse", *w.lse);
  if (w.state) add(state_path, "state", *w.state);
  return files;
}

void AttentionVerb::write(const Work& w, std::vector<io::ArrayOutput>& files) const {
  std::vector<const Loaded*> arrays{&w.out};
  for (const auto* also : {&w.lse, &w.state})
    if (*also) arrays.push_back(&**also);
  for (std::size_t i = 0; i < files.size(); ++i) files[i].write(0, arrays[i]->all());
  check_unchanged(w.given.files);
  check_interrupt();
  commit_all(files);
  note_bfloat16(out_path, w.out.dtype);
}

void AttentionVerb::run() const {
  const Compute compute(running);
  const Work w = load();
  const std::vector<View> inputs = w.inputs();
  const View out = w.out.view();
  plan(Op::attention, inputs, {&out, 1}, w.given.options);  // on the host, which reads lengths and offsets: refusals
  std::vector<io::ArrayOutput> files = create(w);

  const Stopwatch watch;
  const std::string kernel = compute.run(Op::attention, inputs, {&out, 1}, w.given.options);
  Told told{kernel, compute.backend(), compute.threads(), watch.seconds(), peak_memory(), {}};
  write(w, files);
  if (check) {
    UntilInterrupted executor(compute.executor());
    told.checked = check_attention(inputs[0], inputs[1], inputs[2], out, w.given.options, executor);
    check_interrupt();
  }
  tell(w, told);
}

void AttentionVerb::tell(const Work& w, const Told& told) const {
  const double scores = w.scores(), score_bytes = scores * static_cast<double>(w.q.dtype == DType::float64 ? 8 : 4);
  const double flops = 2 * scores * static_cast<double>(w.q.shape.back() + w.v.shape.back());
  const auto& c = told.checked;
  if (running.json) {
    Json object{{"op", "attention"},
                {"q", w.q.shape},
                {"k", w.k.shape},
                {"v", w.v.shape},
                {"dtype", name_of(w.q.dtype)},
                {"output_dtype", name_of(w.out.dtype)},
                {"backend", told.backend},
                {"kernel", told.kernel},
                {"threads", told.threads},
                {"seconds", told.seconds},
                {"flops", flops},
                {"score_bytes", score_bytes},
                {"peak_memory_bytes", told.peak}};
    if (c) {
      object.set("largest_error", number(c->largest_error));
      object.set("largest_value", number(c->largest_value));
    }
    return print(object);
  }
  fmt::print("attention of q {}, k {}, v {} {} -> {} ({})\n", text_of(w.q.shape), text_of(w.k.shape),
             text_of(w.v.shape), name_of(w.q.dtype), printable(out_path), name_of(w.out.dtype));
  fmt::print("{}: {:.3g} ms, {:.3g} GFLOP/s; peak memory {}, its scores would take {}\n", told.kernel,
             told.seconds * 1e3, flops / told.seconds * 1e-9, human_bytes(static_cast<double>(told.peak)),
             human_bytes(score_bytes));
  if (c)
    fmt::print("largest error {:.2g}, of results up to {:.3g}, against scores materialised in float64\n",
               c->largest_error, c->largest_value);
}

}  // namespace

void add_attention(Program& program) {
  program.add<AttentionVerb>("attention", "softmax(scale Q K^T) V, without ever holding the scores");
}

}  // namespace softfold::cli
