// linear_cross_entropy on CUDA against its formulas in double; a row's bits alone and in any batch; workspaces, graphs,
// targets that are no class, and what is refused.
#include "cuda/consumers.hpp"
#include "support/linear_reference.hpp"

namespace softfold_test {
namespace {

using softfold::LinearMode;

/// Runs a case in a workspace of exactly the bytes that its plan asks for, and brings its results back.
std::string run_there(LinearCase& c, int gradients = 7) {
  std::vector<std::unique_ptr<DeviceBytes>> memory;
  const auto all = c.arrays();
  for (const Array* a : all) memory.push_back(std::make_unique<DeviceBytes>(a->bytes()));
  const auto view = [&](std::size_t i) { return all[i]->view_at(memory[i]->data(), kCuda); };
  constexpr std::size_t guard = 256;
  const std::size_t bytes = c.plan(view, {}, gradients).workspace_bytes();
  DeviceBytes workspace(soiled(bytes, guard, 0xA5));
  softfold::Workspace lent{workspace.data(), bytes};
  softfold::Context context;
  context.workspace = &lent;
  const softfold::Plan plan = c.plan(view, context, gradients);
  plan.run();
  cuda_check(cudaDeviceSynchronize());
  std::vector<unsigned char> after(guard);
  cuda_check(cudaMemcpy(after.data(), workspace.data() + bytes, guard, cudaMemcpyDeviceToHost));
  EXPECT_EQ(after, std::vector<unsigned char>(guard, 0xA5)) << "behind the workspace";
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i]->bytes() = memory[i]->download();
    if (i >= 6) {
      EXPECT_TRUE(all[i]->only_elements_written()) << i;
    }
  }
  return std::string(plan.kernel());
}

class CudaLinear : public CudaConsumers {
 protected:
  void SetUp() override {
    CudaConsumers::SetUp();
    if (testing::Test::IsSkipped()) return;
    LinearCase c(DType::float32, 1, 8, 8, Reduction::mean);
    const auto all = c.arrays();
    try {
      c.plan([&](std::size_t i) { return all[i]->view_at(all[i]->bytes().data(), kCuda); });
    } catch (const softfold::Error& e) {
      if (e.allowed.find("libcublasLt") != std::string::npos) GTEST_SKIP() << e.allowed;
    }
  }
};

/// Logits and their gradients are stored in the operands' dtype: half an ulp each beside the sums' own errors.
double bound_of(DType t) {
  return t == DType::float64 ? 1e-12 : t == DType::float32 ? 2e-5 : t == DType::float16 ? 3e-3 : 2e-2;
}

void expect_right(const LinearCase& c, const std::string& what) {
  const LinearReference wanted(c);
  const double bound = bound_of(c.type);
  EXPECT_LE(error_of(c.loss, wanted.loss), bound) << what << " loss";
  EXPECT_LE(error_of(c.log_probability, wanted.log_probability), bound) << what << " log_probability";
  EXPECT_LE(error_of(c.dx, wanted.dx), bound) << what << " dx";
  EXPECT_LE(error_of(c.dweight, wanted.dweight), bound) << what << " dweight";
  if (c.has_bias) {
    EXPECT_LE(error_of(c.dbias, wanted.dbias), bound) << what << " dbias";
  }
}

void set_options(LinearCase& c, int bits) {
  c.has_bias = (bits & 1) != 0;
  c.options.loss.label_smoothing = (bits & 2) != 0 ? 0.2 : 0;
  c.options.loss.z_loss = (bits & 4) != 0 ? 1e-2 : 0;
  c.has_class_weight = (bits & 8) != 0;
  c.options.softcap = (bits & 16) != 0 ? 4.5 : 0;
  c.options.loss.rows.scale = (bits & 32) != 0 ? 0.75 : 1;
  c.has_dloss = (bits & 64) != 0;
}

