// A fold of one's own, on softfold::fold alone: the mean of values weighted by the softmax of their scores, which is
// what one query of attention computes. It needs softfold's headers and nothing else: no library, no dependency.
//
// The state is (m, d, sum): the log-sum-exp of the scores and, in the same frame, the weighted sum of the values. Its
// merge rescales by the exact powers of two that the log-sum-exp gives it. The canonical tree carries it, so that one
// thread and four workers in any order give the same bits: the program checks that and prints them.
#include "softfold/fold/logsumexp.hpp"
#include "softfold/lift/tree.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

namespace {

namespace lift = softfold::lift;

struct Expectation {
  using Lse = softfold::fold::LogSumExp<float>;
  struct Element {
    float score, value;
  };
  struct State {
    Lse::State weight;
    float sum;
  };

  Lse lse;

  static State identity() { return {Lse::identity(), -0.f}; }
  static State merge(const State& a, const State& b) {
    const Lse::State weight = Lse::merge(a.weight, b.weight);
    return {weight, a.sum * Lse::factor(a.weight.m, weight.m) + b.sum * Lse::factor(b.weight.m, weight.m)};
  }
  State lift(Element e) const {
    const Lse::State weight = lse.lift(e.score);
    return {weight, weight.d > 0 ? weight.d * e.value : -0.f};
  }
  State push(const State& s, Element e) const { return merge(s, lift(e)); }
  /// Nothing has the mean 0; a score of +inf or NaN has none.
  float finish(const State& s) const {
    if (s.weight.m == std::numeric_limits<double>::infinity()) return std::numeric_limits<float>::quiet_NaN();
    return s.weight.d > 0 ? s.sum / s.weight.d : 0.f;
  }
};
static_assert(softfold::fold::Fold<Expectation>);

using State = Expectation::State;

/// The state of one chunk: halving, as the canonical tree has it.
State reduce_chunk(const Expectation& fold, const Expectation::Element* x, std::int64_t n) {
  static thread_local State leaves[lift::kChunk];
  for (std::int64_t i = 0; i < n; ++i) leaves[i] = fold.lift(x[i]);
  return lift::halve<Expectation>(leaves, static_cast<int>(n));
}

}  // namespace

int main() {
  constexpr std::int64_t kChunks = 16;
  std::vector<Expectation::Element> row(kChunks * lift::kChunk);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto x = static_cast<float>(i);
    row[i] = {20.f * std::sin(0.37f * x), 2.f + std::cos(0.11f * x)};
  }
  const Expectation fold{{softfold::fold::make_scale<float>(1)}};

  // One worker, from left to right.
  lift::TreeBuilder<Expectation> whole;
  for (std::int64_t c = 0; c < kChunks; ++c)
    whole.push(reduce_chunk(fold, &row[static_cast<std::size_t>(c * lift::kChunk)], lift::kChunk));

  // Four workers, the last one first, each with four chunks: a node of level 2. Then the nodes in order.
  State nodes[4];
  for (std::int64_t worker = 3; worker >= 0; --worker) {
    lift::TreeBuilder<Expectation> part;
    for (std::int64_t c = 4 * worker; c < 4 * worker + 4; ++c)
      part.push(reduce_chunk(fold, &row[static_cast<std::size_t>(c * lift::kChunk)], lift::kChunk));
    nodes[worker] = part.root();
  }
  lift::TreeBuilder<Expectation> joined;
  for (const State& node : nodes) joined.push(node, 2);

  const float one = fold.finish(whole.root()), four = fold.finish(joined.root());
  double weights = 0, sum = 0;
  for (const auto& e : row) {
    const double w = std::exp(static_cast<double>(e.score) - 20);
    weights += w;
    sum += w * static_cast<double>(e.value);
  }
  std::printf("one worker    %a\nfour workers  %a\nin float64    %a\n", static_cast<double>(one),
              static_cast<double>(four), sum / weights);
  const bool close = std::abs(static_cast<double>(one) - sum / weights) < 1e-5;
  return std::bit_cast<std::uint32_t>(one) == std::bit_cast<std::uint32_t>(four) && close ? 0 : 1;
}
