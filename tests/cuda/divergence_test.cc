// cpu == cuda, bit for bit: entropy and divergence over the list of cases, shapes of real models, masks, lengths and
// layouts, in place and replayed.
#include "cuda/consumers.hpp"

namespace softfold_test {
namespace {

TEST_F(CudaConsumers, EntropyOfTheList) { run_list({Op::entropy, Op::entropy_backward}); }
TEST_F(CudaConsumers, KlDivergenceOfTheList) { run_list({Op::kl_divergence, Op::kl_divergence_backward}); }

/// x, dentropy -> entropy, states, dx.
Problem entropy_problem(DType t, std::int64_t rows, std::int64_t n, double scale) {
  Problem p;
  p.op = Op::entropy;
  p.own = softfold::EntropyOptions{};
  p.scale = scale;
  p.inputs.push_back(logits(t, rows, n));
  p.inputs.emplace_back(DType::float32, Shape{rows});
  for (std::int64_t r = 0; r < rows; ++r) p.inputs[1].set_value(r, gradient_of_row(r));
  p.outputs.emplace_back(DType::float32, Shape{rows});
  p.outputs.emplace_back(DType::float64, Shape{rows, 4});
  p.outputs.emplace_back(t, Shape{rows, n});
  return p;
}

TEST_F(CudaConsumers, EntropyOfModelsShapes) {
  std::size_t index = 0;
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{1100, 31},
                                {700, 100},
                                {333, 256},
                                {201, 511},
                                {700, 1000},
                                {90, 4096},
                                {24, 50257},
                                {12, 128256},
                                {3, 1000001}})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (const double scale : {1., -1.25, 0., 6e5}) {
        if (index++ % step() != 0 || (n > 10000 && scale > 1.)) continue;
        Problem p = entropy_problem(t, rows, n, scale);
        const std::string what = shape_of(rows, n, t) + " scale " + std::to_string(scale);
        expect_same(p, what);
        if (HasFatalFailure()) return;
        Problem back = p;
        back.op = Op::entropy_backward;
        back.inputs = {p.inputs[0], p.outputs[1], p.inputs[1]};
        back.outputs = {p.outputs[2]};
        expect_same(back, what + " backward");
        if (HasFatalFailure()) return;
      }
}

/// p, q, dkl -> kl, states of p, of q, dp, dq. q is close to p in a row of three; some rows of either are special.
Problem kl_problem(DType t, std::int64_t rows, std::int64_t n, double scale) {
  Problem p;
  p.op = Op::kl_divergence;
  p.own = softfold::KlDivergenceOptions{};
  p.scale = scale;
  p.inputs.push_back(logits(t, rows, n));
  p.inputs.emplace_back(t, Shape{rows, n});
  for (std::int64_t k = 0; k < rows * n; ++k) {
    const double near = value(k / n, k % n, n) + 0.01 * static_cast<double>(k % 5);
    p.inputs[1].set_value(k, k / n % 3 == 0 ? near : value(k / n + 2, k % n, n));
  }
  p.inputs.emplace_back(DType::float32, Shape{rows});
  for (std::int64_t r = 0; r < rows; ++r) p.inputs[2].set_value(r, gradient_of_row(r));
  p.outputs.emplace_back(DType::float32, Shape{rows});
  for (int i = 0; i < 2; ++i) p.outputs.emplace_back(DType::float64, Shape{rows, 4});
  for (int i = 0; i < 2; ++i) p.outputs.emplace_back(t, Shape{rows, n});
  return p;
}

/// The same from the states, which the CPU has found.
Problem kl_backward_of(const Problem& p) {
  Problem back = p;
  back.op = Op::kl_divergence_backward;
  back.inputs = {p.inputs[0], p.inputs[1], p.outputs[1], p.outputs[2], p.inputs[2]};
  back.outputs = {p.outputs[3], p.outputs[4]};
  return back;
}

TEST_F(CudaConsumers, KlDivergenceOfModelsShapes) {
  std::size_t index = 0;
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{700, 1000},
                                {1100, 1000},
                                {260, 31},
                                {44, 1024},
                                {90, 4096},
                                {33, 17003},
                                {24, 50257},
                                {12, 128256},
                                {3, 262144},
                                {3, 300001},
                                {900, 9217},
                                {300, 400},
                                {2049, 128}})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (const double scale : {1., -1.25, 0., 6e5, 1e-30}) {
        if (index++ % step() != 0 || (rows * n > 350000 && scale != 1. && index % 4 != 0)) continue;
        Problem p = kl_problem(t, rows, n, scale);
        const std::string what = shape_of(rows, n, t) + " scale " + std::to_string(scale);
        expect_same(p, what);
        if (HasFatalFailure()) return;
        Problem back = kl_backward_of(p);
        expect_same(back, what + " backward");
        if (HasFatalFailure()) return;
      }
}

