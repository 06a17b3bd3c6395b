// From the partials of all shards to what the whole rows give.
#include "cpu/gathered_row.hpp"
#include "cpu/loss_schedule.hpp"
#include "cpu/topk_rows.hpp"

#include <cmath>

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

[[noreturn]] void refuse(const std::string& got, std::int64_t row, const std::string& allowed, const char* fix = "") {
  throw Error(Code::state, got + " in the partials of row " + std::to_string(row), allowed, fix);
}

std::int64_t whole_number(double count) { return static_cast<std::int64_t>(count); }

constexpr const char* kAsWritten = "the numbers that fold_shard wrote, all of them";

/// The numbers at a partial's head go together, and fit into its width.
void check_part_head(const double* part, std::int64_t width, std::int64_t row) {
  const PartialFault fault = fault_of(part, width);
  if (fault == PartialFault::none) return;
  const std::string elements = " of " + detail::shown(part[kLength]) + " elements";
  switch (fault) {
    case PartialFault::none: return;
    case PartialFault::version:
      refuse("bits version " + detail::shown(part[kVersion]), row, "this library's",
             "fold every shard with one version");
    case PartialFault::digits: refuse("digits " + detail::shown(part[kDigits]), row, kAsWritten);
    case PartialFault::place: refuse("a shard at " + detail::shown(part[kOffset]) + elements, row, kAsWritten);
    case PartialFault::best: refuse("k = " + detail::shown(part[kBest]), row, kAsWritten);
    case PartialFault::mark: refuse("a mark of targets " + detail::shown(part[kHasTarget]), row, "0 or 1");
    case PartialFault::target: refuse("target " + detail::shown(part[kTargetIndex]), row, kAsWritten);
    case PartialFault::width:
      refuse("a shard" + elements + " in " + std::to_string(width) + " numbers", row, kAsWritten);
  }
}

/// What a partial says of itself goes together.
void check_part(const double* part, std::int64_t width, std::int64_t row) {
  check_part_head(part, width, row);
  const PartialPieces pieces(part);
  const double* node = pieces.nodes;
  pieces.layout.for_nodes([&](std::int64_t, int level) {
    if (!is_node(part, node, level))
      refuse("(m, d) = (" + detail::shown(node[0]) + ", " + detail::shown(node[1]) + ")", row, kAsWritten);
    node += 2;
  });
  for (std::int64_t j = 0; j < whole_number(part[kBest]); ++j)
    if (!is_best(part, j)) refuse("index " + detail::shown(part[kPartialWords + 2 * j + 1]), row, kAsWritten);
}

std::string span_of(std::int64_t from, std::int64_t to) { return std::to_string(from) + " to " + std::to_string(to); }

/// The parts agree, and lie end to end.
void check_row(const GatheredRow& whole, const Whole& first, std::int64_t row) {
  std::int64_t end = 0;
  for (const double* part : whole.parts()) {
    const bool same_scale = part[kScale] == whole.scale() || (std::isnan(part[kScale]) && std::isnan(whole.scale()));
    if (!same_scale)
      refuse("scales " + detail::shown(whole.scale()) + " and " + detail::shown(part[kScale]), row, "one scale");
    if ((part[kDigits] == fold::Real<double>::kDigits) != first.is_double)
      refuse("digits 24 and 53", row, "one precision", "fold all shards from one dtype");
    if (part[kSize] != static_cast<double>(first.size) || part[kBest] != static_cast<double>(first.k))
      refuse("rows of " + detail::shown(part[kSize]) + " elements, k = " + detail::shown(part[kBest]), row,
             "one size and one k for all shards");
    if ((part[kHasTarget] == 1.) != first.has_targets)
      refuse("some with targets, some without", row, "targets for all shards, or for none");
    const char* allowed = "shards that lie end to end";
    const std::int64_t offset = whole_number(part[kOffset]);
    if (offset > end) refuse("no elements " + span_of(end, offset), row, allowed, "add their shard");
    if (offset < end) refuse("elements " + span_of(offset, end) + " twice", row, allowed, "leave one shard out");
    end += whole_number(part[kLength]);
  }
  if (end != first.size) refuse("no elements " + span_of(end, first.size), row, "all shards", "add their shard");
}

