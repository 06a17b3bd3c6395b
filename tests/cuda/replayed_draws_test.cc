// Draws in a captured graph, by seeds and offsets that lie in the device's memory: a replay draws by what they hold
// when it runs, as a call that is given the same numbers then.
#include "cuda/replay.hpp"

#include "softfold/shards.hpp"

#include <array>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::View;

constexpr int kReplays = 8;

class CudaReplayedDraws : public Cuda {
 protected:
  void SetUp() override {
    Cuda::SetUp();
    if (!IsSkipped()) cuda_check(cudaStreamCreate(&stream_));
    context_.stream = stream_;
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaStream_t stream_ = nullptr;
  softfold::Context context_;
};

/// Seeds and offsets of a batch or of each row, and the rows' identities, which are their places.
struct Keys {
  Tensor seeds, offsets, ids;
  bool of_rows;

  Keys(std::int64_t rows, bool of_rows_)
      : seeds(DType::int64, {of_rows_ ? rows : 1}),
        offsets(DType::int64, {of_rows_ ? rows : 1}),
        ids(DType::int64, {rows}),
        of_rows(of_rows_) {
    ids.fill([](std::int64_t r) { return static_cast<double>(r); });
  }
  /// What replay `turn` draws by; one of three turns keeps the seeds, another the offsets. Negative seeds are large
  /// ones.
  static std::int64_t seed(int turn, std::int64_t row) {
    return 1000003 * (turn / 3 * 2 + turn % 3 % 2) - 77 * row - 5;
  }
  static std::int64_t offset(int turn, std::int64_t row) { return turn % 3 == 2 ? 3 + row % 4 : turn / 3; }
  void turn_to(int turn) {
    seeds.fill([&](std::int64_t r) { return static_cast<double>(seed(turn, r)); });
    offsets.fill([&](std::int64_t r) { return static_cast<double>(offset(turn, r)); });
  }
  softfold::SampleOptions by_views(bool gpu) {
    softfold::SampleOptions o;
    o.seeds = seeds.view(gpu), o.offsets = offsets.view(gpu), o.row_ids = ids.view(gpu);
    return o;
  }
  /// The same draw, for a call of its own: of a batch by numbers.
  softfold::SampleOptions fresh(int turn, bool gpu) {
    if (of_rows) return by_views(gpu);
    softfold::SampleOptions o;
    o.seed = static_cast<std::uint64_t>(seed(turn, 0)), o.offset = static_cast<std::uint64_t>(offset(turn, 0));
    return o;
  }
};

struct Drawn {
  std::int64_t rows, n, top_k;
  double top_p;
  bool probabilities;
};

/// x, and what a draw gives.
struct Draws {
  Drawn d;
  Tensor x, tokens, log_probability, probabilities;

  explicit Draws(const Drawn& drawn)
      : d(drawn),
        x(DType::bfloat16, {d.rows, d.n}),
        tokens(DType::int64, {d.rows}),
        log_probability(DType::float32, {d.rows}),
        probabilities(DType::float32, {d.rows, d.n}) {
    x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / d.n, i % d.n, d.n); });
  }
  std::vector<Tensor*> results() { return {&tokens, &log_probability, &probabilities}; }
  void run(bool gpu, softfold::SampleOptions o, const softfold::Context& context = {}) {
    o.top_k = d.top_k, o.top_p = d.top_p;
    o.log_probability = log_probability.view(gpu);
    if (d.probabilities) o.probabilities = probabilities.view(gpu);
    softfold::sample(x.view(gpu), tokens.view(gpu), o, context);
  }
  std::vector<std::vector<unsigned char>> downloaded() {
    std::vector<std::vector<unsigned char>> all;
    for (const Tensor* t : results()) all.push_back(t->download());
    return all;
  }
};

TEST_F(CudaReplayedDraws, SampleDrawsByTheSeedsOfTheReplay) {
  for (const Drawn& d : {Drawn{300, 1000, 0, 1., false},
                         {40, 9000, 50, 0.9, false},
                         {3, 128256, 50, 0.9, false},
                         {2, 128256, 0, 1., false},
                         {100, 20000, 0, 0.9, false},
                         {20, 5000, 40, 0.95, true}})
    for (const bool of_rows : {false, true}) {
      Draws draws(d);
      Keys keys(d.rows, of_rows);
      const softfold::SampleOptions by_keys = keys.by_views(true);
      keys.turn_to(0);
      draws.run(true, by_keys, context_);
      const Replay replay(stream_, [&] { draws.run(true, by_keys, context_); });
      std::vector<unsigned char> before;
      for (int turn = 0; turn < kReplays; ++turn) {
        const std::string what = std::to_string(d.rows) + "x" + std::to_string(d.n) + (of_rows ? " rows' own" : "") +
                                 " replay " + std::to_string(turn);
        keys.turn_to(turn);
        for (Tensor* t : draws.results()) t->poison(0xA5);
        replay();
        cuda_check(cudaStreamSynchronize(stream_));
        const auto replayed = draws.downloaded();
        for (Tensor* t : draws.results()) t->poison(0xA5);
        draws.run(true, keys.fresh(turn, true), context_);
        draws.run(false, keys.fresh(turn, false));
        cuda_check(cudaStreamSynchronize(stream_));
        for (std::size_t i = 0; i < replayed.size(); ++i) {
          const Tensor& t = *draws.results()[i];
          ASSERT_EQ(difference(t.host(), replayed[i], t.size()), "") << what << " result " << i;
          ASSERT_EQ(difference(t.host(), t.download(), t.size()), "") << what << " result " << i << " of a fresh call";
        }
        EXPECT_NE(before, replayed[0]) << what << " draws what the one before drew";
        before = replayed[0];
      }
    }
}

