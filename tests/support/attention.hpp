// Attention problems of every kind for tests: their tensors, the call, and the answer materialised in float64.
#pragma once

#include "support/array.hpp"

#include "softfold/softfold.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace softfold_test {

/// What a problem is made of. Sizes as in softfold::AttentionOptions.
struct AttentionCase {
  DType dtype = DType::float32;
  softfold::Layout layout = softfold::Layout::bhtd;
  std::int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1;
  int d = 16, dv = 16;
  double scale = std::numeric_limits<double>::quiet_NaN();
  bool causal = false;
  softfold::Window window;
  float softcap = 0;
  bool sink = false, slopes = false, slopes_batched = false, mask = false, bias = false, lengths = false,
       starts = false, index = false;
  std::vector<std::int64_t> q_lengths, kv_lengths;  ///< of packed sequences; empty: dense
  unsigned seed = 1;

  bool packed() const { return !q_lengths.empty(); }
};

/// The tensors of a case, and everything that the call needs.
class AttentionData {
 public:
  AttentionCase c;
  Array q, k, v, out, lse, state;
  Array sink, slopes, mask, bias, lengths, starts, index, q_offsets, kv_offsets;

  explicit AttentionData(const AttentionCase& given) : c(given) {
    if (c.packed()) {
      c.batch = std::ssize(c.q_lengths);
      c.queries = *std::max_element(c.q_lengths.begin(), c.q_lengths.end());
      c.keys = *std::max_element(c.kv_lengths.begin(), c.kv_lengths.end());
      q_offsets = offsets_of(c.q_lengths);
      kv_offsets = offsets_of(c.kv_lengths);
    }
    std::mt19937 random(c.seed);
    std::normal_distribution<double> normal;
    const auto filled = [&](DType t, Shape shape) {
      Array a(t, std::move(shape));
      for (std::int64_t i = 0; i < a.count(); ++i) a.set_value(i, normal(random));
      return a;
    };
    const std::int64_t cache = c.index ? c.batch + 2 : c.batch;
    q = filled(c.dtype, shape(c.batch, c.heads, q_tokens(), c.d));
    k = filled(c.dtype, shape(cache, c.kv_heads, kv_tokens(), c.d));
    v = filled(c.dtype, shape(cache, c.kv_heads, kv_tokens(), c.dv));
    out = Array(c.dtype, shape(c.batch, c.heads, q_tokens(), c.dv));
    const DType wide = c.dtype == DType::float64 ? DType::float64 : DType::float32;
    Shape rows{c.batch, c.heads, c.queries};
    if (c.packed()) rows = {c.heads, q_tokens()};
    lse = Array(wide, rows);
    rows.push_back(c.dv + 2);
    state = Array(wide, rows);
    if (c.sink) sink = filled(DType::float32, {c.heads});
    if (c.slopes) slopes = filled(DType::float32, {c.heads});
    if (c.slopes_batched) slopes = filled(DType::float32, {c.batch, c.heads});
    if (c.bias) {
      bias = filled(c.dtype, {c.batch, 1, c.queries, c.keys});
      for (std::int64_t i = 0; i < bias.count(); ++i)
        if (random() % 5 == 0) bias.set_value(i, -std::numeric_limits<double>::infinity());
    }
    if (c.mask) {
      mask = Array(DType::boolean, {c.heads, c.queries, c.keys});
      for (std::int64_t i = 0; i < mask.count(); ++i) mask.set(i, static_cast<std::uint8_t>(random() % 3 != 0));
    }
    if (c.lengths)
      lengths = integers([&](std::int64_t b) { return random() % (1 + static_cast<unsigned>(keys_of(b))); });
    if (c.starts)
      starts = integers([&](std::int64_t b) {
        const auto most = c.lengths ? lengths.get<std::int32_t>(b) : keys_of(b);
        return random() % (1 + static_cast<unsigned>(most));
      });
    if (c.index) index = integers([&](std::int64_t) { return random() % static_cast<unsigned>(cache); });
  }

  std::int64_t q_tokens() const { return c.packed() ? sum(c.q_lengths) : c.queries; }
  std::int64_t kv_tokens() const { return c.packed() ? sum(c.kv_lengths) : c.keys; }
  std::int64_t queries_of(std::int64_t b) const {
    return c.packed() ? c.q_lengths[static_cast<std::size_t>(b)] : c.queries;
  }
  std::int64_t keys_of(std::int64_t b) const { return c.packed() ? c.kv_lengths[static_cast<std::size_t>(b)] : c.keys; }
  std::int64_t start_of(std::int64_t b) const { return c.starts ? starts.get<std::int32_t>(b) : 0; }
  std::int64_t end_of(std::int64_t b) const { return c.lengths ? lengths.get<std::int32_t>(b) : keys_of(b); }

