// Which partials belong together, and in which order: their heads alone say it.
#include "softfold/io/partial_file.hpp"

#include "detail.hpp"

#include "softfold/float_env.hpp"
#include "softfold/shown.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

[[noreturn]] void refuse_join(const std::string& got, const std::string& allowed, const std::string& fix) {
  throw Error(Code::state, got, allowed, fix);
}

/// That `next` belongs to the same rows as `so_far`, and begins where that has come to.
void check_joins(const NamedSpan& so_far, const NamedSpan& next) {
  const PartialSpan &a = so_far.span, &b = next.span;
  const std::int64_t end = a.offset + a.length;
  const std::string names = in_quotes(so_far.name) + " and " + in_quotes(next.name);
  if (a.digits != b.digits)
    refuse_join(names + ": one folded in float32, one in float64", "one precision for all shards of a row",
                "convert the shards to one dtype and fold again");
  if (a.scale != b.scale)
    refuse_join(names + ": of scale " + detail::shown(a.scale) + " and " + detail::shown(b.scale),
                "one scale for all shards of a row", "fold them again with one --scale");
  if (a.rows != b.rows)
    refuse_join(names + ": of " + std::to_string(a.rows) + " and " + std::to_string(b.rows) + " rows",
                "the same rows in every shard", "cut along the folded axis only");
  if (a.row_length >= 0 && b.row_length >= 0 && a.row_length != b.row_length)
    refuse_join(names + ": of rows of " + std::to_string(a.row_length) + " and " + std::to_string(b.row_length),
                "shards of one row", "give every shard the same --row-length");
  if (b.offset > end)
    refuse_join(in_quotes(next.name) + ", which begins at element " + std::to_string(b.offset),
                "one that begins at element " + std::to_string(end),
                "add the partial of elements " + std::to_string(end) + ":" + std::to_string(b.offset));
  if (b.offset < end)
    refuse_join(in_quotes(next.name) + ", whose elements from " + std::to_string(b.offset) + " on are there already",
                "one that begins at element " + std::to_string(end),
                "was `softfold state --offset " + std::to_string(end) +
                    "` meant for it? Leave one of the overlapping "
                    "partials out only if both hold the same elements");
}

}  // namespace

JoinOrder order_of_join(std::span<const NamedSpan> parts) {
  if (parts.empty()) throw Error(Code::state, "no partials", "one or more to join");
  JoinOrder join{std::vector<std::size_t>(parts.size()), {}};
  std::iota(join.order.begin(), join.order.end(), std::size_t{0});
  // Two that begin at one element overlap unless the first is empty; by name, the advice is about the likelier one.
  std::ranges::stable_sort(join.order, {}, [&](std::size_t i) {
    const NamedSpan& p = parts[i];
    return std::tuple(p.span.offset, p.span.length > 0, p.name);
  });
  const NamedSpan& first = parts[join.order[0]];
  PartialSpan& joined = join.joined = first.span;
  for (const std::size_t i : std::span(join.order).subspan(1)) {
    check_joins({first.name, joined}, parts[i]);
    joined.length += parts[i].span.length;
    joined.row_length = std::max(joined.row_length, parts[i].span.row_length);
  }
  if (joined.row_length >= 0 && joined.offset + joined.length > joined.row_length)
    refuse_join("partials up to element " + std::to_string(joined.offset + joined.length),
                "rows of " + std::to_string(joined.row_length), "give every shard the same --row-length");
  return join;
}

void join_rows(PartialRows& rows, const PartialRows& next) {
  const FloatEnv environment;
  std::visit(
      [&](auto& some) {
        const auto& more = std::get<std::remove_cvref_t<decltype(some)>>(next);
        for (std::size_t r = 0; r < some.size(); ++r) some[r].join(more[r]);
      },
      rows);
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
