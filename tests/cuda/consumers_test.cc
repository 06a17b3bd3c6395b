// cpu == cuda, bit for bit: cross-entropy over the list of cases and over shapes of real models; targets that are no
// class; losses in place and replayed.
#include "cuda/consumers.hpp"

namespace softfold_test {
namespace {

using softfold::CrossEntropyOptions;
using softfold::Reduction;

TEST_F(CudaConsumers, CrossEntropyOfTheList) { run_list({Op::cross_entropy, Op::cross_entropy_backward}); }

/// x, targets, dloss, [weight] -> loss, log-probability, states, dx.
Problem loss_problem(DType t, std::int64_t rows, std::int64_t n, const CrossEntropyOptions& o, bool weighted) {
  Problem p;
  p.op = Op::cross_entropy;
  p.own = o;
  p.scale = 0.75;
  p.inputs.push_back(logits(t, rows, n));
  p.inputs.emplace_back(DType::int64, Shape{rows});
  for (std::int64_t r = 0; r < rows; ++r)
    p.inputs[1].set_value(r, r % 5 == 4 ? -100. : static_cast<double>((r * 7919 + 13) % n));
  const Shape loss = o.reduction == Reduction::none ? Shape{rows} : Shape{};
  p.inputs.emplace_back(DType::float32, loss);
  for (std::int64_t r = 0; r < p.inputs[2].count(); ++r) p.inputs[2].set_value(r, gradient_of_row(r));
  if (weighted) {
    p.inputs.emplace_back(DType::float32, Shape{n});
    for (std::int64_t i = 0; i < n; ++i) p.inputs[3].set_value(i, 0.25 * static_cast<double>(i % 9));
  }
  p.outputs.emplace_back(DType::float32, loss);
  p.outputs.emplace_back(DType::float32, Shape{rows});
  p.outputs.emplace_back(DType::float64, Shape{rows, 4});
  p.outputs.emplace_back(t, Shape{rows, n});
  return p;
}

TEST_F(CudaConsumers, CrossEntropyOfModelsShapes) {
  std::size_t index = 0;
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{2500, 128},
                                {700, 1000},
                                {300, 1024},
                                {90, 4096},
                                {40, 16385},
                                {300, 17003},
                                {400, 17003},
                                {24, 50257},
                                {150, 50257},
                                {12, 128256},
                                {7, 262144},
                                {3, 1000001}})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (const int bits : {0, 1, 4, 6, 7}) {
        if (index++ % step() != 0) continue;
        CrossEntropyOptions o;
        o.reduction = static_cast<Reduction>((bits + static_cast<int>(rows)) % 3);
        o.label_smoothing = (bits & 1) != 0 ? 0.1 : 0;
        o.z_loss = (bits & 2) != 0 ? 1e-4 : 0;
        Problem p = loss_problem(t, rows, n, o, (bits & 4) != 0);
        if ((bits & 4) == 0) p.scale = 0.5;  // factors of gradients that are powers of two, and others
        expect_same(p, shape_of(rows, n, t) + " options " + std::to_string(bits));
        if (HasFatalFailure()) return;
      }
}

TEST_F(CudaConsumers, CrossEntropyWithoutGradient) {
  constexpr std::int64_t kShapes[][2] = {{1, 1},      {20000, 10}, {300, 1025}, {30, 8192},   {10, 16385}, {8, 50257},
                                         {3, 128256}, {2, 262144}, {1, 262145}, {40, 128256}, {4200, 4096}};
  std::size_t index = 0;
  for (const auto& [rows, n] : kShapes)
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (int bits = 0; bits < 12; ++bits) {
        if (index++ % step() != 0) continue;
        CrossEntropyOptions o;
        o.reduction = static_cast<Reduction>(bits % 3);
        Problem p = loss_problem(t, rows, n, o, (bits & 1) != 0);
        p.scale = bits < 9 ? 0.75 : bits == 9 ? 0. : -1.25;
        p.outputs.resize((bits & 2) != 0 ? 3 : 1);
        expect_same(p, std::to_string(n) + " " + std::string(name_of(t)) + " options " + std::to_string(bits));
        if (HasFatalFailure()) return;
      }
}