TEST_F(CudaLinear, IsTheLossOfTheLogitsAndItsGradients) {
  std::size_t index = 0;
  for (const auto& [rows, depth, classes] : {std::array<std::int64_t, 3>{5, 8, 16},
                                             {1, 64, 1000},
                                             {130, 128, 2049},
                                             {33, 96, 257},
                                             {9, 7, 33},
                                             {64, 40, 4097},
                                             {300, 136, 515}})
    for (const DType t : {DType::bfloat16, DType::float32, DType::float16, DType::float64})
      for (const LinearMode mode : {LinearMode::fast, LinearMode::lean})
        for (int bits = 0; bits < 128; bits += 31) {
          if (index++ % step() != 0) continue;
          LinearCase c(t, rows, depth, classes, static_cast<Reduction>(index % 3));
          c.options.mode = mode;
          set_options(c, mode == LinearMode::lean ? bits & ~2 : bits);
          if (rows > 3) c.targets.set_value(2, -100.);
          const std::string what = std::to_string(rows) + "x" + std::to_string(depth) + "x" + std::to_string(classes) +
                                   " " + std::string(name_of(t)) + " mode " + std::to_string(static_cast<int>(mode)) +
                                   " options " + std::to_string(bits);
          try {
            run_there(c);
          } catch (const softfold::Error& e) {
            FAIL() << what << ": " << e.what();
          }
          expect_right(c, what);
        }
}

TEST_F(CudaLinear, ARowIsTheSameAloneAndInAnyBatch) {
  for (const auto& [depth, classes] : {std::pair<std::int64_t, std::int64_t>{256, 5000}, {72, 2051}})
    for (const DType t : {DType::bfloat16, DType::float32})
      for (const LinearMode mode : {LinearMode::fast, LinearMode::lean}) {
        LinearCase all(t, 700, depth, classes, Reduction::none);
        all.options.mode = mode;
        run_there(all);
        for (const auto& [first, count] :
             {std::pair<std::int64_t, std::int64_t>{0, 1}, {5, 1}, {699, 1}, {128, 3}, {250, 300}}) {
          LinearCase part(t, count, depth, classes, Reduction::none);
          part.options.mode = mode;
          part.weight = all.weight;
          for (std::int64_t r = 0; r < count; ++r) {
            part.targets.set_value(r, number(all.targets, first + r));
            for (std::int64_t d = 0; d < depth; ++d)
              part.x.set_value(r * depth + d, number(all.x, (first + r) * depth + d));
          }
          run_there(part);
          for (std::int64_t r = 0; r < count; ++r) {
            ASSERT_EQ(number(part.loss, r), number(all.loss, first + r)) << first << " " << count;
            for (int i = 0; i < 4; ++i)
              ASSERT_EQ(number(part.states, r * 4 + i), number(all.states, (first + r) * 4 + i)) << first;
            for (std::int64_t d = 0; d < depth; ++d)
              ASSERT_EQ(number(part.dx, r * depth + d), number(all.dx, (first + r) * depth + d)) << first;
          }
        }
      }
}

// Rows one after the other, apart by what does or does not end at multiples of 16 bytes, and one alone.
TEST_F(CudaLinear, ARowIsTheSameWhereverRowsLie) {
  constexpr std::int64_t rows = 40, one = 7;
  for (const std::int64_t depth : {5, 61, 64})
    for (const DType t : {DType::bfloat16, DType::float32})
      for (const LinearMode mode : {LinearMode::fast, LinearMode::lean}) {
        LinearCase packed(t, rows, depth, 700, Reduction::none);
        packed.options.mode = mode;
        LinearCase apart = packed, alone(t, 1, depth, 700, Reduction::none);
        alone.options.mode = mode;
        apart.x = apart.dx = Array(t, {rows, depth}, Layout::padded);
        apart.x.set_elements(packed.x.elements());
        alone.weight = packed.weight;
        alone.targets.set_value(0, number(packed.targets, one));
        for (std::int64_t d = 0; d < depth; ++d) alone.x.set_value(d, number(packed.x, one * depth + d));
        for (LinearCase* c : {&packed, &apart, &alone}) run_there(*c);
        EXPECT_EQ(apart.loss.bytes(), packed.loss.bytes()) << depth;
        EXPECT_EQ(apart.states.bytes(), packed.states.bytes()) << depth;
        EXPECT_EQ(apart.dx.elements(), packed.dx.elements()) << depth;
        EXPECT_EQ(number(alone.loss, 0), number(packed.loss, one)) << depth;
        for (std::int64_t d = 0; d < depth; ++d)
          ASSERT_EQ(number(alone.dx, d), number(packed.dx, one * depth + d)) << depth << " " << d;
      }
}

