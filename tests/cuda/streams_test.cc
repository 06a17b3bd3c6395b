// What a schedule must not change: graph replays, two streams at once, repeats, a row alone or in a batch, a lent
// workspace, errors that become softfold::Error.
#include "cuda/replay.hpp"
#include "support/environment.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaStreams : public Cuda {
 protected:
  static softfold::Plan plan_of(Op op, Tensor& x, Tensor& y, cudaStream_t stream,
                                softfold::Workspace* workspace = nullptr) {
    softfold::Context context;
    context.stream = stream;
    context.workspace = workspace;
    const softfold::View in = x.cuda(), out = y.cuda();
    return softfold::plan(op, {&in, 1}, {&out, 1}, softfold::RowOptions{}, context);
  }
};

const std::pair<std::int64_t, std::int64_t> kShapes[] = {{300, 100},   {40, 1000},   {20, 9000},  {300, 20000},
                                                         {150, 50257}, {3, 1000000}, {20, 100000}};

TEST_F(CudaStreams, GraphReplaysAndRepeatsGiveTheSameBits) {
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreate(&stream));
  for (const auto& [rows, n] : kShapes) {
    Tensor x(DType::float32, {rows, n}), y(DType::float32, {rows, n});
    x.fill([&, n = n](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
    const auto once = plan_of(Op::softmax, x, y, stream);
    once.run();
    cuda_check(cudaStreamSynchronize(stream));
    const auto expected = y.download();
    const Replay replay(stream, [&] { once.run(); });
    const int replays = rows * n < 1000000 ? 1000 : 20, compared = replays / 20;
    for (int i = 0; i < replays; ++i) {
      if (i % compared == 0) y.poison(0xA5);
      replay();
      if (i % compared == compared - 1) {
        cuda_check(cudaStreamSynchronize(stream));
        ASSERT_EQ(difference(expected, y.download(), 4), "") << rows << "x" << n << " replay " << i;
      }
    }
    cuda_check(cudaStreamSynchronize(stream));
  }
  cudaStreamDestroy(stream);
}

/// Kernels whose clusters take rows as they come, or whose blocks wait for each other's nodes: which has which row, and
/// when, differs from run to run.
TEST_F(CudaStreams, AThousandRunsOfKernelsThatStayGiveTheSameBits) {
  struct Stay {
    Op op;
    DType dtype;
    std::int64_t rows, n;
    const char* kernel;
  };
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreate(&stream));
  for (const Stay& s : {Stay{Op::softmax, DType::bfloat16, 300, 50257, "softmax_cluster_stays"},
                        {Op::softmax, DType::float16, 300, 50257, "softmax_cluster_stays"},
                        {Op::softmax, DType::bfloat16, 120, 128256, "softmax_cluster_stays"},
                        {Op::softmax, DType::float16, 120, 128256, "softmax_cluster_stays"},
                        {Op::log_softmax, DType::float16, 300, 50257, "softmax_cluster_stays"},
                        {Op::log_softmax, DType::float16, 120, 128256, "softmax_cluster_stays"},
                        {Op::log_softmax, DType::bfloat16, 60, 262144, "softmax_cluster_stays"},
                        {Op::log_softmax, DType::bfloat16, 750, 180000, "softmax_ring"},
                        {Op::log_softmax, DType::float16, 1350, 100000, "softmax_ring"},
                        {Op::softmax, DType::bfloat16, 120, 600001, "softmax_grid_ring"},
                        {Op::softmax, DType::bfloat16, 60, 600000, "softmax_grid_guesses"},
                        {Op::softmax, DType::float32, 20, 1000000, "softmax_grid_guesses"}}) {
    Tensor x(s.dtype, {s.rows, s.n}), y(s.dtype, {s.rows, s.n});
    const Values kind = s.n * s.rows < (std::int64_t{1} << 25) ? Values::drift : Values::normal;  // drift takes longer
    x.fill_by_threads([&s, kind](std::int64_t i) { return value_of(kind, i / s.n, i % s.n, s.n); });
    const auto plan = plan_of(s.op, x, y, stream);
    const std::string what = std::string(s.kernel) + " " + std::string(name_of(s.dtype)) + " " + std::to_string(s.n);
    ASSERT_EQ(plan.kernel(), s.kernel) << what;
    plan.run();
    cuda_check(cudaStreamSynchronize(stream));
    const std::vector<unsigned char> expected = y.download();
    std::vector<unsigned char> got(expected.size());
    const Replay replay(stream, [&] { plan.run(); });
    const int compared = expected.size() < (std::size_t{64} << 20) ? 10 : 50;
    for (int i = 0; i < 1000; ++i) {
      if (i % compared == 0) cuda_check(cudaMemsetAsync(y.device_data(), 0xA5, got.size() - 16 * y.size(), stream));
      if (i % 2 == 0) plan.run();
      if (i % 2 == 1) replay();
      if (i % compared != compared - 1) continue;
      cuda_check(cudaStreamSynchronize(stream));
      cuda_check(cudaMemcpy(got.data(), y.device_data(), got.size(), cudaMemcpyDeviceToHost));
      ASSERT_EQ(difference(expected, got, y.size()), "") << what << " run " << i;
    }
  }
  cudaStreamDestroy(stream);
}