/// Probabilities of which a third is 0, in place of class indices.
void give_probabilities(Problem& p, DType t, std::int64_t n) {
  Array q(t, p.inputs[0].shape());
  for (std::int64_t k = 0; k < q.count(); ++k)
    q.set_value(k, k % 3 == 0 ? 0. : 2. * std::abs(std::sin(static_cast<double>(k))) / static_cast<double>(n));
  p.inputs[1] = q;
}

TEST_F(CudaConsumers, CrossEntropyOfClassProbabilities) {
  std::size_t index = 0;
  for (const auto& [rows, n] :
       {std::pair<std::int64_t, std::int64_t>{40, 100}, {21, 1025}, {23, 4096}, {12, 50257}, {3, 300001}, {0, 10}})
    for (const auto& [t, of_q] : {std::pair{DType::float32, DType::float32},
                                  {DType::bfloat16, DType::float32},
                                  {DType::float16, DType::float16},
                                  {DType::float64, DType::float64}})
      for (int bits = 0; bits<16; bits += n> 10000 ? 5 : 1) {
        if (index++ % step() != 0) continue;
        CrossEntropyOptions o;
        o.reduction = static_cast<Reduction>((bits + static_cast<int>(rows)) % 3);
        o.label_smoothing = (bits & 1) != 0 ? 0.1 : 0;
        o.z_loss = (bits & 2) != 0 ? 1e-4 : 0;
        Problem p = loss_problem(t, rows, n, o, (bits & 4) != 0);
        give_probabilities(p, of_q, n);
        if ((bits & 8) != 0) {
          p.mask = Array(DType::boolean, {n});
          for (std::int64_t i = 0; i < n; ++i) p.mask->set_value(i, i % 4 != 1 ? 1. : 0.);
        }
        const std::string what = shape_of(rows, n, t) + " options " + std::to_string(bits);
        expect_same(p, what);
        if (HasFatalFailure()) return;
        if (rows == 0) continue;
        Problem back = p;
        back.op = Op::cross_entropy_backward;
        back.inputs = {p.inputs[0], p.inputs[1], p.outputs[2], p.inputs[2]};
        if (p.inputs.size() > 3) back.inputs.push_back(p.inputs[3]);
        back.outputs = {p.outputs[3]};
        expect_same(back, what + " backward");
        if (HasFatalFailure()) return;
      }
}

TEST_F(CudaConsumers, ATargetThatIsNoClassIsCountedAndItsRowIsNaN) {
  constexpr std::int64_t rows = 40, n = 3000;
  CrossEntropyOptions o;
  o.reduction = Reduction::none;
  for (const int bits : {0, 1, 2, 3}) {
    const bool weighted = (bits & 1) != 0, with_gradient = (bits & 2) != 0;
    Problem good = loss_problem(DType::float32, rows, n, o, weighted);
    Problem bad = loss_problem(DType::float32, rows, n, o, weighted);
    if (!with_gradient) bad.outputs.resize(3);
    for (const auto& [row, target] : {std::pair<std::int64_t, double>{3, 3000}, {11, -1}, {12, 9e15}, {20, -9e15}})
      bad.inputs[1].set_value(row, target);
    plan_of(bind(good), good.op, false).run();
    OnDevice device(bad);
    const std::vector<unsigned char> poison(4, 0xA5);
    const DeviceBytes status(poison);
    const Shape one{};
    auto& own = std::get<CrossEntropyOptions>(device.bound.own);
    own.status = View(static_cast<void*>(status.data()), DType::int32, one, {}, kCuda);
    run_on_device(bad, device.bound);
    std::int32_t count = 0;
    std::memcpy(&count, status.download().data(), 4);
    EXPECT_EQ(count, 4);
    for (const std::size_t out : {0U, 1U, 3U}) {
      if (out >= bad.outputs.size()) continue;
      Array got = bad.outputs[out];
      got.bytes() = device.memory[bad.inputs.size() + out]->download();
      EXPECT_TRUE(got.only_elements_written());
      const std::int64_t per_row = got.count() / rows;
      for (std::int64_t k = 0; k < got.count(); ++k) {
        const std::int64_t r = k / per_row;
        const float v = got.get<float>(k);
        if (r == 3 || r == 11 || r == 12 || r == 20) {
          // An element of logit -inf exists as well.
          EXPECT_TRUE(std::isnan(v)) << out << " " << k;
        } else {
          EXPECT_EQ(std::memcmp(&v, &good.outputs[out].bytes()[64 + 4 * static_cast<std::size_t>(k)], 4), 0)
              << out << " " << k;
        }
      }
    }
  }
}

