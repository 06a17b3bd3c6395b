// softfold attention Q K V OUT
#include "arguments.hpp"
#include "blocks.hpp"
#include "compute.hpp"
#include "elements.hpp"
#include "interrupt.hpp"
#include "measure.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include "softfold/io/array_output.hpp"
#include "softfold/softfold.hpp"

#include <fmt/format.h>
#include <cmath>
#include <limits>
#include <optional>

namespace softfold::cli {
namespace {

/// An array in memory.
struct Loaded {
  std::vector<std::int64_t> shape;
  DType dtype;
  Buffer bytes;

  Loaded(DType t, std::vector<std::int64_t> s)
      : shape(std::move(s)), dtype(t), bytes(static_cast<std::size_t>(*io::bytes_of(t, shape))) {}
  explicit Loaded(const io::ArrayFile& file) : Loaded(file.dtype(), {file.shape().begin(), file.shape().end()}) {
    file.read(0, all());
  }
  std::span<std::byte> all() { return {bytes.data(), static_cast<std::size_t>(*io::bytes_of(dtype, shape))}; }
  std::int64_t count() const { return static_cast<std::int64_t>(*io::bytes_of(dtype, shape) / size_of(dtype)); }
  View view() { return View(static_cast<void*>(bytes.data()), dtype, shape); }

  Loaded widened() {
    Loaded wide(DType::float64, shape);
    with_floating(dtype, [&]<class S>(S) {
      for (std::int64_t i = 0; i < count(); ++i)
        reinterpret_cast<double*>(wide.bytes.data())[i] =
            static_cast<double>(fold::widen(reinterpret_cast<const S*>(bytes.data())[i]));
    });
    return wide;
  }
};

/// How far a result is from the materialised one in float64.
struct Checked {
  double largest_error, largest_value;
};

struct AttentionVerb {
  std::string q_path, k_path, v_path, out_path, lse_path, mask_path, bias_path;
  std::string layout = "bhtd", dtype, rung = "automatic";
  InputOptions q_reading, k_reading, v_reading;
  RunOptions running;
  double scale = std::numeric_limits<double>::quiet_NaN(), softcap = 0;
  std::int64_t left = -1, right = -1;
  bool causal = false, check = false;

  void declare(Command& command) {
    command.positional("Q", q_path, "queries, .npy or .safetensors: (B, H, T, D), (H, T, D) or (T, D)");
    command.positional("K", k_path, "keys: (B, Hkv, S, D); query head h reads key head h / (H / Hkv)");
    command.positional("V", v_path, "values: (B, Hkv, S, Dv)");
    command.positional("OUT", out_path, "the result: its ending, .npy or .safetensors, decides the format");
    q_reading.declare(command, "q");
    k_reading.declare(command, "k");
    v_reading.declare(command, "v");
    command.option("--layout", layout, "bhtd, or bthd for (B, T, H, D)");
    command.option("--scale", scale, "of the scores; default 1/sqrt(D)");
    command.flag("--causal", causal, "the last query sees all keys, the one before all but the last, ...");
    command.option("--left", left, "keys that a query sees before its own position; default all");
    command.option("--right", right, "keys that it sees behind it; default all");
    command.option("--softcap", softcap, "scores become softcap tanh(score / softcap)");
    command.option("--mask", mask_path, "a bool array that broadcasts to (B, H, T, S): true where a key exists");
    command.option("--bias", bias_path, "an array that broadcasts to (B, H, T, S), added to the scores");
    command.option("--lse", lse_path, "write the scores' logsumexp there, (B, H, T)");
    command.option("--dtype", dtype, "of the result: the input's (default) or float32");
    command.option("--rung", rung, "the algorithm: automatic, naive, safe, merged, online, tiled, fused");
    command.flag("--check", check, "compare with the same attention materialised in float64");
    running.declare(command, false);
  }