/// Calls body(row, its partials) for every row.
template <class Body>
void for_rows(const RowProblem& p, const Gathered& partials, const Context& context, const Body& body) {
  if (p.rows == 0) return;
  split_rows(p, context, [&](std::int64_t first, std::int64_t last) {
    GatheredRow whole(p, partials);
    for (; first < last; ++first) {
      whole.stand_at(first);
      body(first, whole);
    }
  });
}

void write_state(const RowProblem& p, std::int64_t row, StoredState s) {
  const Operand& o = p[Slot::states];
  if (std::isnan(s.d)) s.d = fold::canonical_nan<double>();
  if (o.given) *reinterpret_cast<StoredState*>(p.at(o, row)) = s;
}

/// The partials were folded with the targets of the rows that count.
void check_same_targets(const LossProblem& p, const Gathered& partials) {
  const Operand& targets = p[LossSlot::targets];
  GatheredRow whole(p, partials);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const std::int64_t t = integer_at(targets, p.at(targets, r));
    if (t == p.ignore_index) continue;
    whole.gather(r);
    for (const double* part : whole.parts())
      if (part[kTargetIndex] != static_cast<double>(t))
        refuse("target " + detail::shown(part[kTargetIndex]) + " (-1: none)", r,
               "target " + std::to_string(t) + ", as is joined",
               "give fold_shard and the join the same targets on all ranks");
  }
}

/// What LossRow makes of a target's element that it reads itself.
template <class T>
T log_probability(const GatheredRow& whole, const typename fold::LogSumExp<T>::State& s, std::int64_t target,
                  Empty empty) {
  const auto scale = fold::make_scale<T>(whole.scale());
  auto row = chunk_ops<T>().log_normaliser(s, scale);
  row.set_c(folded_c(scale));
  if (row.empty) return empty == Empty::nan ? fold::canonical_nan<T>() : -fold::infinity<T>();
  if (!row.regular) return fold::canonical_nan<T>();
  const T x = static_cast<T>(whole.part_of(target)[kTarget]);
  T lp = T(0);
  constexpr auto same = index(dtype_of<T>());
  chunk_ops<T>().write_log[same][same](&x, 1, row, &lp, false);
  return lp;
}

template <class T>
void join_losses(const LossProblem& p, const Gathered& partials, const Context& context) {
  const Operand &targets = p[LossSlot::targets], &weight = p[LossSlot::weight];
  const auto weight_of = [&](std::int64_t t) {
    if (!weight.given) return 1.;
    return static_cast<double>(fold::narrow<T>(number_at(weight, weight.data + t * weight.axis_stride)));
  };
  const CountedRows counted = count_rows(p, weight_of);
  const Scratch::Held<double> losses(thread_scratch(), Scratch::row_values, static_cast<std::size_t>(p.rows) + 1);
  for_rows(p, partials, context, [&](std::int64_t r, const GatheredRow& whole) {
    const auto put = [&](LossSlot slot, double value) {
      if (p[slot].given) put_number(p[slot], p.at(p[slot], r), value);
    };
    const bool each = p.reduction == Reduction::none;
    const std::int64_t t = integer_at(targets, p.at(targets, r));
    const bool ignored = t == p.ignore_index;
    auto s = fold::LogSumExp<T>::identity();
    if (!ignored || p[Slot::states].given) s = whole.state<T>();
    write_state(p, r, stored<T>(s, whole.scale()));
    const T lp = ignored ? T(0) : log_probability<T>(whole, s, t, p.empty);
    put(LossSlot::log_probability, static_cast<double>(lp));
    losses.data()[r] = fold::Sum<double>::identity();
    if (ignored && each) put(LossSlot::loss, 0.);
    if (ignored) return;
    const fold::CrossEntropy terms(0, p.z_loss, weight_of(t), 1, 0);
    const auto lse = static_cast<double>(chunk_ops<T>().finish(s, fold::make_scale<T>(whole.scale())));
    losses.data()[r] = terms.loss(static_cast<double>(lp), 0, lse);
    if (each) put(LossSlot::loss, losses.data()[r]);
  });
  if (p.reduction == Reduction::none) return;
  const double total = sum_over(p.rows, [&](std::int64_t r) { return losses.data()[r]; });
  put_number(p[LossSlot::loss], p[LossSlot::loss].data, reduced(p, total, counted));
}

