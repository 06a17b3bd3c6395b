// The command line itself: help, suggestions, exit statuses, JSON.
#include "cli/support.hpp"

#include <nlohmann/json.hpp>

namespace softfold_test {
namespace {

using Arguments = CommandTest;

TEST_F(Arguments, HelpAndVersion) {
  for (const std::string verb : {"softmax", "log-softmax", "logsumexp", "state", "merge", "finish", "verify", "explain",
                                 "doctor", "bench", "hash"}) {
    EXPECT_NE(expect_ok({"--help"}).find("  " + verb), std::string::npos);
    EXPECT_NE(expect_ok({verb, "--help"}).find("Usage: softfold " + verb), std::string::npos);
  }
  EXPECT_NE(expect_ok({"--help"}).find("Exit status"), std::string::npos);
  EXPECT_NE(expect_ok({"--version"}).find(softfold::version()), std::string::npos);
  EXPECT_EQ(run({}).status, 2);
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
  const auto hashes = nlohmann::json::parse(expect_ok({"hash", "@x.npy", "@y.npy", "--json"}));
  EXPECT_EQ(hashes.size(), 2u);
}

TEST_F(Arguments, WhatCannotBePrintedIsAnError) {
  const std::string command = std::string(SOFTFOLD_COMMAND) + " --version >/dev/full 2>/dev/null";
  EXPECT_NE(std::system(command.c_str()), 0);
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

}  // namespace
}  // namespace softfold_test
