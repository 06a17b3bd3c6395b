#include "attention_reference.hpp"

#include "attention_arguments.hpp"
#include "elements.hpp"

#include "cpu/parallel.hpp"
#include "softfold/fold/attend.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <variant>
#include <vector>

namespace softfold::cli {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

double number_at(const View& v, std::int64_t i) {
  if (v.dtype == DType::boolean) return static_cast<const std::uint8_t*>(v.data)[i] != 0 ? 1 : 0;
  return with_floating(v.dtype,
                       [&]<class S>(S) { return static_cast<double>(fold::widen(static_cast<const S*>(v.data)[i])); });
}

/// The element of an operand that broadcasts to (B, H, T, S).
double broadcast_at(const View& v, const std::array<std::int64_t, 4>& at) {
  std::int64_t index = 0;
  const std::size_t lead = at.size() - v.shape.size();
  for (std::size_t i = 0; i < v.shape.size(); ++i) {
    const std::int64_t n = v.shape[i];
    index = index * n + (n == 1 ? 0 : at[lead + i]);
  }
  return number_at(v, index);
}

/// One of q, k, v, out in float64, by sequence, head and token.
struct Tokens {
  std::int64_t sequences = 1, heads = 1, count, d, head_step, step;
  std::vector<double> values;

  Tokens(const View& x, Layout layout) : d(x.shape.back()) {
    const std::size_t rank = x.shape.size();
    const bool heads_first = layout == Layout::bhtd || rank == 2;
    count = x.shape[rank - (heads_first ? 2 : 3)];
    if (rank > 2) heads = x.shape[rank - (heads_first ? 3 : 2)];
    if (rank > 3) sequences = x.shape[0];
    head_step = heads_first ? count * d : d;
    step = heads_first ? d : heads * d;
    values.resize(static_cast<std::size_t>(sequences * heads * count * d));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = number_at(x, static_cast<std::int64_t>(i));
  }
  const double* row(std::int64_t sequence, std::int64_t head, std::int64_t token) const {
    return values.data() + (sequence * heads * count * d + head * head_step + token * step);
  }
};

double dot(const double* a, const double* b, std::int64_t n) {
  double parts[8] = {}, sum = 0;  // a sum for each lane of the compiler's vectors
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int lane = 0; lane < 8; ++lane) parts[lane] += a[i + lane] * b[i + lane];
  for (; i < n; ++i) sum += a[i] * b[i];
  for (const double part : parts) sum += part;
  return sum;
}

/// Where a sequence's queries and keys lie, and which of its keys exist.
struct Sequence {
  std::int64_t index, q_batch = 0, q_first = 0, queries, kv_batch = 0, kv_first = 0, start = 0, end;
};

struct Reference {
  const AttentionOptions& o;
  Tokens q, k, v, out;

  std::int64_t sequences() const;
  Sequence sequence(std::int64_t b) const;
  double score(const Sequence& s, std::int64_t h, std::int64_t i, std::int64_t j) const;
  std::vector<double> row(const Sequence& s, std::int64_t h, std::int64_t i) const;
  Checked compare(const Sequence& s, std::int64_t h, std::int64_t i) const;
};

std::int64_t Reference::sequences() const {
  const auto* packed = std::get_if<Varlen>(&o.kv);
  return packed != nullptr ? packed->q_offsets.shape[0] - 1 : q.sequences;
}

Sequence Reference::sequence(std::int64_t b) const {
  Sequence s{.index = b, .queries = q.count, .end = k.count};
  if (const auto* packed = std::get_if<Varlen>(&o.kv)) {
    s.q_first = integer_at(packed->q_offsets, b);
    s.kv_first = integer_at(packed->kv_offsets, b);
    s.queries = integer_at(packed->q_offsets, b + 1) - s.q_first;
    s.end = integer_at(packed->kv_offsets, b + 1) - s.kv_first;
  } else {
    s.q_batch = b;
    s.kv_batch = o.kv_index.given() ? integer_at(o.kv_index, b) : b;
  }
  if (o.kv_lengths.given()) s.end = integer_at(o.kv_lengths, b);
  if (o.kv_starts.given()) s.start = integer_at(o.kv_starts, b);
  return s;
}