/// The candidates of all shards stand side by side, in the order of their places in the row: a short row, whose k best
/// are the whole row's.
template <class T>
void join_best(const TopkProblem& p, const Gathered& partials, const Context& context) {
  for_rows(p, partials, context, [&](std::int64_t index, const GatheredRow& whole) {
    struct Candidate {
      std::int64_t place;
      T value;
    };
    std::vector<Candidate> all;
    for (const double* part : whole.parts())
      for (std::int64_t j = 0; j < static_cast<std::int64_t>(part[kBest]); ++j) {
        const double* entry = part + kPartialWords + 2 * j;
        if (entry[1] >= 0) all.push_back({static_cast<std::int64_t>(entry[1]), static_cast<T>(entry[0])});
      }
    std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.place < b.place; });
    std::vector<T> values;
    TopkWorker<T> worker(p);
    BestOf<T> best(worker.room(), p.k);
    for (const Candidate& c : all) {
      if (p.k > 0) best.offer(fold::Ranked<T>::of(c.value, std::ssize(values)));
      values.push_back(c.value);
    }
    const std::int64_t count = best.finish();
    Row row{};
    row.x = reinterpret_cast<const char*>(values.data());
    row.n = row.length = std::ssize(values);
    row.scale = whole.scale();
    const bool states = TopkWorker<T>::wants_state(p);
    worker.finish(row, index, states ? whole.state<T>() : fold::LogSumExp<T>::identity(), worker.room(), count);
    const Operand& places = p[TopkSlot::indices];
    for (std::int64_t j = 0; j < count; ++j) {
      char* at = p.at(places, index) + j * places.axis_stride;
      put_integer(places, at, all[static_cast<std::size_t>(integer_at(places, at))].place);
    }
  });
}

}  // namespace

Whole check_partials(const RowProblem& p, const Gathered& partials) {
  Whole first{0, 0, false, false};
  GatheredRow whole(p, partials);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    whole.gather(r);
    for (const double* part : whole.parts()) check_part(part, partials.width, r);
    whole.sort();
    if (r == 0) {
      const double* part = whole.parts()[0];
      first = {whole_number(part[kSize]), whole_number(part[kBest]), part[kDigits] == fold::Real<double>::kDigits,
               part[kHasTarget] == 1.};
    }
    check_row(whole, first, r);
  }
  return first;
}

void join_states(const RowProblem& p, const Gathered& partials, bool is_double, const Context& context) {
  for_rows(p, partials, context, [&](std::int64_t r, const GatheredRow& whole) {
    if (is_double)
      write_state(p, r, stored<double>(whole.state<double>(), whole.scale()));
    else
      write_state(p, r, stored<float>(whole.state<float>(), whole.scale()));
  });
}

void join_cross_entropy(const LossProblem& p, const Gathered& partials, bool is_double, const Context& context) {
  check_targets(p);
  check_same_targets(p, partials);
  const Operand& status = p[LossSlot::status];
  if (status.given) *reinterpret_cast<std::int32_t*>(status.data) = 0;
  is_double ? join_losses<double>(p, partials, context) : join_losses<float>(p, partials, context);
}

void join_topk(TopkProblem& p, const Gathered& partials, bool is_double, const Context& context) {
  Operand& x = p[Slot::x];  // each row's candidates
  x.dtype = is_double ? DType::float64 : DType::float32;
  x.axis_stride = static_cast<std::int64_t>(size_of(x.dtype));
  is_double ? join_best<double>(p, partials, context) : join_best<float>(p, partials, context);
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