  void run() const;
  AttentionOptions options() const;
  Checked checked(Loaded& q, Loaded& k, Loaded& v, Loaded& out, AttentionOptions o, const Context& context) const;
};

AttentionOptions AttentionVerb::options() const {
  static constexpr std::string_view layouts[] = {"bhtd", "bthd"};
  AttentionOptions o;
  o.layout = static_cast<Layout>(parse_word(layout, "layout", layouts));
  o.scale = scale;
  o.causal = causal;
  o.window = {left, right};
  o.softcap = static_cast<float>(softcap);
  if (softcap != 0 && o.softcap == 0) o.softcap = std::numeric_limits<float>::denorm_min();  // refused, and not "none"
  o.rung = parse_rung(rung);
  return o;
}

Checked AttentionVerb::checked(Loaded& q, Loaded& k, Loaded& v, Loaded& out, AttentionOptions o,
                               const Context& context) const {
  Loaded wide_q = q.widened(), wide_k = k.widened(), wide_v = v.widened(), right_out(DType::float64, out.shape);
  o.rung = Rung::safe;
  o.lse = {};
  attention(wide_q.view(), wide_k.view(), wide_v.view(), right_out.view(), o, context);
  Loaded got = out.widened();
  Checked c{0, 0};
  for (std::int64_t i = 0; i < got.count(); ++i) {
    const double a = reinterpret_cast<const double*>(got.bytes.data())[i];
    const double b = reinterpret_cast<const double*>(right_out.bytes.data())[i];
    // Of a NaN or an infinity that the other does not have: infinite, and stays so.
    const double error = a == b || (std::isnan(a) && std::isnan(b)) ? 0 : std::abs(a - b);
    if (!(error <= c.largest_error)) c.largest_error = std::isnan(error) ? fold::infinity<double>() : error;
    if (std::abs(b) > c.largest_value) c.largest_value = std::abs(b);
  }
  return c;
}

void AttentionVerb::run() const {
  const Compute compute(running);
  AttentionOptions o = options();
  if (check && (softcap != 0 || !mask_path.empty() || !bias_path.empty()))
    throw Error(Code::option, "--check with --softcap, --mask or --bias",
                "--check with --scale, --causal, --left and --right: what the materialised rung has",
                "leave out --check");
  const io::ArrayFile q_file = q_reading.open_floating(q_path), k_file = k_reading.open_floating(k_path),
                      v_file = v_reading.open_floating(v_path);
  std::vector<std::int64_t> shape(q_file.shape().begin(), q_file.shape().end());
  if (!shape.empty() && !v_file.shape().empty()) shape.back() = v_file.shape().back();
  Loaded q(q_file), k(k_file), v(v_file), out(dtype.empty() ? q.dtype : parse_dtype(dtype), shape);
  std::optional<Loaded> mask, bias, lse;
  std::vector<io::FileId> ids{q_file.file().id(), k_file.file().id(), v_file.file().id()};
  const auto load = [&](const std::string& path, std::optional<Loaded>& to) {
    if (path.empty()) return View();
    const io::ArrayFile file = io::open_array(path);
    ids.push_back(file.file().id());
    return to.emplace(file).view();
  };
  o.mask = load(mask_path, mask);
  o.bias = load(bias_path, bias);
  if (!lse_path.empty()) {
    std::vector<std::int64_t> rows(shape.begin(), shape.end() - (shape.empty() ? 0 : 1));
    if (o.layout == Layout::bthd && rows.size() >= 2) std::swap(rows[rows.size() - 1], rows[rows.size() - 2]);
    o.lse = lse.emplace(q.dtype == DType::float64 ? DType::float64 : DType::float32, rows).view();
  }
  const View inputs[] = {q.view(), k.view(), v.view()};
  require_apart({out_path, lse_path});
  const auto create = [&](const std::string& path, const char* name, const Loaded& from) {
    return io::create_array(path, {name, from.dtype, from.shape}, ids);
  };
  io::ArrayOutput out_file = create(out_path, "out", out);
  std::optional<io::ArrayOutput> lse_file;
  if (lse) lse_file.emplace(create(lse_path, "lse", *lse));

  const Stopwatch watch;
  const View result = out.view();
  const std::string kernel = compute.run(Op::attention, inputs, {&result, 1}, o);
  const double seconds = watch.seconds();
  const std::uint64_t peak = peak_memory();
  out_file.write(0, out.all());
  if (lse) lse_file->write(0, lse->all());
  check_interrupt();
  out_file.commit();
  note_bfloat16(out_path, out.dtype);
  if (lse) {
    lse_file->commit();
    note_bfloat16(lse_path, lse->dtype);
  }

  const bool heads_first = o.layout == Layout::bhtd;
  const auto tokens = [&](const Loaded& x) {
    return x.shape[x.shape.size() - (heads_first || x.shape.size() < 3 ? 2 : 3)];
  };
  const double scores =
      static_cast<double>(q.count()) / static_cast<double>(q.shape.back()) * static_cast<double>(tokens(k));
  const double score_bytes = scores * static_cast<double>(q.dtype == DType::float64 ? 8 : 4);
  const double flops = 2 * scores * static_cast<double>(q.shape.back() + v.shape.back());
  std::optional<Checked> c;
  if (check) c = checked(q, k, v, out, o, {.cpu = &compute.executor()});
  if (running.json) {
    Json object{{"op", "attention"},
                {"q", q.shape},
                {"k", k.shape},
                {"v", v.shape},
                {"dtype", name_of(q.dtype)},
                {"output_dtype", name_of(out.dtype)},
                {"backend", compute.backend()},
                {"kernel", kernel},
                {"threads", compute.threads()},
                {"seconds", seconds},
                {"flops", flops},
                {"score_bytes", score_bytes},
                {"peak_memory_bytes", peak}};
    const auto number = [](double x) { return std::isfinite(x) ? Json(x) : Json(fmt::format("{}", x)); };
    if (c) object["largest_error"] = number(c->largest_error), object["largest_value"] = number(c->largest_value);
    return print(object);
  }
  fmt::print("attention of q {}, k {}, v {} {} -> {} ({})\n", text_of(q.shape), text_of(k.shape), text_of(v.shape),
             name_of(q.dtype), out_path, name_of(out.dtype));
  fmt::print("{}: {:.3g} ms, {:.3g} GFLOP/s; peak memory {}, its scores would take {}\n", kernel, seconds * 1e3,
             flops / seconds * 1e-9, human_bytes(static_cast<double>(peak)), human_bytes(score_bytes));
  if (c)
    fmt::print("largest error {:.2g}, of results up to {:.3g}, against scores materialised in float64\n",
               c->largest_error, c->largest_value);
}

}  // namespace

void add_attention(Program& program) {
  program.add<AttentionVerb>("attention", "softmax(scale Q K^T) V, without ever holding the scores");
}

}  // namespace softfold::cli
