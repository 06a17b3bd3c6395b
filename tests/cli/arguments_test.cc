// The command line itself: help, suggestions, exit statuses, JSON.
#include "cli/support.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace softfold_test {
namespace {

using Arguments = CommandTest;

TEST_F(Arguments, HelpAndVersion) {
  for (const std::string verb :
       {"softmax", "log-softmax", "logsumexp", "cross-entropy", "linear-cross-entropy", "entropy", "kl-divergence",
        "topk", "sample", "state", "merge", "finish", "attention", "verify", "explain", "doctor", "bench", "hash"}) {
    EXPECT_NE(expect_ok({"--help"}).find("  " + verb), std::string::npos);
    const std::string help = expect_ok({verb, "--help"});
    EXPECT_NE(help.find("Usage: softfold " + verb), std::string::npos);
    EXPECT_NE(help.find("Exit status: 0 done"), std::string::npos) << help;
  }
  EXPECT_NE(expect_ok({"--help"}).find("Exit status: 0 done"), std::string::npos);
  EXPECT_NE(expect_ok({"logsumexp", "--help"}).find("zero or nan, without effect"), std::string::npos);
  EXPECT_NE(expect_ok({"--version"}).find(softfold::version()), std::string::npos);
  EXPECT_EQ(run({}).status, 2);
}

TEST_F(Arguments, HelpAndVersionByOtherNames) {
  EXPECT_EQ(expect_ok({"help"}), expect_ok({"--help"}));
  EXPECT_EQ(expect_ok({"help", "kl-divergence"}), expect_ok({"kl-divergence", "--help"}));
  expect_refused(Code::usage, "try: softmax\n", {"help", "sofmax"});
  EXPECT_EQ(expect_ok({"-V"}), expect_ok({"--version"}));
  expect_refused(Code::usage, "try: softfold --version\n", {"version"});
}

// Where a line cannot be read, nothing is said in the words of the library that reads it.
TEST_F(Arguments, WhatALineLacksOrHasTwiceIsSaid) {
  write_array(at("x.npy"), DType::float32, {2, 3}, random_elements(DType::float32, 6, 1));
  const auto softmax = [](const Words& more) {
    Words words{"softmax", "@x.npy", "@y.npy"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_refused(Code::usage, "got --threads without a value\n     allowed: a whole number behind --threads\n",
                 softmax({"--threads"}));
  expect_refused(Code::usage, "allowed: a number behind --scale\n", softmax({"--scale"}));
  expect_refused(Code::usage, "got --memory without a value\n     allowed: a value behind --memory\n",
                 softmax({"--memory="}));
  expect_refused(Code::usage, "got -k without a value\n", {"topk", "@x.npy", "@v.npy", "@i.npy", "-k"});
  expect_refused(Code::usage, "got --axis twice\n", softmax({"--axis", "0", "--axis=1"}));
  expect_refused(Code::usage, "got -k twice\n", {"topk", "@x.npy", "@v.npy", "@i.npy", "-k1", "-k", "2"});
  expect_refused(Code::usage, "got the value 'maybe' of --json\n     allowed: --json without a value\n",
                 softmax({"--json=maybe"}));
  expect_refused(Code::usage, "got more arguments than it takes: b c\n", softmax({"b", "c"}));
  expect_ok(softmax({"--json", "--json=true"}));
}

TEST_F(Arguments, TheNearestNameIsSuggested) {
  expect_refused(Code::usage, "try: softmax", {"sofmax"});
  expect_refused(Code::usage, "try: log-softmax", {"log_softmax"});
  expect_refused(Code::usage, "try: --axis", {"softmax", "a.npy", "b.npy", "--axes", "1"});
  expect_refused(Code::usage, "try: --axis", {"softmax", "a.npy", "b.npy", "--axsi=1"});
  expect_refused(Code::usage, "try: --version", {"--versoin"});
  expect_refused(Code::usage, "try: softfold --help", {"q"});
  expect_refused(Code::option, "try: online", {"softmax", "@none.npy", "b.npy", "--rung", "onlin"});
}

// What the words of other programs mean here; and no guess where one would mislead.
TEST_F(Arguments, WordsOfOtherProgramsAreUnderstood) {
  write_array(at("x.npy"), DType::float32, {2, 3}, random_elements(DType::float32, 6, 1));
  expect_refused(Code::usage, "try: logsumexp", {"lse", "a.npy", "b.npy"});
  expect_refused(Code::option, "try: logsumexp", {"explain", "lse", "4x5", "f32"});
  expect_refused(Code::option, "try: cuda", {"softmax", "@x.npy", "@y.npy", "--backend", "gpu"});
  expect_refused(Code::usage, "try: --axis -1", {"softmax", "@x.npy", "@y.npy", "--axis", "last"});
  expect_refused(Code::option, "try: 1, or", {"softmax", "@x.npy", "@y.npy", "--scale", "nan"});
  expect_refused(Code::option, "p.npy\n", {"softmax", "@x.npy", "@p.npz"});
  expect_refused(Code::usage, "SHARD PARTIAL OUT", {"finish", "@x.npy", "@x.part", "-o", "@p.npy"});
  expect_refused(Code::usage, "softfold softmax IN OUT", {"softmax", "@x.npy", "--output", "@p.npy"});
  expect_refused(Code::option, "--memory 1M\n", {"softmax", "@x.npy", "@y.npy", "--memory", "1M"});
  const Result narrow = run({"softmax", "@x.npy", "@y.npy", "--dtype", "fp8"});
  EXPECT_EQ(narrow.status, static_cast<int>(Code::dtype));
  EXPECT_EQ(narrow.err.find("64\n"), std::string::npos) << narrow.err;
  EXPECT_NE(narrow.err.find("try: float32,"), std::string::npos) << narrow.err;
}

TEST_F(Arguments, ADtypeThatCannotBeFoldedIsRefusedWithTheFilesName) {
  write_array(at("i.npy"), DType::int64, {6}, std::vector<std::byte>(48));
  std::string complex = contents(at("i.npy"));
  complex.replace(complex.find("<i8"), 3, "<c8");
  std::ofstream(at("c.npy"), std::ios::binary) << complex;
  for (const std::string name : {"i.npy", "c.npy"}) {
    for (const Words& words : {Words{"softmax", "@" + name, "@y.npy"}, Words{"state", "@" + name, "@y.part"},
                               Words{"verify", "@" + name}, Words{"bench", "ladder", "@" + name}}) {
      expect_refused(Code::dtype, name, words);
      expect_refused(Code::dtype, "allowed: float32, float64, float16, bfloat16\n", words);
    }
  }
}

TEST_F(Arguments, WrongCallsAreUsageErrors) {
  expect_refused(Code::usage, "no OUT", {"softmax", "a.npy"});
  expect_refused(Code::usage, "more arguments", {"softmax", "a.npy", "b.npy", "c.npy"});
  expect_refused(Code::usage, "'x' of --axis", {"softmax", "a.npy", "b.npy", "--axis", "x"});
  expect_refused(Code::usage, "'1x' of --scale", {"softmax", "a.npy", "b.npy", "--scale", "1x"});
  expect_refused(Code::usage, "--axis", {"softmax", "a.npy", "b.npy", "--axis"});
  expect_refused(Code::usage, "-o", {"merge", "a.part"});
  expect_refused(Code::usage, "files", {"finish", "a.part"});
}

TEST_F(Arguments, ErrorsAsJson) {
  const Result result = run({"softmax", "@none.npy", "@y.npy", "--json"});
  const auto error = nlohmann::json::parse(result.out).at("error");
  EXPECT_EQ(error.at("code"), static_cast<int>(Code::file));
  EXPECT_EQ(error.at("name"), "file");
  EXPECT_NE(error.at("got").get<std::string>().find("none.npy"), std::string::npos);
  EXPECT_EQ(result.status, static_cast<int>(Code::file));
}

TEST_F(Arguments, SummariesAsJson) {
  write_array(at("x.npy"), DType::float32, {2, 3}, random_elements(DType::float32, 6, 1));
  const auto summary = nlohmann::json::parse(expect_ok({"softmax", "@x.npy", "@y.npy", "--axis=-1", "--json"}));
  EXPECT_EQ(summary.at("op"), "softmax");
  EXPECT_EQ(summary.at("shape"), (Shape{2, 3}));
  EXPECT_EQ(summary.at("bytes_read"), 24);
  const auto hashes = nlohmann::json::parse(expect_ok({"hash", "@x.npy", "@x.npy", "--json"}));
  ASSERT_EQ(hashes.size(), 2u);
  EXPECT_EQ(hashes[1].at("file"), at("x.npy"));
  EXPECT_EQ(hashes[1].at("hash"), expect_ok({"hash", "@x.npy"}).substr(0, 16));
  const auto joined = nlohmann::json::parse(expect_ok({"hash", "@x.npy", "@y.npy", "--join", "--json"}));
  EXPECT_EQ(joined.at("files"), (Words{at("x.npy"), at("y.npy")}));
  EXPECT_EQ(joined.at("hash"), expect_ok({"hash", "--join", "@x.npy", "@y.npy"}).substr(0, 16));
}

TEST_F(Arguments, WhatCannotBePrintedIsAnError) {
  const std::string command = std::string(SOFTFOLD_COMMAND) + " --version >/dev/full 2>" + at("err");
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), static_cast<int>(Code::io));
  EXPECT_NE(contents(at("err")).find("standard output that cannot be written: No space left"), std::string::npos);
  const std::string hash = std::string(SOFTFOLD_COMMAND) + " doctor >/dev/full 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(hash.c_str())), static_cast<int>(Code::io));
}

// A file must not be given the number of a standard stream that is closed: what is printed there would land in it.
TEST_F(Arguments, ClosedStreamsAreNotMistakenForFiles) {
  write_array(at("x.npy"), DType::float32, {2, 3}, random_elements(DType::float32, 6, 1));
  expect_ok({"softmax", "@x.npy", "@y.npy"});
  const std::string call = "SOFTFOLD_VERBOSE=dispatch " SOFTFOLD_COMMAND " softmax " + at("x.npy") + " " + at("z.npy");
  EXPECT_EQ(std::system((call + " >/dev/null <&- 2>&-").c_str()), 0);
  EXPECT_EQ(contents(at("z.npy")), contents(at("y.npy")));
  EXPECT_EQ(WEXITSTATUS(std::system((call + " <&- >&- 2>&-").c_str())), static_cast<int>(Code::io));
}

/// The next kernel that can takes the call, with the same bits; if there is none, the error names those left out.
TEST_F(Arguments, KernelsThatAreLeftOut) {
  write_array(at("x.npy"), DType::float32, {2, 3000}, random_elements(DType::float32, 6000, 1));
  expect_ok({"softmax", "@x.npy", "@y.npy"});
  const auto status = [&](const std::string& without, const std::string& result) {
    const std::string call = "SOFTFOLD_VERBOSE=dispatch SOFTFOLD_WITHOUT=" + without +
                             " " SOFTFOLD_COMMAND " softmax " + at("x.npy") + " " + at(result) + " >/dev/null 2>" +
                             at("err");
    return WEXITSTATUS(std::system(call.c_str()));
  };
  EXPECT_EQ(status("no_kernel,softmax_fused", "z.npy"), 0);
  EXPECT_NE(contents(at("err")).find("not softmax_fused: SOFTFOLD_WITHOUT names it\n"), std::string::npos);
  EXPECT_NE(contents(at("err")).find("softmax: softmax_tiled\n"), std::string::npos) << contents(at("err"));
  EXPECT_EQ(contents(at("z.npy")), contents(at("y.npy")));
  EXPECT_EQ(status("softmax_fused,softmax_tiled", "none.npy"), static_cast<int>(Code::unsupported));
  EXPECT_NE(contents(at("err")).find("softmax_tiled: SOFTFOLD_WITHOUT names it"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(at("none.npy")));
}

TEST_F(Arguments, TheHashIsOfTheElementsAlone) {
  const auto x = random_elements(DType::float32, 6, 1);
  write_array(at("x.npy"), DType::float32, {2, 3}, x);
  write_array(at("x.safetensors"), DType::float32, {6}, x);
  Hash hash;
  hash.bytes(x.data(), x.size());
  char text[17];
  std::snprintf(text, sizeof text, "%016lx", hash.value());
  EXPECT_EQ(expect_ok({"hash", "@x.npy"}), std::string(text) + "  " + at("x.npy") + "\n");
  EXPECT_EQ(expect_ok({"hash", "@x.safetensors"}).substr(0, 16), text);
}

TEST_F(Arguments, OneMissingFileDoesNotHideTheHashesOfTheOthers) {
  write_array(at("x.npy"), DType::float32, {6}, random_elements(DType::float32, 6, 1));
  const Result result = run({"hash", "@x.npy", "@none.npy", "@nor.npy", "@x.npy"});
  EXPECT_EQ(result.status, static_cast<int>(Code::file));
  EXPECT_EQ(std::ranges::count(result.out, '\n'), 2);
  EXPECT_NE(result.err.find("none.npy"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("nor.npy"), std::string::npos) << result.err;
  EXPECT_NE(expect_ok({"hash", "--join", "@x.npy", "@x.npy"}).find("  2 files joined\n"), std::string::npos);
}

// One document: the list, or the refusal, which comes before any work.
TEST_F(Arguments, OneMissingFileIsTheWholeAnswerOfAList) {
  write_array(at("x.npy"), DType::float32, {6}, random_elements(DType::float32, 6, 1));
  for (const Words& more : {Words{"--json"}, Words{"--json", "--join"}, Words{"--join"}}) {
    Words words{"hash", "@x.npy", "@none.npy"};
    words.insert(words.end(), more.begin(), more.end());
    const Result result = run(words);
    EXPECT_EQ(result.status, static_cast<int>(Code::file));
    if (more[0] == "--json") {
      EXPECT_NE(nlohmann::json::parse(result.out).at("error").at("got").get<std::string>().find("none.npy"),
                std::string::npos);
    } else {
      EXPECT_EQ(result.out, "");
    }
  }
}

// Where both streams go to one place, what was found stands before what was refused.
TEST_F(Arguments, TheTableStandsBeforeTheRefusal) {
  const std::vector<float> x(4, 1), y(4, 1);
  write_array(at("x.npy"), DType::float32, {4}, std::as_bytes(std::span(x)));
  write_array(at("y.npy"), DType::float32, {4}, std::as_bytes(std::span(y)));
  const std::string call = SOFTFOLD_COMMAND " verify " + at("x.npy") + " " + at("y.npy") + " >" + at("all") + " 2>&1";
  EXPECT_EQ(WEXITSTATUS(std::system(call.c_str())), static_cast<int>(Code::verification));
  const std::string all = contents(at("all"));
  EXPECT_LT(all.find("OUTSIDE"), all.find("got a softmax")) << all;
}

}  // namespace
}  // namespace softfold_test