/// -inf for a key that the query does not see.
double Reference::score(const Sequence& s, std::int64_t h, std::int64_t i, std::int64_t j) const {
  const std::int64_t position = i + s.end - s.queries, right = o.causal ? 0 : o.window.right;
  const std::array<std::int64_t, 4> at{s.index, h, i, j};
  if (o.window.left >= 0 && position - j > o.window.left) return -kInfinity;
  if (right >= 0 && j - position > right) return -kInfinity;
  if (o.mask.given() && broadcast_at(o.mask, at) == 0) return -kInfinity;
  const double scale = std::isnan(o.scale) ? 1 / std::sqrt(static_cast<double>(q.d)) : o.scale;
  const std::int64_t kv_head = h / (q.heads / k.heads);
  double x = scale * dot(q.row(s.q_batch, h, s.q_first + i), k.row(s.kv_batch, kv_head, s.kv_first + j), q.d);
  if (x == kInfinity) x = kNaN;  // the contract: such a row is NaN, and a key at -inf is not seen
  if (o.softcap > 0) x = static_cast<double>(o.softcap) * std::tanh(x / static_cast<double>(o.softcap));
  if (o.slopes.given()) {
    const bool batched = o.slopes.rank() == 2 && o.slopes.shape[0] > 1;
    x -= number_at(o.slopes, (batched ? s.index * q.heads : 0) + h) * std::abs(static_cast<double>(position - j));
  }
  return o.bias.given() ? x + broadcast_at(o.bias, at) : x;
}

std::vector<double> Reference::row(const Sequence& s, std::int64_t h, std::int64_t i) const {
  std::vector<double> scores, result(static_cast<std::size_t>(v.d));
  for (std::int64_t j = s.start; j < s.end; ++j) scores.push_back(score(s, h, i, j));
  const double sink = o.sink.given() ? number_at(o.sink, h) : -kInfinity;
  double most = sink, sum = 0;
  for (const double x : scores) most = x > most || std::isnan(x) ? x : most;
  if (most == -kInfinity) return result;
  for (std::int64_t j = s.start; j < s.end; ++j) {
    const double p = std::exp(scores[static_cast<std::size_t>(j - s.start)] - most);
    if (p == 0) continue;
    sum += p;
    const double* value = v.row(s.kv_batch, h / (q.heads / k.heads), s.kv_first + j);
    for (std::int64_t c = 0; c < v.d; ++c) result[static_cast<std::size_t>(c)] += p * value[c];
  }
  sum += std::exp(sink - most);
  for (double& x : result) x /= sum;
  return result;
}

Checked Reference::compare(const Sequence& s, std::int64_t h, std::int64_t i) const {
  const std::vector<double> right = row(s, h, i);
  const double* got = out.row(s.q_batch, h, s.q_first + i);
  Checked c;
  for (std::size_t x = 0; x < right.size(); ++x) {
    const double a = got[x], b = right[x];
    const double error = a == b || (std::isnan(a) && std::isnan(b)) ? 0 : std::abs(a - b);
    c.largest_error = std::max(c.largest_error, std::isnan(error) ? kInfinity : error);
    if (std::abs(b) > c.largest_value) c.largest_value = std::abs(b);
  }
  return c;
}

}  // namespace

Checked check_attention(const View& q, const View& k, const View& v, const View& out, const AttentionOptions& options,
                        Executor& executor) {
  const Reference reference{
      options, {q, options.layout}, {k, options.layout}, {v, options.layout}, {out, options.layout}};
  Checked worst;
  std::mutex guard;
  for (std::int64_t b = 0; b < reference.sequences(); ++b) {
    const Sequence s = reference.sequence(b);
    parallel_for(executor, reference.q.heads * s.queries, [&](std::int64_t task) {
      const Checked c = reference.compare(s, task / s.queries, task % s.queries);
      const std::lock_guard lock(guard);
      worst = {std::max(worst.largest_error, c.largest_error), std::max(worst.largest_value, c.largest_value)};
    });
  }
  return worst;
}

}  // namespace softfold::cli
