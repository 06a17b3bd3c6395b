// --backend cuda: with a GPU the bits of the CPU from every verb, also where blocks stream through; without one a
// refusal that says what is missing, before anything is written.
#include "cli/support.hpp"

#include <nlohmann/json.hpp>

namespace softfold_test {
namespace {

class CudaCommand : public CommandTest {
 protected:
  /// true, or why there is no device to use.
  nlohmann::json cuda() const {
    return nlohmann::json::parse(expect_ok({"doctor", "--json"})).at("backends").at("cuda");
  }

  void expect_same(const std::string& a, const std::string& b) {
    EXPECT_EQ(elements_of(softfold::io::open_array(at(a))), elements_of(softfold::io::open_array(at(b)))) << a << b;
  }

  /// Runs the verb on both backends, to c.npy and g.npy.
  void expect_same_result(const std::string& verb, const std::string& in, const Words& more) {
    for (const bool gpu : {false, true}) {
      Words words{verb, "@" + in, gpu ? "@g.npy" : "@c.npy", "--backend", gpu ? "cuda" : "cpu"};
      words.insert(words.end(), more.begin(), more.end());
      expect_ok(words);
    }
    expect_same("c.npy", "g.npy");
  }
};

TEST_F(CudaCommand, WithoutADeviceNothingIsWritten) {
  const auto found = cuda();
  if (found == true) GTEST_SKIP() << "there is a CUDA device";
  const std::string why = found.get<std::string>().substr(0, 20);
  write_array(at("x.npy"), DType::float32, {2, 3}, random_elements(DType::float32, 6, 1));
  expect_ok({"state", "@x.npy", "@x.part"});
  for (const Words& words :
       {Words{"softmax", "@x.npy", "@y.npy"}, Words{"log-softmax", "@x.npy", "@y.npy"},
        Words{"logsumexp", "@x.npy", "@y.npy"}, Words{"state", "@x.npy", "@y.part"},
        Words{"finish", "@x.npy", "@x.part", "@y.npy"}, Words{"verify", "@x.npy"},
        Words{"attention", "@x.npy", "@x.npy", "@x.npy", "@y.npy"},
        Words{"cross-entropy", "@x.npy", "@x.npy", "@y.npy"}, Words{"topk", "@x.npy", "@y.npy", "@z.npy"},
        Words{"sample", "@x.npy", "@y.npy"}, Words{"bench", "ladder", "@x.npy"}}) {
    Words all = words;
    all.insert(all.end(), {"--backend", "cuda"});
    const Result result = run(all);
    EXPECT_TRUE(result.status == static_cast<int>(Code::unsupported) || result.status == static_cast<int>(Code::device))
        << result.status;
    EXPECT_NE(result.err.find(why), std::string::npos) << result.err << why;
  }
  EXPECT_EQ(entries(), 2u);
  const std::string refused = run({"softmax", "@x.npy", "@y.npy", "--backend", "cuda"}).err;
  if (refused.find("compiled without CUDA") != std::string::npos) {
    EXPECT_EQ(run({"explain", "softmax", "2x3", "f32", "--backend", "cuda"}).err, refused);
  }
}

TEST_F(CudaCommand, EveryVerbHasTheCpusBits) {
  if (cuda() != true) GTEST_SKIP() << "no CUDA device";
  for (const DType dtype : {DType::float32, DType::float64, DType::float16}) {
    write_array(at("x.npy"), dtype, {5, 3000, 7}, random_elements(dtype, 5 * 3000 * 7, 5));
    for (const std::string verb : {"softmax", "log-softmax", "logsumexp"})
      for (const std::string axis : {"0", "1", "2"})
        expect_same_result(verb, "x.npy", {"--axis", axis, "--scale", "0.5"});
    expect_ok({"verify", "@x.npy", "--axis", "1", "--backend", "cuda"});
  }
}

TEST_F(CudaCommand, StreamedAndShardedRowsHaveTheCpusBits) {
  if (cuda() != true) GTEST_SKIP() << "no CUDA device";
  const std::int64_t n = 20'000'003;  // 80 MB, more than --memory
  write_array(at("x.npy"), DType::float32, {n}, random_elements(DType::float32, n, 7));
  for (const std::string verb : {"softmax", "log-softmax", "logsumexp"})
    expect_same_result(verb, "x.npy", {"--memory", "32M"});
  for (const bool gpu : {false, true}) {
    const std::string backend = gpu ? "cuda" : "cpu", part = gpu ? "@g.part" : "@c.part";
    expect_ok({"state", "@x.npy", "@a.part", "--range", ":7654321", "--backend", backend, "--memory", "32M"});
    expect_ok({"state", "@x.npy", "@b.part", "--range", "7654321:", "--backend", backend});
    expect_ok({"merge", "@b.part", "@a.part", "-o", part});
  }
  EXPECT_EQ(contents(at("g.part")), contents(at("c.part")));
  for (const bool gpu : {false, true})
    expect_ok({"finish", "@x.npy", "@g.part", gpu ? "@g.npy" : "@c.npy", "--backend", gpu ? "cuda" : "cpu"});
  expect_same("g.npy", "c.npy");
}

TEST_F(CudaCommand, ConsumersHaveTheCpusBitsInBlocksOfAnySize) {
  if (cuda() != true) GTEST_SKIP() << "no CUDA device";
  const std::int64_t rows = 2001, n = 6000;  // 48 MB
  write_array(at("x.npy"), DType::float32, {rows, n}, random_elements(DType::float32, rows * n, 3));
  write_array(at("q.npy"), DType::float32, {rows, n}, random_elements(DType::float32, rows * n, 3, 2));
  std::vector<std::int64_t> targets(rows);
  for (std::int64_t r = 0; r < rows; ++r) targets[static_cast<std::size_t>(r)] = r % 7 == 0 ? -100 : r * 37 % n;
  const auto write_targets = [&] {
    const auto bytes = std::as_bytes(std::span(targets));
    write_array(at("t.npy"), DType::int64, {rows}, {bytes.begin(), bytes.end()});
  };
  write_targets();
  const Words verbs[] = {
      {"cross-entropy", "@x.npy", "@t.npy", "@1", "--label-smoothing", "0.1"},
      {"entropy", "@x.npy", "@1", "--scale", "0.5"},
      {"kl-divergence", "@x.npy", "@q.npy", "@1"},
      {"topk", "@x.npy", "@1", "@2", "-k", "20", "--probabilities"},
      {"sample", "@x.npy", "@1", "@2", "--top-k", "50", "--top-p", "0.9", "--seed", "7"},
      {"sample", "@x.npy", "@1", "--top-logprobs", "5", "--top-tokens", "@2", "--top-lp", "@3", "--of", "sampled"},
  };
  for (const Words& verb : verbs) {
    nlohmann::json mean;
    for (const std::string backend : {"cpu", "cuda"}) {
      Words words = verb;
      for (std::string& word : words)
        if (word == "@1" || word == "@2" || word == "@3") word += backend + ".npy";
      const std::string memory = backend == "cpu" ? "1G" : "32M";
      words.insert(words.end(), {"--backend", backend, "--memory", memory, "--json"});
      const auto report = nlohmann::json::parse(expect_ok(words));
      EXPECT_EQ(report.at("backend"), backend);
      if (backend == "cpu") mean = report.value("mean", nlohmann::json());
      EXPECT_EQ(report.value("mean", nlohmann::json()), mean);
    }
    for (const std::string place : {"1", "2", "3"})
      if (std::ranges::find(verb, "@" + place) != verb.end()) expect_same(place + "cpu.npy", place + "cuda.npy");
  }
  targets[5] = n;
  write_targets();
  expect_refused(Code::data, "--ignore-index", {"cross-entropy", "@x.npy", "@t.npy", "@lost.npy", "--backend", "cuda"});
  EXPECT_FALSE(std::filesystem::exists(at("lost.npy")));
}

// A matrix product's order of additions is the device's own: sums of 96 products of up to 3, and their losses.
TEST_F(CudaCommand, LinearCrossEntropyIsTheCpus) {
  if (cuda() != true) GTEST_SKIP() << "no CUDA device";
  write_array(at("x.npy"), DType::float32, {50, 96}, random_elements(DType::float32, 50 * 96, 0.5));
  write_array(at("w.npy"), DType::float32, {1000, 96}, random_elements(DType::float32, 1000 * 96, 0.5, 2));
  std::vector<std::int64_t> targets(50);
  for (std::size_t r = 0; r < targets.size(); ++r) targets[r] = static_cast<std::int64_t>(r * 19);
  const auto bytes = std::as_bytes(std::span(targets));
  write_array(at("t.npy"), DType::int64, {50}, {bytes.begin(), bytes.end()});
  const auto loss = [&](const std::string& backend, const std::string& mode) {
    const auto report = nlohmann::json::parse(
        expect_ok({"linear-cross-entropy", "@x.npy", "@w.npy", "@t.npy", "--dx", "@" + mode + backend + ".npy",
                   "--mode", mode, "--backend", backend, "--json"}));
    EXPECT_EQ(report.at("backend"), backend);
    return report.at("mean").get<double>();
  };
  for (const std::string mode : {"fast", "lean"}) {
    EXPECT_NEAR(loss("cpu", mode), loss("cuda", mode), 2e-5);
    const auto here = elements_of(softfold::io::open_array(at(mode + "cpu.npy"))),
               there = elements_of(softfold::io::open_array(at(mode + "cuda.npy")));
    ASSERT_EQ(here.size(), there.size());
    for (std::size_t i = 0; i < here.size() / sizeof(float); ++i)
      ASSERT_NEAR(reinterpret_cast<const float*>(here.data())[i], reinterpret_cast<const float*>(there.data())[i],
                  1e-5);
  }
}

// Attention's order of additions is the device's own. Scores reach 20 and values 6, so a float32 result is within some
// 20 * 6 * 2^-24 of the true one, and two of them within 2e-5.
TEST_F(CudaCommand, AttentionIsTheCpus) {
  if (cuda() != true) GTEST_SKIP() << "no CUDA device";
  const auto floats = [&](const std::string& name, const Shape& shape, std::uint64_t seed) {
    std::int64_t count = 1;
    for (const auto n : shape) count *= n;
    write_array(at(name), DType::float32, shape, random_elements(DType::float32, count, 2, seed));
  };
  floats("q.npy", {2, 4, 33, 64}, 1), floats("k.npy", {2, 2, 150, 64}, 2), floats("v.npy", {2, 2, 150, 32}, 3);
  floats("bias.npy", {4, 33, 150}, 4);
  const auto read = [&](const std::string& name) {
    const auto bytes = elements_of(softfold::io::open_array(at(name)));
    std::vector<float> x(bytes.size() / sizeof(float));
    std::memcpy(x.data(), bytes.data(), bytes.size());
    return x;
  };
  for (const Words& more : {Words{}, Words{"--causal", "--softcap", "5"}, Words{"--bias", "@bias.npy", "--left", "20"},
                            Words{"--sink", "0,1,2,3", "--slopes", "0.5,0.25,0.1,0", "--lengths", "150,99", "--starts",
                                  "3,0", "--index", "1,0"}}) {
    for (const std::string backend : {"cpu", "cuda"}) {
      Words words{
          "attention", "@q.npy", "@k.npy", "@v.npy", "@" + backend + ".npy", "--lse", "@lse_" + backend + ".npy",
          "--backend", backend,  "--json"};
      words.insert(words.end(), more.begin(), more.end());
      const auto report = nlohmann::json::parse(expect_ok(words));
      EXPECT_EQ(report.at("backend"), backend);
      if (more.empty()) {
        words.push_back("--check");
        EXPECT_LT(nlohmann::json::parse(expect_ok(words)).at("largest_error"), 1e-5);
      }
    }
    for (const std::string name : {"", "lse_"}) {
      const auto cpu = read(name + "cpu.npy"), gpu = read(name + "cuda.npy");
      ASSERT_EQ(cpu.size(), gpu.size());
      for (std::size_t i = 0; i < cpu.size(); ++i) ASSERT_NEAR(cpu[i], gpu[i], 2e-5) << name << i;
    }
  }
}

TEST_F(CudaCommand, TheLadderIsRacedThere) {
  for (const char* op : {"logsumexp", "state"})
    expect_refused(Code::unsupported, "log-softmax", {"bench", "ladder", "--op", op, "--backend", "cuda"});
  expect_refused(Code::option, "--backend", {"bench", "ladder", "--op", "attention", "--backend", "cuda"});
  if (cuda() != true) GTEST_SKIP() << "no CUDA device";
  const auto race = [&](const char* backend) {
    return nlohmann::json::parse(expect_ok(
        {"bench", "ladder", "--n", "1000,50257", "--rows", "40", "--seconds", "0.01", "--json", "--backend", backend}));
  };
  const auto here = race("cpu"), there = race("cuda");
  ASSERT_EQ(there.size(), 10u);
  for (std::size_t i = 0; i < there.size(); ++i) {
    ASSERT_GT(there[i].at("ms"), 0) << there[i];
    EXPECT_GT(there[i].at("copy_ms"), 0);
    EXPECT_EQ(there[i].at("reads"), here[i].at("reads")) << there[i];
    if (i % 5 >= 3) {  // tiled and fused have the one answer
      EXPECT_EQ(there[i].at("bits"), here[i].at("bits")) << there[i];
    }
  }
}

}  // namespace
}  // namespace softfold_test
