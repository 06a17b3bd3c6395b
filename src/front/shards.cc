// Shards of rows: operands checked and brought to one form, then folded or joined.
#include "softfold/shards.hpp"

#include "cpu/shards.hpp"
#include "cuda/shards.hpp"
#include "front/checks.hpp"
#include "front/choice.hpp"
#include "front/loss_operands.hpp"
#include "front/named_views.hpp"
#include "front/plan_build.hpp"
#include "front/row_builder.hpp"
#include "softfold/float_env.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace softfold {
inline namespace v0 {
namespace {

using checks::describe;

/// Calls run(0) where the tensors are the CUDA backend's. Where there is none, run is never compiled.
template <class Problem, class Run>
bool ran_on_cuda(Device device, const Problem& p, const Operand& partials, const Run& run) {
  if (!is_on_cuda(device)) return false;
#if defined(SOFTFOLD_WITH_CUDA)
  check_cuda_memory(device, partials);
  check_cuda_memory(device, p);
  run(0);
#else
  (void)p, (void)partials, (void)run;
#endif
  return true;
}

void check_partials_view(const View& v) {
  if (v.dtype != DType::float64)
    throw Error(Code::dtype, "partials of dtype " + std::string(name_of(v.dtype)),
                "float64, as fold_shard writes them");
}

void check_rows(const RowOptions& o) {
  if (o.offsets.given() || o.causal || o.rung != Rung::automatic)
    throw Error(Code::unsupported, "offsets, causal or a rung for a shard", "scale, scales, lengths, mask, axis",
                "leave them out; a mask can hide what causal would");
}

/// Nothing of a row's options but what an empty row becomes speaks of partials, which have their scale with them.
void check_join(const RowOptions& o) {
  const bool any = o.axis != -1 || o.scale != 1 || o.scales.given() || o.length.given() || o.offsets.given() ||
                   o.mask.given() || o.causal || o.rung != Rung::automatic;
  if (any)
    throw Error(Code::option, "row options for a join", "empty alone",
                "give the others to fold_shard: a partial has its scale, and nothing of what did not exist");
}

/// The gathered partials, and the rows that they are of.
struct Parts {
  Gathered gathered{};
  std::array<std::int64_t, kMaxRank> rows{};
  std::size_t rank = 0;

  explicit Parts(const View& v) {
    checks::check_view(v, "partials");
    check_partials_view(v);
    if (v.rank() < 2 || v.shape[0] < 1)
      throw Error(Code::shape, "partials of shape " + describe(v.shape),
                  "(parts,) + rows + (numbers,), at least one part");
    rank = v.shape.size() - 2;
    std::copy_n(v.shape.begin() + 1, rank, rows.begin());
    gathered.parts = v.shape[0];
    // Of one part, or of no elements, the stride may be any number, and is not used.
    const bool steps = v.shape[0] > 1 && checks::element_count(v) > 0;
    gathered.stride = steps ? checks::stride_of(v, 0) * static_cast<std::int64_t>(sizeof(double)) : 0;
    gathered.width = v.shape.back();
    if (gathered.width < kPartialWords)
      throw Error(Code::shape, "partials of " + std::to_string(gathered.width) + " numbers a row",
                  "at least " + std::to_string(static_cast<int>(kPartialWords)));
  }
  std::span<const std::int64_t> shape() const { return {rows.data(), rank}; }

  /// Where they lie, once the problem's rows stand.
  void place(RowBuilder& b, const View& v) {
    std::array<std::int64_t, kMaxRank> strides{}, sizes{};
    for (std::size_t i = 0; i <= rank; ++i) {
      sizes[i] = v.shape[i + 1];
      strides[i] = checks::stride_of(v, static_cast<int>(i) + 1);
    }
    b.per_row(gathered.first, "partials", View(v.data, v.dtype, {sizes.data(), rank + 1}, {strides.data(), rank + 1}),
              static_cast<int>(gathered.width));
  }
  /// Reads what they say of themselves, where the host can.
  cpu::Whole look(RowProblem& p) const {
    const cpu::Whole whole = cpu::check_partials(p, gathered);
    p.n = whole.size;
    p.elements = p.rows * gathered.width;  // what there is to do
    return whole;
  }
};

/// What a draw from shards cannot have.
void check_draw(const SampleOptions& o) {
  const std::pair<bool, const char*> refused[] = {
      {o.temperature != 1 || o.temperatures.given(), "a temperature"},
      {o.top_k != 0 || o.top_ks.given(), "top_k"},
      {o.top_p != 1 || o.top_ps.given(), "top_p"},
      {o.min_p != 0 || o.min_ps.given(), "min_p"},
      {o.order != FilterOrder::min_p_first, "order"},
      {o.of != Distribution::raw, "of"},
      {o.rows.empty != Empty::zero, "empty"},
      {o.bias.given(), "a bias"},
      {o.bitmask.given(), "a bitmask"},
      {o.log_probability.given(), "log_probability"},
      {o.rank.given(), "rank"},
      {o.probabilities.given(), "probabilities"},
      {o.masked.given(), "masked"},
      {o.top_tokens.given() || o.top_log_probabilities.given(), "top_tokens"}};
  for (const auto& [given, name] : refused)
    if (given)
      throw Error(Code::unsupported, std::string(name) + " for sample_shard",
                  "scale / temperature as the rows' scale, mask, seed, offset, seeds, offsets, row_ids",
                  "fold the shards with that scale; join_topk with k = 1 is temperature 0");
}

void begin(RowProblem& p, Op op, const RowOptions& o) {
  p.op = op;
  p.empty = o.empty;
  p.rung = o.rung;
  p.causal = false;
  p.scale = 1;
  for (Operand& operand : p.operands) operand.given = false;
}

}  // namespace

std::int64_t partial_width(std::int64_t n, const Shard& shard, std::int64_t k) {
  checks::check_shard(shard, n);
  if (k < 0 || k > shard.size)
    throw Error(Code::shape, "k = " + std::to_string(k) + " of rows of " + std::to_string(shard.size) + " elements",
                "k from 0 to " + std::to_string(shard.size), "k = " + std::to_string(k < 0 ? 0 : shard.size));
  return PartialPlaces(shard, n, k).width;
}

void fold_shard(const View& x, const View& partials, const ShardOptions& o, const Context& context) {
  check_rows(o.rows);
  NamedViews views;
  views.add("x", x, true);
  views.add("partials", partials, true, NamedViews::output);
  views.add("targets", o.targets, false);
  views.add_options(o.rows);
  checks::check_floating(x, "x");
  check_partials_view(partials);
  ShardProblem p;
  loss_operands::begin(p, Op::state, o.rows);
  RowBuilder b(p, x, o.rows);
  checks::check_scale(o.rows.scale, x.dtype == DType::float64);
  p.shard = o.shard;
  p.k = o.k;
  p.width = partials.rank() > 0 ? partials.shape.back() : 0;
  const std::int64_t width = partial_width(p.n, p.shard, p.k);
  if (p.width < width)
    throw Error(Code::shape, "partials of shape " + describe(partials.shape),
                "rows of at least " + std::to_string(width) + " numbers", "ask partial_width");
  b.full(p[Slot::x], "x", x);
  b.per_row(p[Slot::states], "partials", partials, static_cast<int>(p.width));
  if (o.targets.given()) {
    checks::check_integer(o.targets, "targets");
    b.per_row(p[LossSlot::targets], "targets", o.targets);
  }
  b.add_options(o.rows);
  views.check_apart();
  collapse(p, p.more);
  const FloatEnv exact;
  const auto on_cuda = [&](auto) { cuda::fold_shard(p, context); };
  if (!ran_on_cuda(x.device, p, p[Slot::states], on_cuda)) cpu::fold_shard(p, context);
}

void join_states(const View& partials, const View& states, const Context& context) {
  Parts parts(partials);
  NamedViews views;
  views.add("partials", partials, true);
  views.add("states", states, true, NamedViews::output);
  RowProblem p;
  begin(p, Op::state, {});
  RowBuilder b(p, parts.shape());
  loss_operands::add_states(b, states);
  views.check_apart();
  parts.place(b, partials);
  const FloatEnv exact;
  const auto on_cuda = [&](auto) { cuda::join_states(p, parts.gathered, context); };
  if (ran_on_cuda(partials.device, p, parts.gathered.first, on_cuda)) return;
  const cpu::Whole whole = parts.look(p);
  cpu::join_states(p, parts.gathered, whole.is_double, context);
}

void join_cross_entropy(const View& partials, const View& targets, const View& loss, const CrossEntropyOptions& o,
                        const Context& context) {
  Parts parts(partials);
  check_join(o.rows);
  loss_operands::check_terms(o);
  if (o.label_smoothing != 0)
    throw Error(Code::unsupported, "label_smoothing for join_cross_entropy", "0",
                "its sum over the classes needs the joined state first");
  if (o.dx.given() || o.dloss.given() || o.shard.size != 0 || o.shard.offset != 0)
    throw Error(Code::option, "dx, dloss or a shard for join_cross_entropy", "log_probability, states and status",
                "cross_entropy_backward gives the gradient of each shard");
  NamedViews views;
  views.add("partials", partials, true);
  views.add("targets", targets, true);
  views.add("loss", loss, true, NamedViews::output);
  views.add("log_probability", o.log_probability, false, NamedViews::output);
  views.add("states", o.states, false, NamedViews::output);
  views.add("weight", o.weight, false);
  views.add("status", o.status, false, NamedViews::output);
  checks::check_integer(targets, "targets");
  LossProblem p;
  loss_operands::begin(p, Op::cross_entropy, {});
  p.empty = o.rows.empty;
  RowBuilder b(p, parts.shape());
  b.per_row(p[LossSlot::targets], "targets", targets);
  const FloatEnv exact;
  parts.place(b, partials);
  const bool on_host = partials.device.kind == DeviceKind::cpu;
  const cpu::Whole whole = on_host ? parts.look(p) : cpu::Whole{};
  if ((p.rows == 0 || !on_host) && o.weight.given() && o.weight.rank() == 1) p.n = o.weight.shape[0];
  if (p.rows > 0 && on_host && !whole.has_targets)
    throw Error(Code::state, "partials without targets", "partials that hold the targets' elements",
                "give targets to fold_shard");
  loss_operands::add_results(p, b, loss, {}, o.states, o, "weight");
  views.check_apart();
  const auto on_cuda = [&](auto) { cuda::join_cross_entropy(p, parts.gathered, context); };
  if (ran_on_cuda(partials.device, p, parts.gathered.first, on_cuda)) return;
  cpu::join_cross_entropy(p, parts.gathered, whole.is_double, context);
}

void join_topk(const View& partials, const View& values, const View& indices, const TopkOptions& o,
               const Context& context) {
  Parts parts(partials);
  check_join(o.rows);
  NamedViews views;
  views.add("partials", partials, true);
  views.add("values", values, true, NamedViews::output);
  views.add("indices", indices, true, NamedViews::output);
  views.add("probabilities", o.probabilities, false, NamedViews::output);
  views.add("log_probabilities", o.log_probabilities, false, NamedViews::output);
  views.add("lse", o.lse, false, NamedViews::output);
  checks::check_floating(values, "values");
  checks::check_integer(indices, "indices");
  TopkProblem p;
  begin(p, Op::topk, o.rows);
  for (Operand& operand : p.more) operand.given = false;
  p.sorted = o.sorted;
  p.k = values.rank() > 0 ? values.shape.back() : 0;
  RowBuilder b(p, parts.shape());
  const auto add = [&](TopkSlot slot, const char* name, const View& v) {
    if (!v.given()) return;
    if (slot != TopkSlot::indices) checks::check_floating(v, name);
    if (p.k == 0 && v.rank() > 0 && v.shape.back() == 0) return;  // nothing to write
    b.per_row(p[slot], name, v, static_cast<int>(p.k));
    p[slot].axis_stride = static_cast<std::int64_t>(size_of(v.dtype));
  };
  const FloatEnv exact;
  parts.place(b, partials);
  const bool on_host = partials.device.kind == DeviceKind::cpu;
  const cpu::Whole whole = on_host ? parts.look(p) : cpu::Whole{};
  if (p.rows > 0 && on_host && p.k > whole.k)
    throw Error(Code::shape, "k = " + std::to_string(p.k) + " of partials with k = " + std::to_string(whole.k),
                "as many or fewer", "give k to fold_shard");
  if (indices.dtype == DType::int32 && p.n > std::int64_t{1} << 31)
    throw Error(Code::dtype, "int32 indices of rows of " + std::to_string(p.n) + " elements", "int64");
  add(TopkSlot::values, "values", values);
  add(TopkSlot::indices, "indices", indices);
  add(TopkSlot::probabilities, "probabilities", o.probabilities);
  add(TopkSlot::log_probabilities, "log_probabilities", o.log_probabilities);
  if (o.lse.given()) {
    checks::check_floating(o.lse, "lse");
    b.per_row(p[TopkSlot::lse], "lse", o.lse);
  }
  views.check_apart();
  const auto on_cuda = [&](auto) { cuda::join_topk(p, parts.gathered, context); };
  if (ran_on_cuda(partials.device, p, parts.gathered.first, on_cuda)) return;
  cpu::join_topk(p, parts.gathered, whole.is_double, context);
}

void sample_shard(const View& x, const View& partials, const View& tokens, const Shard& shard, const SampleOptions& o,
                  const Context& context) {
  check_rows(o.rows);
  check_draw(o);
  Parts parts(partials);
  SampleProblem p;
  build_sample(p, {&x, 1}, {&tokens, 1}, o);
  checks::check_device(x, partials, "partials");
  checks::check_overlap(tokens, "tokens", partials, "partials", false);
  checks::check_shard(shard, p.n);
  const int axis = o.rows.axis < 0 ? o.rows.axis + x.rank() : o.rows.axis;
  std::vector<std::int64_t> rows(x.shape.begin(), x.shape.end());
  rows.erase(rows.begin() + axis);
  if (!std::equal(rows.begin(), rows.end(), parts.shape().begin(), parts.shape().end()))
    throw Error(Code::shape, "partials of shape " + describe(partials.shape),
                "(parts,) + " + describe(rows) + " + (numbers,)");
  RowProblem q;
  begin(q, Op::sample, {});
  RowBuilder b(q, parts.shape());
  const FloatEnv exact;
  parts.place(b, partials);
  const auto on_cuda = [&](auto) { cuda::sample_shard(p, shard, q, parts.gathered, context); };
  if (ran_on_cuda(x.device, p, parts.gathered.first, on_cuda)) return;
  const cpu::Whole whole = parts.look(q);
  if (p.rows > 0 && (whole.is_double || whole.size != shard.size))
    throw Error(Code::state,
                "partials of rows of " + std::to_string(whole.size) + (whole.is_double ? " float64" : "") + " elements",
                std::to_string(shard.size) + " elements folded in float32");
  cpu::sample_shard(p, shard, q, parts.gathered, context);
}

}  // namespace v0
}  // namespace softfold