TEST_F(CudaStreams, TwoStreamsDoNotMeet) {
  cudaStream_t streams[2];
  for (auto& s : streams) cuda_check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  for (const auto& [rows, n] : kShapes) {
    Tensor a(DType::float32, {rows, n}), b(DType::float32, {rows, n}), ya(DType::float32, {rows, n}),
        yb(DType::float32, {rows, n});
    a.fill([&, n = n](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
    b.fill([&, n = n](std::int64_t i) { return value_of(Values::wide, i / n, i % n, n); });
    plan_of(Op::softmax, a, ya, nullptr).run();
    plan_of(Op::softmax, b, yb, nullptr).run();
    cuda_check(cudaDeviceSynchronize());
    const auto expected_a = ya.download(), expected_b = yb.download();
    ya.poison(0xA5), yb.poison(0xA5);
    const auto plan_a = plan_of(Op::softmax, a, ya, streams[0]), plan_b = plan_of(Op::softmax, b, yb, streams[1]);
    for (int i = 0; i < 20; ++i) plan_a.run(), plan_b.run();
    cuda_check(cudaDeviceSynchronize());
    ASSERT_EQ(difference(expected_a, ya.download(), 4), "");
    ASSERT_EQ(difference(expected_b, yb.download(), 4), "");
  }
  for (auto& s : streams) cudaStreamDestroy(s);
}

TEST_F(CudaStreams, ARowAloneIsTheRowInABatch) {
  for (const auto& [rows, n] : kShapes) {
    Tensor x(DType::bfloat16, {rows, n}), y(DType::bfloat16, {rows, n}), one(DType::bfloat16, {1, n});
    x.fill([&, n = n](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
    plan_of(Op::softmax, x, y, nullptr).run();
    const std::int64_t row = rows - 1, shape[] = {1, n};
    const softfold::View in(static_cast<void*>(static_cast<std::uint16_t*>(x.device_data()) + row * n), DType::bfloat16,
                            shape, {}, {softfold::DeviceKind::cuda, 0});
    softfold::softmax(in, one.cuda());
    cuda_check(cudaDeviceSynchronize());
    const auto all = y.download(), alone = one.download();
    EXPECT_EQ(std::memcmp(&all[static_cast<std::size_t>(row * n) * 2], alone.data(), static_cast<std::size_t>(n) * 2),
              0)
        << rows << "x" << n;
  }
}

/// Calls that read what the one before wrote, over every kernel of plain rows.
void chain(Tensor* const (&t)[4], Tensor& lse, const softfold::Context& context) {
  softfold::softmax(t[0]->cuda(), t[1]->cuda(), {}, context);
  softfold::log_softmax(t[1]->cuda(), t[2]->cuda(), {}, context);
  softfold::softmax_backward(t[1]->cuda(), t[2]->cuda(), t[3]->cuda(), {}, context);
  softfold::softmax(t[3]->cuda(), t[1]->cuda(), {}, context);  // over what the calls before it read
  softfold::logsumexp(t[1]->cuda(), lse.cuda(), {}, context);
}

TEST_F(CudaStreams, LaunchesThatOverlapReadWhatCameBefore) {
  softfold::Context in_turn, overlapping;
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreate(&stream));
  in_turn.stream = overlapping.stream = stream;
  overlapping.overlap = true;
  for (const auto dtype : {DType::float32, DType::bfloat16, DType::float64}) {
    for (const auto& [rows, n] : kShapes) {
      if (dtype == DType::float64 && rows * n > 1000000) continue;
      Tensor x(dtype, {rows, n}), p(dtype, {rows, n}), lp(dtype, {rows, n}), dx(dtype, {rows, n}), lse(dtype, {rows});
      Tensor* const t[] = {&x, &p, &lp, &dx};
      x.fill([&, n = n](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
      chain(t, lse, in_turn);
      cuda_check(cudaStreamSynchronize(stream));
      const auto expected = p.download(), expected_lse = lse.download();
      const Replay replay(stream, [&] {
        for (int i = 0; i < 3; ++i) chain(t, lse, overlapping);
      });
      for (int i = 0; i < 20; ++i) {
        for (Tensor* written : {&p, &lp, &dx, &lse}) written->poison(0xA5);
        if (i % 2 == 0) replay();
        if (i % 2 == 1) chain(t, lse, overlapping);
        cuda_check(cudaStreamSynchronize(stream));
        const auto size = static_cast<std::size_t>(softfold::size_of(dtype));
        ASSERT_EQ(difference(expected, p.download(), size), "") << rows << "x" << n << " turn " << i;
        ASSERT_EQ(difference(expected_lse, lse.download(), size), "") << rows << "x" << n << " turn " << i;
      }
    }
  }
  cudaStreamDestroy(stream);
}

/// softmax, and everything that reads what it has just written: k and a draw of the largest, losses with gradient and
/// status (which a memset clears), a mean with gradient of these gradients, and of its own in place, a gradient from
/// saved states, ragged rows, the longest by all blocks (another memset).
struct Readers {
  Tensor x, p, values, indices, tokens, targets, loss, status, states, dx, classes, mean, over, again, offsets, ragged;
  Readers(std::int64_t rows, std::int64_t n)
      : x(DType::bfloat16, {rows, n}),
        p(DType::bfloat16, {rows, n}),
        values(DType::float32, {rows, 50}),
        indices(DType::int32, {rows, 50}),
        tokens(DType::int32, {rows}),
        targets(DType::int32, {rows}),
        loss(DType::float32, {rows}),
        status(DType::int32, {1}),
        states(DType::float64, {rows, 4}),
        dx(DType::bfloat16, {rows, n}),
        classes(DType::int32, {rows}),
        mean(DType::float32, {}),
        over(DType::bfloat16, {rows, n}),
        again(DType::bfloat16, {rows, n}),
        offsets(DType::int64, {4}),
        ragged(DType::bfloat16, {rows * n}) {
    x.fill([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
    targets.fill([&](std::int64_t i) { return i % 7 == 3 ? double(n) : double(i * 31 % n); });  // some are no classes
    classes.fill([&](std::int64_t i) { return static_cast<double>(i * 17 % n); });
    const std::int64_t cuts[] = {0, 5, rows * n / 3, rows * n};
    offsets.fill([&](std::int64_t i) { return static_cast<double>(cuts[i]); });
  }
  void run(const softfold::Context& context) {
    softfold::SampleOptions nucleus;
    nucleus.top_k = 50, nucleus.top_p = 0.9;
    softfold::CrossEntropyOptions each, later, whole;
    whole.dx = over.cuda();
    each.reduction = later.reduction = softfold::Reduction::none;
    each.states = states.cuda(), each.dx = dx.cuda(), each.status = status.cuda();
    softfold::RowOptions cut;
    cut.offsets = offsets.cuda();
    const std::int64_t all[] = {ragged.count()};
    const softfold::View list(again.cuda().data, again.dtype(), all, {}, {softfold::DeviceKind::cuda, 0});
    softfold::softmax(x.cuda(), p.cuda(), {}, context);
    softfold::topk(p.cuda(), values.cuda(), indices.cuda(), {}, context);
    softfold::sample(p.cuda(), tokens.cuda(), nucleus, context);
    softfold::cross_entropy(p.cuda(), targets.cuda(), loss.cuda(), each, context);
    softfold::cross_entropy(dx.cuda(), classes.cuda(), mean.cuda(), whole, context);
    softfold::cross_entropy(over.cuda(), classes.cuda(), mean.cuda(), whole, context);
    softfold::cross_entropy_backward(p.cuda(), targets.cuda(), states.cuda(), loss.cuda(), again.cuda(), later,
                                     context);
    softfold::softmax(list, ragged.cuda(), cut, context);
  }
  std::array<Tensor*, 11> results() {
    return {&p, &values, &indices, &tokens, &loss, &status, &dx, &mean, &over, &again, &ragged};
  }
};

TEST_F(CudaStreams, ConsumersThatOverlapReadWhatCameBefore) {
  softfold::Context in_turn, overlapping;
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreate(&stream));
  in_turn.stream = overlapping.stream = stream;
  overlapping.overlap = true;
  Tensor memory(DType::boolean, {1 << 28});  // every call's workspace
  softfold::Workspace workspace{memory.device_data(), 1 << 28};
  overlapping.workspace = &workspace;
  for (const auto& [rows, n] : {std::pair{300, 1000}, {40, 9000}, {3, 128256}, {600, 20000}}) {
    Readers all(rows, n);
    all.run(in_turn);
    cuda_check(cudaStreamSynchronize(stream));
    std::vector<std::vector<unsigned char>> expected;
    for (const Tensor* t : all.results()) expected.push_back(t->download());
    const Replay replay(stream, [&] {
      for (int i = 0; i < 3; ++i) all.run(overlapping);
    });
    for (int i = 0; i < 10; ++i) {
      for (Tensor* t : all.results()) t->poison(0xA5);
      if (i % 2 == 0) replay();
      if (i % 2 == 1) all.run(overlapping);
      cuda_check(cudaStreamSynchronize(stream));
      for (std::size_t k = 0; k < expected.size(); ++k) {
        const Tensor& t = *all.results()[k];
        ASSERT_EQ(difference(expected[k], t.download(), t.size()), "")
            << rows << "x" << n << " result " << k << " turn " << i;
      }
    }
  }
  cudaStreamDestroy(stream);
}

// Scales and what follows from them are found on the host.
TEST_F(CudaStreams, SameBitsInAnyFloatingPointEnvironment) {
  Tensor length(DType::int32, {64});
  length.fill([](std::int64_t i) { return static_cast<double>(17 * i); });
  for (const std::int64_t n : {1024, 5000})
    for (const double scale : {1., 0.3, -1e-30})
      for (const Op op : {Op::softmax, Op::log_softmax}) {
        Tensor x(DType::float32, {64, n}), y(DType::float32, {64, n});
        x.fill([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
        const softfold::View in = x.cuda(), out = y.cuda();
        for (const bool cut : {false, true}) {
          softfold::RowOptions o;
          o.scale = scale;
          if (cut) o.length = length.cuda();
          const auto results = [&] {
            softfold::plan(op, {&in, 1}, {&out, 1}, o).run();
            return y.download();
          };
          const auto expected = results();
          for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO})
            for (const bool flush : {false, true}) {
              const CallersEnvironment environment(rounding, flush);
              EXPECT_EQ(difference(expected, results(), 4), "") << n << " scale " << scale << (cut ? " cut" : "");
            }
        }
      }
}

TEST_F(CudaStreams, AWorkspaceIsUsedAndItsSizeChecked) {
  struct Shape {
    Op op;
    std::int64_t rows, n;
  };
  for (const auto& [op, rows, n] :
       {Shape{Op::softmax, 20, 300000}, {Op::log_softmax, 1400, 50257}, {Op::softmax, 34, 1000000}}) {
    Tensor x(DType::float32, {rows, n}), y(DType::float32, {rows, n});
    x.fill([n = n](std::int64_t i) { return value_of(Values::normal, 1, i, n); });
    const std::size_t need = plan_of(op, x, y, nullptr).workspace_bytes();
    ASSERT_GT(need, 0U);
    Tensor memory(DType::boolean, {static_cast<std::int64_t>(need)});
    plan_of(op, x, y, nullptr).run();
    cuda_check(cudaDeviceSynchronize());
    const auto expected = y.download();
    softfold::Workspace workspace{memory.device_data(), need};
    for (int repeat = 0; repeat < 2; ++repeat) {
      y.poison(0xA5);
      plan_of(op, x, y, nullptr, &workspace).run();
      cuda_check(cudaDeviceSynchronize());
      EXPECT_EQ(difference(expected, y.download(), 4), "") << rows << "x" << n;
    }
    workspace.bytes = need - 1;
    EXPECT_THROW(plan_of(op, x, y, nullptr, &workspace).run(), softfold::Error);
  }
}

TEST_F(CudaStreams, HostMemoryIsRefused) {
  std::vector<float> host(100);
  const std::int64_t shape[] = {1, 100};
  const softfold::View wrong(static_cast<void*>(host.data()), DType::float32, shape, {},
                             {softfold::DeviceKind::cuda, 0});
  try {
    softfold::softmax(wrong, wrong);
    FAIL() << "host memory was taken for device memory";
  } catch (const softfold::Error& e) {
    EXPECT_EQ(e.code, softfold::Code::device);
  }
  Tensor x(DType::float32, {4, 100}), y(DType::float32, {4, 100});
  EXPECT_NO_THROW(plan_of(Op::softmax, x, y, nullptr).run());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace softfold_test