TEST_F(CudaConsumers, OfNoRowsNoTargetIsLost) {
  for (const Op op : {Op::cross_entropy, Op::cross_entropy_backward}) {
    const DeviceBytes status(std::vector<unsigned char>(4, 0xA5)), memory(std::vector<unsigned char>(256, 0));
    const Shape rows{0}, all{0, 10}, states{0, 4}, one{};
    const View x(memory.data(), DType::float32, all, {}, kCuda), target(memory.data(), DType::int64, rows, {}, kCuda);
    const View loss(memory.data(), DType::float32, rows, {}, kCuda), dx = x;
    const View state(memory.data(), DType::float64, states, {}, kCuda);
    CrossEntropyOptions o;
    o.reduction = Reduction::none;
    o.status = View(static_cast<void*>(status.data()), DType::int32, one, {}, kCuda);
    if (op == Op::cross_entropy) {
      softfold::plan(op, std::vector{x, target}, std::vector{loss}, o).run();
    } else {
      softfold::plan(op, std::vector{x, target, state, loss}, std::vector{dx}, o).run();
    }
    cuda_check(cudaDeviceSynchronize());
    EXPECT_EQ(status.download(), std::vector<unsigned char>(4, 0));
  }
}

TEST_F(CudaConsumers, InPlaceAndReplayedInAGraph) {
  CrossEntropyOptions o;
  o.reduction = Reduction::mean;
  Problem p = loss_problem(DType::bfloat16, 60, 5000, o, false);
  OnDevice device(p);
  const Bound cpu = bind(p);
  plan_of(cpu, p.op, false).run();
  auto& own = std::get<CrossEntropyOptions>(device.bound.own);
  own.rows = device.bound.rows;
  own.dx = device.bound.inputs[0];
  const std::span<const View> in(device.bound.inputs), out(device.bound.outputs);
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreate(&stream));
  softfold::Context context;
  context.stream = stream;
  const std::size_t bytes = softfold::plan(p.op, in.first(2), out.first(1), own, context).workspace_bytes();
  const DeviceBytes memory(std::vector<unsigned char>(bytes, 0));
  softfold::Workspace lent{memory.data(), bytes};
  context.workspace = &lent;
  const auto plan = softfold::plan(p.op, in.first(2), out.first(1), own, context);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  plan.run();
  cuda_check(cudaStreamEndCapture(stream, &graph));
  cuda_check(cudaGraphInstantiate(&replay, graph, 0));
  for (int i = 0; i < 2; ++i) {
    cuda_check(cudaMemcpy(device.memory[0]->data(), p.inputs[0].bytes().data(), p.inputs[0].bytes().size(),
                          cudaMemcpyHostToDevice));
    cuda_check(cudaGraphLaunch(replay, stream));
    cuda_check(cudaStreamSynchronize(stream));
    std::vector<float> loss(1);
    cuda_check(cudaMemcpy(loss.data(), out[0].data, 4, cudaMemcpyDeviceToHost));
    EXPECT_EQ(std::memcmp(loss.data(), &p.outputs[0].bytes()[p.outputs[0].origin()], 4), 0);
  }
  cuda_check(cudaGraphExecDestroy(replay));
  cuda_check(cudaGraphDestroy(graph));
  cuda_check(cudaStreamDestroy(stream));
  CrossEntropyOptions again = std::get<CrossEntropyOptions>(cpu.own);
  again.rows = cpu.rows;
  again.dx = cpu.outputs[3];
  softfold::plan(p.op, std::span<const View>(cpu.inputs).first(2), std::span<const View>(cpu.outputs).first(1), again)
      .run();
  EXPECT_EQ(device.memory[0]->download(), p.outputs[3].bytes());
}

}  // namespace
}  // namespace softfold_test