/// A part of x's rows on the GPU.
struct ShardView {
  std::int64_t shape[2], strides[2];
  View x;

  ShardView(Tensor& whole, std::int64_t begin, std::int64_t end)
      : shape{whole.shape()[0], end - begin}, strides{whole.shape()[1], 1} {
    const View all = whole.cuda();
    x = View(static_cast<char*>(all.data) + begin * static_cast<std::int64_t>(whole.size()), whole.dtype(), shape,
             strides, all.device);
  }
  ShardView(const ShardView&) = delete;
  ShardView& operator=(const ShardView&) = delete;
};

/// Rows in two shards: their partials, and the tokens that each of them draws.
struct ShardedDraws {
  Draws whole;
  std::int64_t cuts[3], width;
  Tensor partials, tokens[2];

  ShardedDraws(std::int64_t rows, std::int64_t n, std::int64_t cut)
      : whole({rows, n, 0, 1., false}),
        cuts{0, cut, n},
        width(std::max(softfold::partial_width(cut, {0, n}), softfold::partial_width(n - cut, {cut, n}))),
        partials(DType::float64, {2, rows, width}),
        tokens{{DType::int64, {rows}}, {DType::int64, {rows}}} {
    const std::int64_t one[] = {rows, width};
    for (std::size_t i = 0; i < 2; ++i) {
      const ShardView shard(whole.x, cuts[i], cuts[i + 1]);
      auto* const to = static_cast<double*>(partials.device_data()) + static_cast<std::int64_t>(i) * rows * width;
      softfold::ShardOptions o;
      o.shard = {cuts[i], n};
      softfold::fold_shard(shard.x, View(static_cast<void*>(to), DType::float64, one, {}, shard.x.device), o);
    }
  }
  void run(const softfold::SampleOptions& o, const softfold::Context& context) {
    for (std::size_t i = 0; i < 2; ++i) {
      const ShardView shard(whole.x, cuts[i], cuts[i + 1]);
      softfold::sample_shard(shard.x, partials.cuda(), tokens[i].cuda(), {cuts[i], cuts[2]}, o, context);
    }
  }
  void poison() {
    for (Tensor& t : tokens) t.poison(0xA5);
  }
};

/// What a fresh call for each shard gives, and together the tokens of the whole rows.
TEST_F(CudaReplayedDraws, ShardsDrawByTheSeedsOfTheReplay) {
  for (const auto& [rows, n, cut] : {std::array<std::int64_t, 3>{40, 9300, 4096}, {4, 128256, 60001}, {300, 1000, 333}})
    for (const bool of_rows : {false, true}) {
      ShardedDraws draws(rows, n, cut);
      Keys keys(rows, of_rows);
      const softfold::SampleOptions by_keys = keys.by_views(true);
      keys.turn_to(0);
      draws.run(by_keys, context_);
      const Replay replay(stream_, [&] { draws.run(by_keys, context_); });
      for (int turn = 0; turn < kReplays; ++turn) {
        keys.turn_to(turn);
        draws.poison();
        replay();
        cuda_check(cudaStreamSynchronize(stream_));
        const std::vector<unsigned char> replayed[] = {draws.tokens[0].download(), draws.tokens[1].download()};
        draws.poison();
        draws.run(keys.fresh(turn, true), context_);
        draws.whole.run(false, keys.fresh(turn, false));
        cuda_check(cudaStreamSynchronize(stream_));
        const std::string what = std::to_string(rows) + "x" + std::to_string(n) + (of_rows ? " rows' own" : "") +
                                 " replay " + std::to_string(turn);
        for (std::size_t i = 0; i < 2; ++i)
          ASSERT_EQ(difference(draws.tokens[i].download(), replayed[i], 8), "") << what << " shard " << i;
        for (std::int64_t r = 0; r < rows; ++r) {
          std::int64_t token[3];
          const unsigned char* const from[] = {replayed[0].data(), replayed[1].data(),
                                               draws.whole.tokens.host().data()};
          for (int k = 0; k < 3; ++k) std::memcpy(&token[k], from[k] + 8 * r, 8);
          ASSERT_EQ(std::max(token[0], token[1]), token[2]) << what << " row " << r;
        }
      }
    }
}

}  // namespace
}  // namespace softfold_test