  /// Where element (b, h, t, 0) of a tensor with `heads` heads stands among its elements.
  std::int64_t at(const Array& a, std::int64_t b, std::int64_t h, std::int64_t t) const {
    const bool is_q = &a == &q || &a == &out;
    const std::int64_t heads = is_q ? c.heads : c.kv_heads, tokens = is_q ? q_tokens() : kv_tokens();
    if (c.packed()) {
      t += (is_q ? q_offsets : kv_offsets).get<std::int32_t>(b);
      b = 0;
    } else if (!is_q && c.index) {
      b = index.get<std::int32_t>(b);
    }
    const std::int64_t row =
        c.layout == softfold::Layout::bhtd ? (b * heads + h) * tokens + t : (b * tokens + t) * heads + h;
    return row * a.shape().back();
  }
  /// Where a row's lse stands.
  std::int64_t row_at(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return c.packed() ? h * q_tokens() + q_offsets.get<std::int32_t>(b) + i : (b * c.heads + h) * c.queries + i;
  }

  static double value(const Array& a, std::int64_t i) {
    return with_storage(a.dtype(), [&]<class S>(S) {
      if constexpr (std::is_integral_v<S>) {
        return static_cast<double>(a.get<S>(i));
      } else {
        return static_cast<double>(softfold::fold::widen(a.get<S>(i)));
      }
    });
  }

  softfold::AttentionOptions options(bool with_results = true) {
    softfold::AttentionOptions o;
    o.layout = c.layout;
    o.scale = c.scale;
    o.causal = c.causal;
    o.window = c.window;
    o.softcap = c.softcap;
    const auto give = [](bool given, View& to, Array& from) {
      if (given) to = from.view();
    };
    give(c.sink, o.sink, sink), give(c.slopes || c.slopes_batched, o.slopes, slopes), give(c.mask, o.mask, mask);
    give(c.bias, o.bias, bias), give(c.lengths, o.kv_lengths, lengths), give(c.starts, o.kv_starts, starts);
    give(c.index, o.kv_index, index), give(with_results, o.lse, lse), give(with_results, o.state, state);
    if (c.packed()) o.kv = softfold::Varlen{q_offsets.view(), kv_offsets.view()};
    return o;
  }

  void run(const softfold::Context& context = {}) {
    softfold::attention(q.view(), k.view(), v.view(), out.view(), options(), context);
  }

  /// A row as float64 gives it, and how far a computation with unit roundoff u may be from it.
  struct Row {
    std::vector<double> out, spread;  ///< spread: sum p |v|, what a relative error of the weights is of
    double lse;
    double error;  ///< of a weight, in units of u
  };
  Row reference(std::int64_t b, std::int64_t h, std::int64_t i);

 private:
  static std::int64_t sum(const std::vector<std::int64_t>& n) {
    std::int64_t s = 0;
    for (const auto x : n) s += x;
    return s;
  }
  static Array offsets_of(const std::vector<std::int64_t>& lengths) {
    Array a(DType::int32, {std::ssize(lengths) + 1});
    std::int32_t at = 0;
    for (std::int64_t i = 0; i < a.count(); ++i) {
      a.set(i, at);
      if (i < std::ssize(lengths)) at += static_cast<std::int32_t>(lengths[static_cast<std::size_t>(i)]);
    }
    return a;
  }
  template <class F>
  Array integers(const F& f) const {
    Array a(DType::int32, {c.batch});
    for (std::int64_t b = 0; b < c.batch; ++b) a.set(b, static_cast<std::int32_t>(f(b)));
    return a;
  }
  Shape shape(std::int64_t batch, std::int64_t heads, std::int64_t tokens, std::int64_t last) const {
    const bool heads_first = c.layout == softfold::Layout::bhtd;
    Shape s{batch, heads_first ? heads : tokens, heads_first ? tokens : heads, last};
    if (c.packed()) s.erase(s.begin());
    return s;
  }

  std::vector<double> values_[3];  ///< of q, k and v, once a reference has been asked for
};

