// verify, explain, doctor, bench: what they say is true, and they say when it is not.
#include "cli/support.hpp"

#include <unistd.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

namespace softfold_test {
namespace {

using namespace softfold;
using Json = nlohmann::json;

class Verify : public CommandTest {
 protected:
  void write(const std::string& name, const Shape& shape, const std::vector<float>& x) {
    write_array(at(name), DType::float32, shape, std::as_bytes(std::span(x)));
  }
};

TEST_F(Verify, OwnResultsAreInsideTheContract) {
  for (const DType dtype : {DType::float32, DType::float64, DType::float16}) {
    for (const double spread : {0.1, 10., 10000.}) {
      write_array(at("x.npy"), dtype, {5, 3001}, random_elements(dtype, 5 * 3001, spread));
      const auto report = Json::parse(expect_ok({"verify", "@x.npy", "--json"}));
      EXPECT_TRUE(report.at("inside"));
      ASSERT_EQ(report.at("checks").size(), 4u);
      // Rounding to 16 bits uses its half unit up; a fold's own error is well inside.
      for (const auto& check : report.at("checks")) {
        EXPECT_LE(check.at("ratio"), 1) << name_of(dtype) << spread << check;
        EXPECT_GE(check.at("largest_error_u"), check.at("error_u"));
      }
    }
  }
}

TEST_F(Verify, EveryAxisAndRowsLargerThanMemory) {
  write_array(at("x.npy"), DType::float32, {30, 70, 50}, random_elements(DType::float32, 30 * 70 * 50, 5));
  for (const std::string axis : {"0", "1", "2"}) expect_ok({"verify", "@x.npy", "--axis", axis});
  const std::int64_t length = 5'000'001 / kShorter;
  write_array(at("row.npy"), DType::float32, {length}, random_elements(DType::float32, length, 5));
  expect_ok({"softmax", "@row.npy", "@y.npy"});
  expect_ok({"verify", "@row.npy", "--memory", "32M", "--threads", "4"});
  expect_ok({"verify", "@row.npy", "@y.npy", "--memory", "32M", "--threads", "4"});
}

TEST_F(Verify, SpecialRows) {
  const float inf = INFINITY;
  write("x.npy", {4, 3}, {-inf, -inf, -inf, 1, inf, 2, 1, NAN, 2, 1, -inf, 3e38F});
  expect_ok({"verify", "@x.npy"});
  expect_ok({"verify", "@x.npy", "--empty", "nan"});
  write("zeros.npy", {4, 3}, std::vector<float>(12));
  const Result wrong = run({"verify", "@x.npy", "@zeros.npy", "--json"});
  EXPECT_EQ(wrong.status, static_cast<int>(Code::verification)) << wrong.err;
  EXPECT_EQ(Json::parse(wrong.out).at("checks")[0].at("ratio"), "inf") << wrong.out;
}

TEST_F(Verify, RowsOfNoElementsAndNoRows) {
  for (const Shape& shape : {Shape{0}, {3, 0}, {0, 3}, {2, 0, 3}, {0, 0}}) {
    write("x.npy", shape, {});
    for (int axis = 0; axis < std::ssize(shape); ++axis) {
      for (const std::string op : {"logsumexp", "softmax", "log-softmax"}) {
        if (kSanitized && op != "logsumexp") break;  // hundreds of commands; the others only write more of the same
        const Words words{"@x.npy", "--op", op, "--axis", std::to_string(axis)};
        Words verify{"verify"}, compute{op, "@x.npy", "@y.npy", "--axis", std::to_string(axis)};
        verify.insert(verify.end(), words.begin(), words.end());
        EXPECT_NE(expect_ok(verify).find("Inside"), std::string::npos);
        expect_ok(compute);
        verify.insert(verify.begin() + 2, "@y.npy");
        expect_ok(verify);
      }
    }
  }
  write("x.npy", {3, 0}, {});
  write("y.npy", {3}, {-INFINITY, 0, -INFINITY});  // the second is wrong
  expect_refused(Code::verification, "logsumexp", {"verify", "@x.npy", "@y.npy", "--op", "logsumexp"});
}

// Beyond float32's range a logsumexp is its largest number; float64 holds less of its largest scores, and beyond its
// range they are equal.
TEST_F(Verify, ScoresFarFromZero) {
  write("x.npy", {2, 3}, {3e38F, -3e38F, 1, -3e38F, -2e38F, -3e38F});
  const double wide[] = {3e38, -3e38, 1, 1.7e308, 1.6e308, 1};
  write_array(at("w.npy"), DType::float64, {2, 3}, std::as_bytes(std::span(wide)));
  for (const std::string scale : {"1", "0.3", "1e10", "1e30", "-1e30"})
    for (const std::string name : {"@x.npy", "@w.npy"}) expect_ok({"verify", name, "--scale", scale});
  write("y.npy", {2}, {3e38F, -3e38F});
  expect_refused(Code::verification, "logsumexp",
                 {"verify", "@x.npy", "@y.npy", "--op", "logsumexp", "--scale", "1e30"});
}

TEST_F(Verify, AWrongResultIsFoundWhereItIs) {
  const std::vector<float> x(3000, 1.F);
  std::vector<float> y(3000, 1.F / 1000);
  write("x.npy", {3, 1000}, x);
  write("y.npy", {3, 1000}, y);
  expect_ok({"verify", "@x.npy", "@y.npy"});
  y[1234] *= 1 + 0x1p-18F;  // 64 u, where 8 + 2.5 ln 1000 = 25.3 are allowed
  write("y.npy", {3, 1000}, y);
  const Result result = run({"verify", "@x.npy", "@y.npy", "--json"});
  EXPECT_EQ(result.status, static_cast<int>(Code::verification));
  const auto report = Json::parse(result.out);
  EXPECT_FALSE(report.at("inside"));
  EXPECT_EQ(report.at("checks")[0].at("at"), (Shape{1, 234}));
  EXPECT_NEAR(report.at("checks")[0].at("error_u").get<double>(), 64, 2);
  EXPECT_NEAR(report.at("checks")[0].at("bound_u").get<double>(), 8 + 2.5 * std::log(1000.), 1e-6);
}

// Rows too long for a task, several of which lie in a block.
TEST_F(Verify, AWrongResultIsFoundInAnyLongRow) {
  constexpr std::int64_t rows = 5, n = 100'000;
  write("x.npy", {rows, n}, std::vector<float>(rows * n, 1.F));
  for (const std::int64_t row : {0, 3, 4}) {
    std::vector<float> y(rows * n, 1.F / n);
    y[static_cast<std::size_t>(row * n + 99'998)] *= 1 + 0x1p-16F;
    write("y.npy", {rows, n}, y);
    const Result result = run({"verify", "@x.npy", "@y.npy", "--json"});
    EXPECT_EQ(result.status, static_cast<int>(Code::verification));
    EXPECT_EQ(Json::parse(result.out).at("checks")[0].at("at"), (Shape{row, 99'998}));
  }
}

TEST_F(Verify, ResultsOfEveryOperation) {
  write_array(at("x.npy"), DType::float64, {7, 300}, random_elements(DType::float64, 2100, 5));
  for (const std::string op : {"softmax", "log-softmax", "logsumexp"}) {
    expect_ok({op, "@x.npy", "@y.npy", "--scale", "0.3"});
    expect_ok({"verify", "@x.npy", "@y.npy", "--op", op, "--scale", "0.3"});
    expect_refused(Code::verification, "outside", {"verify", "@x.npy", "@y.npy", "--op", op, "--scale", "0.31"});
  }
  expect_refused(Code::verification, "--op, --axis and --scale", {"verify", "@x.npy", "@y.npy", "--op", "logsumexp"});
  expect_refused(Code::shape, "--op", {"verify", "@x.npy", "@y.npy"});
  expect_refused(Code::option, "softmax", {"verify", "@x.npy", "--op", "state"});
}

// The rungs that add in sequence are outside of the contract on a row made for it, which is no defect.
TEST_F(Verify, SaysWhatTheFirstRungsCost) {
  std::vector<float> x(1 << 17, -25 * 0.693147181F);
  x[0] = 0;
  write_array(at("x.npy"), DType::float32, {1 << 17}, std::as_bytes(std::span(x)));
  expect_ok({"verify", "@x.npy", "--op", "softmax"});
  for (const std::string rung : {"safe", "online"})
    expect_refused(Code::verification, "grows with the row's length",
                   {"verify", "@x.npy", "--op", "softmax", "--rung", rung});
}

TEST_F(Verify, ErrorsOfNarrowResultsAreInTheirLastPlacesToo) {
  write_array(at("x.npy"), DType::float16, {5, 300}, random_elements(DType::float16, 1500, 3));
  const auto checks = Json::parse(expect_ok({"verify", "@x.npy", "--op", "softmax", "--json"})).at("checks");
  EXPECT_GT(checks[0].at("largest_error_ulp"), 0.4);  // rounding once to 16 bits, and no more
  EXPECT_LT(checks[0].at("largest_error_ulp"), 0.51);
  EXPECT_TRUE(checks[1].at("largest_error_ulp").is_null());
  EXPECT_NE(expect_ok({"verify", "@x.npy"}).find(" ulp "), std::string::npos);
  const auto wide = Json::parse(expect_ok({"verify", "@x.npy", "--op", "softmax", "--dtype", "float32", "--json"}));
  EXPECT_TRUE(wide.at("checks")[0].at("largest_error_ulp").is_null());
  expect_ok({"softmax", "@x.npy", "@y.npy", "--dtype", "bfloat16"});
  expect_refused(Code::dtype, "try: --result-as bfloat16", {"verify", "@x.npy", "@y.npy"});
  expect_ok({"verify", "@x.npy", "@y.npy", "--result-as", "bfloat16"});
  write("w.npy", {1, 4}, {1, 2, 3, 4});
  EXPECT_NE(run({"verify", "@w.npy", "@w.npy"}).out.find("(>1000%)"), std::string::npos);
}

TEST_F(Verify, HowAResultIsReadNeedsOne) {
  write("x.npy", {1, 4}, {1, 2, 3, 4});
  for (const std::string option : {"--result-as", "--result-tensor"})
    expect_refused(Code::option, "try: softfold verify FILE RESULT " + option, {"verify", "@x.npy", option, "float32"});
}

using Explain = CommandTest;

TEST_F(Explain, NamesTheKernelAndWhyNotTheOthers) {
  const auto plan = Json::parse(expect_ok({"explain", "softmax", "4096x128256", "bf16", "--rung", "tiled", "--json"}));
  EXPECT_EQ(plan.at("kernel"), "softmax_tiled");
  EXPECT_EQ(plan.at("rejected").at("softmax_fused"), "another rung was asked for");
  EXPECT_EQ(plan.at("bytes_per_element"), 6);
  EXPECT_EQ(plan.at("why"), "this rung was asked for");
  const std::tuple<const char*, const char*, const char*> reasons[] = {
      {"softmax", "4096x1024", "why        preferred over the others that can; a row's terms stay"},
      {"softmax", "1x67108864", "why        the only one that can of those that run unasked; rows of any length"},
      {"logsumexp", "4096x1024", "why        the only kernel of this operation here\n"}};
  for (const auto& [op, shape, why] : reasons) {
    const std::string told = expect_ok({"explain", op, shape, "f32"});
    EXPECT_NE(told.find(why), std::string::npos) << told;
  }
  EXPECT_NE(expect_ok({"explain", "merge-attention", "8x64", "f32"}).find("kernel"), std::string::npos);
}

TEST_F(Explain, NamesTheDtypeOfTheResult) {
  const std::tuple<const char*, const char*, const char*> results[] = {{"softmax", "float32", "float16"},
                                                                       {"state", "float64", ""},
                                                                       {"merge-states", "float64", ""},
                                                                       {"sample", "int64", ""},
                                                                       {"topk", "float32", "float16"}};
  for (const auto& [op, own, asked] : results) {
    const Words words{"explain", op, "4x5", "f32"};
    EXPECT_NE(expect_ok(words).find(std::string("4x5 float32 -> ") + own), std::string::npos) << op;
    Words json{"explain", op, "4x5", "f32", "--json"};
    EXPECT_EQ(Json::parse(expect_ok(json)).at("output_dtype"), own);
    if (*asked == 0) continue;
    json.insert(json.end(), {"--dtype", asked});
    EXPECT_EQ(Json::parse(expect_ok(json)).at("output_dtype"), asked);
  }
}

TEST_F(Explain, RefusesAsTheCallWould) {
  expect_refused(Code::option, "try: softmax", {"explain", "sofmax", "4x5", "f32"});
  expect_refused(Code::option, "4096x128256", {"explain", "softmax", "4,5", "f32"});
  expect_refused(Code::dtype, "float32", {"explain", "softmax", "4x5", "int8"});
  expect_refused(Code::shape, "axis", {"explain", "softmax", "4x5", "f32", "--axis", "2"});
  expect_refused(Code::option, "causal", {"explain", "softmax", "5", "f32", "--causal"});
  expect_refused(Code::shape, "2^58", {"explain", "softmax", "4x999999999999999999", "f32"});
}

using Doctor = CommandTest;

TEST_F(Doctor, EveryTargetHasTheKnownBits) {
  const auto report = Json::parse(expect_ok({"doctor", "--json"}));
  EXPECT_EQ(report.at("self_test").at("wrong"), 0);
  const bool gpu = report.at("backends").at("cuda") == true;
  EXPECT_EQ(report.at("self_test").at("results"), 16 * (report.at("simd").at("available").size() + (gpu ? 1 : 0)));
  EXPECT_EQ(report.at("cuda").at("devices").empty(), !gpu) << report.at("backends").at("cuda");
  EXPECT_EQ(report.at("bits_version"), bits_version());
  EXPECT_EQ(report.at("backends").at("cpu"), true);
  EXPECT_NE(expect_ok({"doctor"}).find("all right"), std::string::npos);
}

// One reason, in words of its own: not those of the plan that was tried.
TEST_F(Doctor, SaysOfCublasInOneLineWhetherItIsThere) {
  const std::string told = expect_ok({"doctor"}), name = "\ncuBLASLt    ";
  const std::size_t at = told.find(name);
  ASSERT_NE(at, std::string::npos) << told;
  const std::string line = told.substr(at + name.size(), told.find('\n', at + 1) - at - name.size());
  EXPECT_TRUE(line == "yes" || line.starts_with("no: ")) << line;
  for (const char* part : {"linear_cross_entropy", "; ", "try: ", "tensors"})
    EXPECT_EQ(line.find(part), std::string::npos) << line;
}

TEST_F(CommandTest, ExplainTakesTheKOfTopk) {
  expect_ok({"explain", "topk", "4x100", "f32", "-k", "5"});
  expect_ok({"explain", "topk", "4x100", "f32", "-k0"});
  expect_refused(Code::shape, "k = 101", {"explain", "topk", "4x100", "f32", "-k", "101"});
  expect_refused(Code::option, "topk alone", {"explain", "softmax", "4x100", "f32", "-k", "5"});
}

using Bench = CommandTest;

TEST_F(Bench, TheLadderHasARecordForEveryRung) {
  const auto records = Json::parse(expect_ok({"bench", "ladder", "--n", "100,3000", "--rows", "7", "--seconds", "0.01",
                                              "--json", "--jsonl", "@r.jsonl", "--commit", "abc"}));
  ASSERT_EQ(records.size(), 10u);
  std::size_t lines = 0;
  std::ifstream file(at("r.jsonl"));
  for (std::string line; std::getline(file, line); ++lines) EXPECT_EQ(Json::parse(line), records[lines]);
  EXPECT_EQ(lines, records.size());
  std::map<std::int64_t, std::string> bits;  // of a row length: one for the rungs that have the tree's bits
  for (const auto& r : records) {
    for (const char* key : {"op", "dtype", "shape", "case", "who", "ms", "bytes", "flops", "copy_ms", "bits", "device",
                            "driver", "commit", "date"})
      EXPECT_TRUE(r.contains(key)) << key;
    EXPECT_EQ(r.at("ms").is_null(), r.contains("why"));
    if (r.at("ms").is_null()) continue;
    EXPECT_GT(r.at("ms"), 0);
    const std::string who = r.at("who");
    if (who != "softfold:softmax_tiled" && who != "softfold:softmax_fused") continue;
    const std::string hash = r.at("bits");
    EXPECT_EQ(bits.emplace(r.at("shape")[1], hash).first->second, hash) << r;
  }
  EXPECT_EQ(bits.size(), 2u);
}

TEST_F(Bench, AFilesRowsAndOneOperation) {
  write_array(at("x.npy"), DType::float16, {4, 500}, random_elements(DType::float16, 2000, 5));
  const auto records = Json::parse(expect_ok({"bench", "logsumexp", "@x.npy", "--seconds", "0.01", "--json"}));
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].at("shape"), (Shape{4, 500}));
  EXPECT_EQ(records[0].at("dtype"), "float16");
  EXPECT_NE(expect_ok({"bench", "softmax", "@x.npy", "--seconds", "0.01"}).find("copy, ms  of copy"),
            std::string::npos);
  // Some virtual machines do not say what they have.
  if (::sysconf(_SC_LEVEL2_CACHE_SIZE) > 0 || ::sysconf(_SC_LEVEL3_CACHE_SIZE) > 0) {
    EXPECT_NE(expect_ok({"bench", "logsumexp", "@x.npy", "--seconds", "0"}).find(" in cache "), std::string::npos);
  }
  expect_refused(Code::option, "try: ladder", {"bench", "lader"});
  expect_refused(Code::option, "rows", {"bench", "softmax", "--n", "0"});
  expect_refused(Code::option, "softfold bench ladder --op state", {"bench", "softmax", "--op", "state"});
  expect_refused(Code::option, "--causal", {"bench", "softmax", "--causal"});
  expect_refused(Code::option, "--heads", {"bench", "ladder", "--heads", "2"});
  expect_refused(Code::option, "without a file", {"bench", "softmax", "--as", "bfloat16"});
  expect_refused(Code::option, "softmax, log_softmax, logsumexp, state, attention\n",
                 {"bench", "ladder", "--op", "topk"});
  expect_refused(Code::option, "softmax, log_softmax, logsumexp\n", {"verify", "@x.npy", "--op", "softmix"});
  expect_refused(Code::usage, "no file", {"bench", "ladder", "@x.npy", "--op", "attention"});
  expect_refused(Code::usage, "one file", {"bench", "softmax", "@x.npy", "@x.npy"});
  write_array(at("i.npy"), DType::int32, {4, 5}, std::vector<std::byte>(80));
  expect_refused(Code::dtype, "int32", {"bench", "softmax", "@i.npy"});
  expect_refused(Code::option, "joined by commas", {"bench", "softmax", "--n", "5x6"});
  const auto lengths =
      Json::parse(expect_ok({"bench", "softmax", "--n", "1k,2K", "--rows", "1", "--seconds", "0", "--json"}));
  EXPECT_EQ(lengths[0].at("shape"), (Shape{1, 1024}));
  EXPECT_EQ(lengths[1].at("shape"), (Shape{1, 2048}));
  EXPECT_NE(expect_ok({"bench", "ladder", "@x.npy", "--seconds", "0"}).find("not here: naive, safe, online: "),
            std::string::npos);
  for (const std::string seconds : {"inf", "nan", "-1"})
    expect_refused(Code::option, "--seconds", {"bench", "softmax", "@x.npy", "--seconds", seconds});
}

TEST_F(Bench, RefusesWhatItWouldIgnore) {
  write_array(at("x.npy"), DType::float32, {4, 500}, random_elements(DType::float32, 2000, 5));
  for (const Words& more : {Words{"--dtype", "f16"}, Words{"--n", "100"}, Words{"--rows", "3"}}) {
    Words words{"bench", "softmax", "@x.npy", "--seconds", "0"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(Code::option, "try: leave out " + more[0], words);
  }
  for (const Words& more : {Words{"--d", "64"}, Words{"--heads", "1"}, Words{"--causal"}}) {
    Words words{"bench", "softmax", "--n", "100", "--seconds", "0"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(Code::option, "try: leave out " + more[0], words);
  }
  for (const std::string scale : {"nan", "inf", "1e300"})
    expect_refused(Code::option, "scale", {"bench", "ladder", "@x.npy", "--scale", scale, "--seconds", "0"});
}

TEST_F(Bench, TheLadderSaysThatBitsMayDiffer) {
  write_array(at("x.npy"), DType::float32, {4, 500}, random_elements(DType::float32, 2000, 5));
  const char* words = "bits may differ";
  EXPECT_NE(expect_ok({"bench", "ladder", "@x.npy", "--seconds", "0"}).find(words), std::string::npos);
  EXPECT_EQ(expect_ok({"bench", "softmax", "@x.npy", "--seconds", "0"}).find(words), std::string::npos);
}

TEST_F(Bench, RecordsThatCannotBeWrittenAreTheWholeAnswer) {
  const Result result =
      run({"bench", "softmax", "--n", "100", "--rows", "2", "--seconds", "0", "--json", "--jsonl", "/dev/full"});
  EXPECT_EQ(result.status, static_cast<int>(Code::io));
  EXPECT_EQ(Json::parse(result.out).at("error").at("name"), "io");
}

TEST_F(Bench, RecordsNeverGoIntoTheInput) {
  write_array(at("x.npy"), DType::float32, {4, 500}, random_elements(DType::float32, 2000, 5));
  const std::string before = contents(at("x.npy"));
  std::filesystem::create_symlink("x.npy", at("link"));
  for (const std::string name : {"@x.npy", "@link"})
    expect_refused(Code::option, "same file", {"bench", "softmax", "@x.npy", "--jsonl", name});
  expect_refused(Code::io, "records", {"bench", "softmax", "@x.npy", "--jsonl", "@no/r.jsonl", "--seconds", "3600"});
  EXPECT_EQ(contents(at("x.npy")), before);
}

}  // namespace
}  // namespace softfold_test
