// attention_naive, _safe, _merged, _online: how attention is written before one knows better, to be read and raced. One
// head after the other, its rows in parallel.
#include "cpu/attention_ladder.hpp"

#include "cpu/attention_scores.hpp"
#include "cpu/ladder_ops.hpp"
#include "cpu/parallel.hpp"
#include "softfold/fold/parts.hpp"

#include <vector>

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

const char* refuses(const AttentionProblem& p, Rung own) {
  if (p.rung != own) return "a rung of the ladder: only when asked for";
  if (p.q.dtype != p.out.dtype || (p.q.dtype != DType::float32 && p.q.dtype != DType::float64))
    return "this rung takes float32 or float64, and gives what it took";
  if (p.softcap > 0 || p.sink.given || p.slopes.given || p.bias.given || p.mask.given || p.state.given)
    return "this rung has scale, causal, window and lengths alone";
  return nullptr;
}

/// The rows of one query head.
template <class T>
struct Head {
  const AttentionProblem& p;
  const AttentionSequence& s;
  std::int64_t head;
  const TileOps<T>& ops;
  const LadderOps<T>& ladder;
  Executor& executor;

  std::int64_t batch() const { return p.packed ? 0 : s.index; }
  const T* key(std::int64_t j) const { return of_key(p.k, j); }
  const T* value(std::int64_t j) const { return of_key(p.v, j); }
  const T* of_key(const AttentionTensor& t, std::int64_t j) const {
    return row_of<const T>(t, s.kv_batch, head / (p.q_heads / p.kv_heads), s.kv_token + j);
  }
  T* out(std::int64_t i) const { return row_of<T>(p.out, batch(), head, s.q_token + i); }

  /// log2(e) * score of query i and keys [first, last).
  void scores(std::int64_t i, KeyRange keys, T* to) const {
    T q[AttentionProblem::kMaxHeadDim];
    scale_query(i, q);
    scores(q, keys, to);
  }
  void scores(const T* scaled_q, KeyRange keys, T* to) const {
    ops.row_products(scaled_q, p.d, key(keys.first), p.k.token, keys.last - keys.first, to);
  }
  void scale_query(std::int64_t i, T* to) const {
    ops.widen[index(p.q.dtype)](row_of<const T>(p.q, batch(), head, s.q_token + i), p.d, q_scale<T>(p), to);
  }
  void add_values(const T* weights, KeyRange keys, T* to) const {
    ops.row_values(weights, keys.last - keys.first, value(keys.first), p.v.token, p.dv, to);
  }
  void write_lse(std::int64_t i, double lse) const {
    if (!p.lse.given) return;
    if (p.lse.dtype == DType::float64) {
      *row_of<double>(p.lse, batch(), head, s.q_token + i) = fold::canonical(lse);
    } else {
      *row_of<float>(p.lse, batch(), head, s.q_token + i) = fold::narrow<float>(lse);
    }
  }
  template <class Body>
  void rows(const Body& body) const {
    parallel_for(executor, s.queries, body);
  }
};

/// Scores to probabilities by the ladder's safe rung, and their lse.
template <class T>
double safe_probabilities(const Head<T>& h, T* scores, std::int64_t n) {
  const auto sum = h.ladder.safe_sum(scores, n, T(1));
  const fold::Normaliser<T> row(sum);
  if (row.regular) {
    h.ladder.write(scores, n, T(1), sum, scores);
  } else {
    std::fill(scores, scores + n, row.empty ? T(0) : fold::canonical_nan<T>());
  }
  return row.regular || row.empty ? fold::lse_of<T>(sum) : fold::canonical_nan<double>();
}

/// softmax(q k^T) v as it is written on paper: T x S scores are there at once.
template <class T>
void materialised(const Head<T>& h) {
  const std::int64_t width = h.s.end - h.s.start;
  std::vector<T> matrix(static_cast<std::size_t>(h.s.queries * width));
  const auto row = [&](std::int64_t i) { return matrix.data() + i * width; };
  h.rows([&](std::int64_t i) {
    if (const KeyRange keys = h.s.seen_by(i); keys.first < keys.last) h.scores(i, keys, row(i));
  });
  h.rows([&](std::int64_t i) {
    const KeyRange keys = h.s.seen_by(i);
    const std::int64_t n = keys.last - keys.first;
    if (n <= 0) return h.write_lse(i, -fold::infinity<double>());
    if (h.p.rung != Rung::naive) return h.write_lse(i, safe_probabilities(h, row(i), n));
    const auto sum = h.ladder.naive_sum(row(i), n, T(1));
    h.ladder.naive_write(row(i), n, T(1), sum, row(i));
    h.write_lse(i, fold::lse_of<T>(sum));
  });
  h.rows([&](std::int64_t i) {
    std::fill(h.out(i), h.out(i) + h.p.dv, T(0));
    if (const KeyRange keys = h.s.seen_by(i); keys.first < keys.last) h.add_values(row(i), keys, h.out(i));
  });
}

