// cpu == cuda, byte for byte: row operations, gradients, states and merges over the list of cases that the CPU's known
// bits are made of; the same in place, on other rungs and in shards. (The list's losses are in consumers_test.cc, its
// top-k and sampling in selection_test.cc.)
#include "cuda/consumers.hpp"
#include "refuse/refusal.hpp"

#include "softfold/shards.hpp"

#include <array>

namespace softfold_test {
namespace {

class CudaList : public CudaConsumers {
 protected:
  /// Calls check(case) for those that are row operations.
  template <class Check>
  static void for_rows(const Check& check) {
    std::size_t index = 0;
    for (const Case& c : cases()) {
      if (!c.rows || index++ % step() != 0) continue;
      check(c);
      if (HasFatalFailure()) return;
    }
  }
};

const std::vector<Op> kGradients{Op::softmax_backward, Op::log_softmax_backward, Op::logsumexp_backward};
const std::vector<Op> kFinished{Op::finish_softmax, Op::finish_log_softmax, Op::finish_logsumexp};
const std::vector<Op> kMerges{Op::merge_states, Op::merge_attention, Op::merge_blocks};

TEST_F(CudaList, Softmax) { run_list({Op::softmax}, true); }
TEST_F(CudaList, LogSoftmax) { run_list({Op::log_softmax}, true); }
TEST_F(CudaList, Logsumexp) { run_list({Op::logsumexp}, true); }
TEST_F(CudaList, State) { run_list({Op::state}, true); }
TEST_F(CudaList, Gradients) { run_list(kGradients, true); }
TEST_F(CudaList, FinishedShards) { run_list(kFinished, true); }
TEST_F(CudaList, Merges) { run_list(kMerges, true); }

/// Whoever adds an operation to the list sees here that no test of it runs on the GPU.
TEST_F(CudaList, NoOperationIsLeftOut) {
  std::vector<Op> run{Op::softmax, Op::log_softmax, Op::logsumexp, Op::state};
  for (const auto* more : {&kGradients, &kFinished, &kMerges}) run.insert(run.end(), more->begin(), more->end());
  for (const Op elsewhere : {Op::cross_entropy, Op::cross_entropy_backward, Op::entropy, Op::entropy_backward,
                             Op::kl_divergence, Op::kl_divergence_backward, Op::topk, Op::sample})
    run.push_back(elsewhere);
  for (const Case& c : cases()) EXPECT_NE(std::find(run.begin(), run.end(), op_of(c)), run.end()) << c.name;
}

/// The result over each input of its shape and dtype.
TEST_F(CudaList, InPlace) {
  int in_place = 0;
  for_rows([&](const Case& c) {
    const Problem fresh = c.make();
    Problem cpu = fresh;
    plan_of(bind(cpu), cpu.op, false).run();
    for (std::size_t i = 0; i < fresh.inputs.size(); ++i) {
      if (fresh.inputs[i].shape() != fresh.outputs[0].shape() || fresh.inputs[i].dtype() != fresh.outputs[0].dtype())
        continue;
      Problem p = fresh;
      OnDevice device(p);
      device.bound.outputs[0] = device.bound.inputs[i];
      const std::string kernel = run_on_device(p, device.bound);
      Array& result = p.inputs[i];
      result.bytes() = device.memory[i]->download();
      ASSERT_EQ(result.elements(), cpu.outputs[0].elements()) << c.name << " over input " << i << " by " << kernel;
      ASSERT_TRUE(result.only_elements_written()) << c.name << " over input " << i << " by " << kernel;
      ++in_place;
    }
  });
  EXPECT_GT(in_place, 500 / static_cast<int>(step()));
}

/// A rung gives the bits of any other, or is refused before a byte is written.
TEST_F(CudaList, RungsRunOrAreRefused) {
  int ran = 0, refused = 0;
  for_rows([&](const Case& c) {
    const Problem fresh = c.make();
    Problem cpu = fresh;
    plan_of(bind(cpu), cpu.op, false).run();
    for (const softfold::Rung rung : {softfold::Rung::tiled, softfold::Rung::fused}) {
      Problem p = fresh;
      p.rung = rung;
      OnDevice device(p);
      std::string by = "nothing: refused";
      const Array* expected = &p.outputs[0];
      try {
        by = run_on_device(p, device.bound);
        expected = &cpu.outputs[0];
        ++ran;
      } catch (const softfold::Error& e) {
        ASSERT_EQ(e.code, Code::unsupported) << c.name << ": " << e.what();
        ++refused;
      }
      const auto got = device.memory[p.inputs.size()]->download();
      ASSERT_EQ(got, expected->bytes()) << c.name << " on rung " << static_cast<int>(rung) << " by " << by;
    }
  });
  EXPECT_GT(ran, 100 / static_cast<int>(step()));
  EXPECT_GT(refused, 10 / static_cast<int>(step()));
}

/// Elements [begin, end) along an axis, which is counted from behind, of something that x's shape is broadcast from.
struct Slice {
  Shape shape;
  View view;