inline AttentionData::Row AttentionData::reference(std::int64_t b, std::int64_t h, std::int64_t i) {
  if (values_[0].empty()) {
    const Array* const tensors[] = {&q, &k, &v};
    for (std::size_t t = 0; t < 3; ++t)
      for (std::int64_t x = 0; x < tensors[t]->count(); ++x) values_[t].push_back(value(*tensors[t], x));
  }
  const double infinity = std::numeric_limits<double>::infinity();
  const double scale = std::isnan(c.scale) ? 1 / std::sqrt(static_cast<double>(c.d)) : c.scale;
  const std::int64_t start = start_of(b), end = end_of(b), position = i + end - queries_of(b);
  const std::int64_t kv_head = h / (c.heads / c.kv_heads), right = c.causal ? 0 : c.window.right;
  std::vector<double> score(static_cast<std::size_t>(std::max<std::int64_t>(end, 0)), -infinity);
  double most = c.sink ? value(sink, h) : -infinity, error = 0;
  const double* q_row = values_[0].data() + at(q, b, h, i);
  for (std::int64_t j = start; j < end; ++j) {
    if (c.window.left >= 0 && j < position - c.window.left) continue;
    if (right >= 0 && j > position + right) continue;
    if (c.mask && mask.get<std::uint8_t>((h * c.queries + i) * c.keys + j) == 0) continue;
    const double* k_row = values_[1].data() + at(k, b, kv_head, j);
    double s = 0, size = 0;
    for (int x = 0; x < c.d; ++x) {
      const double product = scale * q_row[x] * k_row[x];
      s += product;
      size += std::abs(product);
    }
    double error_j = (c.d + 4) * size;  // a chain of FMAs over scaled and rounded q
    if (c.softcap > 0) s = c.softcap * std::tanh(s / c.softcap), error_j += 20 * std::abs(s);
    if (c.slopes || c.slopes_batched) {
      const double slope = value(slopes, c.slopes_batched ? b * c.heads + h : h);
      s -= slope * std::abs(static_cast<double>(position - j));
      error_j += 4 * std::abs(slope * static_cast<double>(position - j));
    }
    if (c.bias) {
      const double x = value(bias, (b * c.queries + i) * c.keys + j);
      s += x;
      if (x > -infinity) error_j += 4 * std::abs(x);
    }
    error_j += 4 * std::abs(s);
    if (s > -infinity) error = std::max(error, error_j);
    score[static_cast<std::size_t>(j)] = s;
    most = std::max(most, s);
  }
  Row row{std::vector<double>(static_cast<std::size_t>(c.dv)), std::vector<double>(static_cast<std::size_t>(c.dv)),
          -infinity, 0};
  // Two weights enter a quotient; then the polynomial, the chain of at most 1024 additions, and the tree.
  row.error = 2 * error + 2 * static_cast<double>(std::min<std::int64_t>(end - start, 1024)) + 40;
  if (c.dtype == DType::bfloat16) row.error += 128;  // on AMX a weight is two bfloat16 numbers
  if (most == -infinity) return row;
  double total = c.sink ? std::exp(value(sink, h) - most) : 0;
  for (std::int64_t j = start; j < end; ++j) {
    const double p = std::exp(score[static_cast<std::size_t>(j)] - most);
    total += p;
    if (p == 0) continue;
    const double* v_row = values_[2].data() + at(v, b, kv_head, j);
    for (int x = 0; x < c.dv; ++x) {
      row.out[static_cast<std::size_t>(x)] += p * v_row[x];
      row.spread[static_cast<std::size_t>(x)] += p * std::abs(v_row[x]);
    }
  }
  for (auto& x : row.out) x /= total;
  for (auto& x : row.spread) x /= total;
  row.lse = most + std::log(total);
  return row;
}

/// Biases of dtype t that log2(e) would carry beyond the largest number, every fourth key hidden: in row i all are the
/// lowest finite number (i % 3 = 0), all but key 5 are (1), key 5 alone is nearly the largest (2).
inline void give_huge_biases(AttentionData& a, DType t) {
  const double largest = t == DType::float64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  a.bias = Array(t, {a.c.queries, a.c.keys});
  for (std::int64_t i = 0; i < a.c.queries; ++i)
    for (std::int64_t j = 0; j < a.c.keys; ++j) {
      double x = i % 3 == 2 ? 0 : -largest;
      if (j == 5 && i % 3 != 0) x = i % 3 == 1 ? 0 : largest * 0.875;
      a.bias.set_value(i * a.c.keys + j, j % 4 == 3 ? -std::numeric_limits<double>::infinity() : x);
    }
}

/// How far the rows of one head, of biases like those, are from the mean of the values that are not hidden (i % 3 = 0)
/// or from key 5's: the worst distance, infinite for a NaN.
inline double huge_bias_error(const AttentionData& a) {
  double worst = 0;
  for (std::int64_t i = 0; i < a.c.queries; ++i)
    for (int x = 0; x < a.c.dv; ++x) {
      double sum = 0, count = 0;
      for (std::int64_t j = 0; j < a.c.keys; ++j) {
        if (i % 3 == 0 ? j % 4 == 3 : j != 5) continue;
        sum += AttentionData::value(a.v, a.at(a.v, 0, 0, j) + x);
        ++count;
      }
      const double error = std::abs(AttentionData::value(a.out, a.at(a.out, 0, 0, i) + x) - sum / count);
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
  return worst;
}

}  // namespace softfold_test