/// A chunk of keys at a time, for all rows: its probabilities, its lse, its output; outputs merged by their lse.
template <class T>
void merged(const Head<T>& h) {
  constexpr std::int64_t chunk = lift::kChunk;
  std::vector<T> p(static_cast<std::size_t>(h.s.queries * chunk)), part(static_cast<std::size_t>(h.s.queries * h.p.dv));
  std::vector<double> lse(static_cast<std::size_t>(h.s.queries), -fold::infinity<double>());
  h.rows([&](std::int64_t i) { std::fill(h.out(i), h.out(i) + h.p.dv, T(0)); });
  for (std::int64_t first = h.s.start; first < h.s.end; first += chunk)
    h.rows([&](std::int64_t i) {
      KeyRange keys = h.s.seen_by(i);
      keys = {std::max(keys.first, first), std::min(keys.last, first + chunk)};
      const std::int64_t n = keys.last - keys.first;
      if (n <= 0) return;
      T *weights = p.data() + i * chunk, *own = part.data() + i * h.p.dv, *out = h.out(i);
      h.scores(i, keys, weights);
      const double own_lse = safe_probabilities(h, weights, n);
      std::fill(own, own + h.p.dv, T(0));
      h.add_values(weights, keys, own);
      const fold::PartSum parts[] = {{lse[static_cast<std::size_t>(i)], 1}, {own_lse, 1}};
      double share[2];
      lse[static_cast<std::size_t>(i)] = fold::log_of(fold::join_parts(parts, 2, false, share), false);
      for (int c = 0; c < h.p.dv; ++c) out[c] = out[c] * static_cast<T>(share[0]) + own[c] * static_cast<T>(share[1]);
    });
  h.rows([&](std::int64_t i) { h.write_lse(i, lse[static_cast<std::size_t>(i)]); });
}

/// One key at a time: the fold, pushed.
template <class T>
void online(const Head<T>& h) {
  h.rows([&](std::int64_t i) {
    T q[AttentionProblem::kMaxHeadDim], o[AttentionProblem::kMaxHeadDim] = {};
    h.scale_query(i, q);
    auto sum = fold::LogSumExp<T>::identity();
    const KeyRange keys = h.s.seen_by(i);
    for (std::int64_t j = keys.first; j < keys.last; ++j) {
      T t;
      h.scores(q, {j, j + 1}, &t);
      const auto key = fold::lift_score<T>(t);
      const auto joined = fold::join<T>(sum, key);
      sum = joined.sum;
      if (joined.a != T(1))
        for (int c = 0; c < h.p.dv; ++c) o[c] *= joined.a;
      const T weight = key.d * joined.b;
      h.add_values(&weight, {j, j + 1}, o);
    }
    h.ops.narrow[index(h.p.out.dtype)](o, h.p.dv, fold::share_of<T>(sum), h.out(i));
    h.write_lse(i, fold::lse_of<T>(sum));
  });
}

template <class T>
void run_as(const AttentionProblem& p, Executor& executor) {
  for (std::int64_t b = 0; b < p.sequences; ++b) {
    const AttentionSequence s(p, b);
    for (std::int64_t head = 0; head < p.q_heads; ++head) {
      const Head<T> h{p, s, head, tile_ops<T>(), ladder_ops<T>(), executor};
      switch (p.rung) {
        case Rung::merged: merged(h); break;
        case Rung::online: online(h); break;
        default: materialised(h); break;
      }
    }
  }
}

}  // namespace

void run_attention_ladder(const AttentionProblem& p, const Context& context) {
  if (p.is_double()) return run_as<double>(p, executor_of(context));
  run_as<float>(p, executor_of(context));
}

const char* naive_refuses(const AttentionProblem& p, const Context&) { return refuses(p, Rung::naive); }
const char* safe_refuses(const AttentionProblem& p, const Context&) { return refuses(p, Rung::safe); }
const char* merged_refuses(const AttentionProblem& p, const Context&) { return refuses(p, Rung::merged); }
const char* online_refuses(const AttentionProblem& p, const Context&) { return refuses(p, Rung::online); }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