  Slice(const View& whole, std::int64_t from_behind, std::int64_t begin, std::int64_t end, bool broadcasts)
      : shape(whole.shape.begin(), whole.shape.end()), view(whole) {
    const std::size_t axis = shape.size() - static_cast<std::size_t>(from_behind);
    if (!broadcasts || shape[axis] != 1) {
      shape[axis] = end - begin;
      view.data = static_cast<char*>(whole.data) +
                  begin * whole.strides[axis] * static_cast<std::int64_t>(size_of(whole.dtype));
    }
    view.shape = shape;
  }
  Slice(const Slice&) = delete;
  Slice& operator=(const Slice&) = delete;
};

/// A case of Op::state whose rows are cut into shards.
struct Sharded {
  Problem whole;
  std::int64_t n, from_behind;  ///< of the folded axis
  std::array<std::int64_t, 5> cuts;
  std::vector<Array> lengths;  ///< of each shard
  Array partials, states;

  /// A single element, parts of chunks, whole chunks; of short rows some shards have no elements.
  explicit Sharded(const Case& c)
      : whole(c.make()),
        n(c.rows->n()),
        from_behind(c.rows->axis < 0 ? -c.rows->axis : std::ssize(c.rows->shape) - c.rows->axis) {
    const std::int64_t one = std::min<std::int64_t>(n, 1), middle = std::max(one, n / 2 / 1024 * 1024);
    cuts = {0, one, middle, std::max(middle, n - n / 5), n};
    std::int64_t width = 0;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      width = std::max(width, softfold::partial_width(cuts[i + 1] - cuts[i], {cuts[i], n}));
      if (!whole.length) continue;
      Array& own = lengths.emplace_back(*whole.length);
      for (std::int64_t r = 0; r < own.count(); ++r)
        own.set_value(r, static_cast<double>(std::clamp(c.rows->length_of_row(r), cuts[i], cuts[i + 1]) - cuts[i]));
    }
    states = Array(DType::float64, whole.outputs[0].shape());
    Shape shape = states.shape();
    shape.back() = width + 1;
    shape.insert(shape.begin(), std::ssize(cuts) - 1);
    partials = Array(DType::float64, shape);
  }

  /// view(array): where it lies on the side that is to run.
  template <class ViewOf>
  void fold_and_join(const ViewOf& view) {
    const View all = view(partials), x = view(whole.inputs[0]);
    const Shape one(all.shape.begin() + 1, all.shape.end());
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::int64_t begin = cuts[i], end = cuts[i + 1];
      const Slice part(x, from_behind, begin, end, false);
      std::optional<Slice> mask;
      softfold::ShardOptions o;
      o.rows.axis = whole.axis;
      o.rows.scale = whole.scale;
      o.rows.empty = whole.empty;
      if (whole.scales) o.rows.scales = view(*whole.scales);
      if (whole.length) o.rows.length = view(lengths[i]);
      if (whole.mask) o.rows.mask = mask.emplace(view(*whole.mask), from_behind, begin, end, true).view;
      o.shard = {begin, n};
      auto* const to = static_cast<double*>(all.data) + static_cast<std::int64_t>(i) * count_of(one);
      softfold::fold_shard(part.view, View(static_cast<void*>(to), DType::float64, one, {}, all.device), o);
    }
    softfold::join_states(all, view(states));
  }
  /// Ragged and causal rows have no shards.
  template <class ViewOf>
  void expect_refused(const ViewOf& view, const std::string& what) {
    softfold::ShardOptions o;
    o.rows.causal = whole.causal;
    if (whole.offsets) o.rows.offsets = view(*whole.offsets);
    softfold_test::expect_refused(what, Code::unsupported, {},
                                  [&] { softfold::fold_shard(view(whole.inputs[0]), view(partials), o); });
  }
};

/// Partials of shards, and the states that they are joined to, which are those of the whole rows.
TEST_F(CudaList, PartialsOfShardsAndTheirJoin) {
  int joined = 0, refused = 0;
  for_rows([&](const Case& c) {
    if (c.rows->op != Op::state) return;
    Sharded s(c);
    DeviceCopies copies;
    const auto on_cpu = [](Array& a) { return a.view(); };
    const auto on_gpu = [&copies](Array& a) { return copies(a); };
    if (s.whole.causal || s.whole.offsets) {
      const std::vector<unsigned char> poison = s.partials.bytes();
      s.expect_refused(on_gpu, c.name);
      s.expect_refused(on_cpu, c.name);
      ASSERT_EQ(copies.download(s.partials), poison) << c.name;
      ++refused;
      return;
    }
    s.fold_and_join(on_gpu);
    s.fold_and_join(on_cpu);
    cuda_check(cudaDeviceSynchronize());
    ASSERT_EQ(copies.download(s.partials), s.partials.bytes()) << c.name;
    ASSERT_EQ(copies.download(s.states), s.states.bytes()) << c.name;
    plan_of(bind(s.whole), Op::state, false).run();
    ASSERT_EQ(s.states.elements(), s.whole.outputs[0].elements()) << c.name;
    ++joined;
  });
  EXPECT_GT(joined, 100 / static_cast<int>(step()));
  EXPECT_GT(refused, 10 / static_cast<int>(step()));
}

}  // namespace
}  // namespace softfold_test