TEST_F(CudaLinear, RowsThatAreIgnoredOrNotThere) {
  for (const LinearMode mode : {LinearMode::fast, LinearMode::lean})
    for (const std::int64_t rows : {0, 6}) {
      LinearCase c(DType::bfloat16, rows, 16, 40, Reduction::mean);
      c.options.mode = mode;
      c.has_bias = true;
      for (std::int64_t r = 0; r < rows; ++r) c.targets.set_value(r, -100.);
      run_there(c);
      EXPECT_EQ(number(c.loss, 0), 0.);
      for (const Array* a : {&c.dx, &c.dweight, &c.dbias})
        for (std::int64_t k = 0; k < a->count(); ++k) ASSERT_EQ(number(*a, k), 0.) << k;
    }
}

TEST_F(CudaLinear, ATargetThatIsNoClassIsCountedAndItsRowIsNaN) {
  for (const LinearMode mode : {LinearMode::fast, LinearMode::lean}) {
    LinearCase c(DType::bfloat16, 9, 16, 3000, Reduction::none);
    c.options.mode = mode;
    c.targets.set_value(3, 3000.), c.targets.set_value(5, -1.);
    const DeviceBytes status(std::vector<unsigned char>(4, 0xA5));
    const Shape one{};
    c.options.loss.status = View(static_cast<void*>(status.data()), DType::int32, one, {}, kCuda);
    run_there(c);
    std::int32_t count = 0;
    std::memcpy(&count, status.download().data(), 4);
    EXPECT_EQ(count, 2);
    for (std::int64_t r = 0; r < 9; ++r) {
      EXPECT_EQ(std::isnan(number(c.loss, r)), r == 3 || r == 5) << r;
      EXPECT_EQ(std::isnan(number(c.dx, r * 16)), r == 3 || r == 5) << r;
    }
  }
}

TEST_F(CudaLinear, ReplayedInAGraph) {
  for (const LinearMode mode : {LinearMode::fast, LinearMode::lean}) {
    LinearCase c(DType::bfloat16, 200, 64, 5000, Reduction::mean), again = c;
    c.options.mode = again.options.mode = mode;
    run_there(c);
    std::vector<std::unique_ptr<DeviceBytes>> memory;
    const auto all = again.arrays();
    for (const Array* a : all) memory.push_back(std::make_unique<DeviceBytes>(a->bytes()));
    const auto view = [&](std::size_t i) { return all[i]->view_at(memory[i]->data(), kCuda); };
    cudaStream_t stream = nullptr;
    cuda_check(cudaStreamCreate(&stream));
    softfold::Context context;
    context.stream = stream;
    const std::size_t bytes = again.plan(view, context).workspace_bytes();
    const DeviceBytes room(std::vector<unsigned char>(bytes, 0));
    softfold::Workspace lent{room.data(), bytes};
    context.workspace = &lent;
    const auto plan = again.plan(view, context);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    plan.run();
    cuda_check(cudaStreamEndCapture(stream, &graph));
    cuda_check(cudaGraphInstantiate(&replay, graph, 0));
    for (int i = 0; i < 2; ++i) cuda_check(cudaGraphLaunch(replay, stream));
    cuda_check(cudaStreamSynchronize(stream));
    EXPECT_EQ(memory[6]->download(), c.loss.bytes());
    EXPECT_EQ(memory[9]->download(), c.dx.bytes());
    EXPECT_EQ(memory[10]->download(), c.dweight.bytes());
    cuda_check(cudaGraphExecDestroy(replay));
    cuda_check(cudaGraphDestroy(graph));
    cuda_check(cudaStreamDestroy(stream));
  }
}