TEST_F(CudaConsumers, KlDivergenceOfMasksLengthsAndOtherLayouts) {
  std::size_t index = 0;
  for (const std::int64_t n : {0, 5, 1500, 9000})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float64})
      for (int bits = 0; bits < 16; ++bits) {
        if (index++ % step() != 0) continue;
        constexpr std::int64_t rows = 23;
        Problem p = kl_problem(t, rows, n, 0.75);
        if ((bits & 1) != 0) {
          p.mask = Array(DType::boolean, {rows, n});
          for (std::int64_t k = 0; k < rows * n; ++k) p.mask->set_value(k, k % 7 != 2 && k / n != 4 ? 1. : 0.);
        }
        if ((bits & 2) != 0) {
          p.length = Array(DType::int64, {rows});
          for (std::int64_t r = 0; r < rows; ++r)
            p.length->set_value(r, static_cast<double>(r % 4 == 0 ? r * n / rows : std::max<std::int64_t>(n - r, 0)));
        }
        if ((bits & 4) != 0) {
          p.scales = Array(DType::float32, {rows});
          for (std::int64_t r = 0; r < rows; ++r)
            p.scales->set_value(r, r == 3   ? std::numeric_limits<double>::quiet_NaN()
                                   : r == 6 ? 0.
                                            : 0.5 - 0.25 * static_cast<double>(r));
        }
        if ((bits & 8) != 0) {  // of p and q only one in float32, of the gradients one elsewhere
          p.empty = softfold::Empty::nan;
          if (t == DType::bfloat16) {
            p.inputs[1] = Array(DType::float32, {rows, n});
            for (std::int64_t k = 0; k < rows * n; ++k) p.inputs[1].set_value(k, value(k / n + 2, k % n, n));
          }
          p.outputs[4] = Array(t == DType::float64 ? t : DType::float32, {rows, n}, Layout::padded);
        }
        expect_same(p, std::to_string(n) + " " + std::string(name_of(t)) + " options " + std::to_string(bits));
        if (HasFatalFailure()) return;
      }
}

TEST_F(CudaConsumers, KlDivergenceInPlaceOfBothRowsReplayedInAGraph) {
  for (const std::int64_t n : {5000, 300001}) {
    Problem p = kl_problem(DType::float32, 20, n, 1.);
    OnDevice device(p);
    plan_of(bind(p), p.op, false).run();
    auto own = std::get<softfold::KlDivergenceOptions>(device.bound.own);
    own.rows = device.bound.rows;
    own.dkl = device.bound.inputs[2];
    own.dp = device.bound.inputs[0], own.dq = device.bound.inputs[1];
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
      for (const std::size_t x : {0U, 1U})
        cuda_check(cudaMemcpy(device.memory[x]->data(), p.inputs[x].bytes().data(), p.inputs[x].bytes().size(),
                              cudaMemcpyHostToDevice));
      cuda_check(cudaGraphLaunch(replay, stream));
      cuda_check(cudaStreamSynchronize(stream));
      for (const std::size_t x : {0U, 1U}) EXPECT_EQ(device.memory[x]->download(), p.outputs[3 + x].bytes());
      EXPECT_EQ(device.memory[p.inputs.size()]->download(), p.outputs[0].bytes());
    }
    cuda_check(cudaGraphExecDestroy(replay));
    cuda_check(cudaGraphDestroy(graph));
    cuda_check(cudaStreamDestroy(stream));
  }
}

/// Of rows that entropy_small_rows and kl_small_rows take, and a little longer ones.
TEST_F(CudaConsumers, EntropyAndDivergenceOfShortRows) {
  std::size_t index = 0;
  for (const std::int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 100, 127, 128, 129})
    for (const std::int64_t rows : {1, 70, 3001})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
        for (const double scale : {1., -1.25, 0., 6e5, 1e-30})
          for (const bool gradient : {false, true}) {
            if (index++ % step() != 0) continue;
            const std::string what = shape_of(rows, n, t) + " scale " + std::to_string(scale);
            for (Problem p : {entropy_problem(t, rows, n, scale), kl_problem(t, rows, n, scale)}) {
              if (!gradient) p.outputs.resize(1);
              const bool entropy = p.op == Op::entropy, is_small = n <= 128 && (!entropy || rows * n <= 1 << 18);
              const std::string kernel(plan_of(OnDevice(p).bound, p.op, false).kernel());
              EXPECT_EQ(kernel == (entropy ? "entropy_small_rows" : "kl_small_rows"),
                        is_small && !leaves_out_small_kernels())
                  << what << " by " << kernel;
              expect_same(p, what);
              if (HasFailure()) return;
            }
          }
}

}  // namespace
}  // namespace softfold_test