TEST_F(CudaLinear, LeanGivesTheLossThatFastGives) {
  for (const std::int64_t classes : {5000, 40000}) {
    LinearCase fast(DType::bfloat16, 100, 128, classes, Reduction::none), lean = fast;
    lean.options.mode = LinearMode::lean;
    run_there(fast), run_there(lean);
    EXPECT_EQ(fast.loss.bytes(), lean.loss.bytes());
    EXPECT_EQ(fast.states.bytes(), lean.states.bytes());
  }
}

// What dweight and dx keep of the logits: nothing where their vectors lie apart, else as many blocks as find room, and
// rows of one more. None of it changes a bit.
TEST_F(CudaLinear, LogitsKeptInGradientsChangeNothing) {
  std::size_t index = 0;
  for (const std::int64_t depth : {32, 33})
    for (const std::int64_t classes : {24576, 40001})
      for (const std::int64_t rows : {12, 32, 50, 64, 128, 320})
        for (const DType t : {DType::bfloat16, DType::float32, DType::float16, DType::float64})
          for (const bool wide : {false, true}) {  // dweight and dx in float32
            if (index++ % (5 * step()) != 0 || (wide && (size_of(t) > 2 || depth % 8 != 0))) continue;
            LinearCase packed(t, rows, depth, classes, Reduction::mean);
            packed.options.mode = LinearMode::lean;
            set_options(packed, static_cast<int>(index * 37 % 128) & ~2);
            for (const std::int64_t r : {1, 5, 11}) packed.targets.set_value(r, -100.);
            const DType of = wide ? DType::float32 : t;
            packed.dweight = Array(of, {classes, depth}), packed.dx = Array(of, {rows, depth});
            LinearCase apart = packed, without = packed;
            apart.dweight = Array(of, {classes, depth}, Layout::padded);
            apart.dx = Array(of, {rows, depth}, Layout::padded);
            const std::string what = std::to_string(rows) + "x" + std::to_string(depth) + "x" +
                                     std::to_string(classes) + " " + std::string(name_of(t)) + " gradients " +
                                     std::string(name_of(of));
            try {
              run_there(packed), run_there(apart), run_there(without, 5);
            } catch (const softfold::Error& e) {
              FAIL() << what << ": " << e.what();
            }
            for (const LinearCase* c : {&apart, &without}) {
              EXPECT_EQ(c->loss.bytes(), packed.loss.bytes()) << what;
              EXPECT_EQ(c->states.bytes(), packed.states.bytes()) << what;
              EXPECT_EQ(c->dx.elements(), packed.dx.elements()) << what;
              EXPECT_EQ(c->dbias.bytes(), packed.dbias.bytes()) << what;
            }
            EXPECT_LE(error_of(packed.dweight, numbers(apart.dweight)), bound_of(t)) << what;
          }
}

TEST_F(CudaLinear, LogitsKeptInGradientsGiveThem) {
  std::size_t index = 0;
  for (const std::int64_t rows : {3, 16, 32, 70})
    for (const DType t : {DType::bfloat16, DType::float32}) {
      LinearCase c(t, rows, 16, 40000, static_cast<Reduction>(index % 3));
      c.options.mode = LinearMode::lean;
      set_options(c, static_cast<int>(index++ * 19 % 128) & ~2);
      c.targets.set_value(1, -100.);
      run_there(c);
      expect_right(c, std::to_string(rows) + " rows, " + std::string(name_of(t)));
    }
}

TEST_F(CudaLinear, WhatNoKernelDoesIsRefused) {
  LinearCase c(DType::bfloat16, 5, 16, 24, Reduction::mean);
  c.weight = Array(DType::float16, {24, 16});
  const auto all = c.arrays();
  const auto view = [&](std::size_t i) { return all[i]->view_at(all[i]->bytes().data(), kCuda); };
  try {
    c.plan(view);
    FAIL() << "x and weight of two dtypes";
  } catch (const softfold::Error& e) {
    EXPECT_EQ(e.code, softfold::Code::unsupported);
    EXPECT_NE(e.allowed.find("two dtypes"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace softfold_test
