// --memory: what it may be, and what has its part of it.
#include "cli/support.hpp"

namespace softfold_test {
namespace {

class Memory : public CommandTest {
 protected:
  void SetUp() override { write_array(at("x.npy"), DType::float32, {4, 5}, random_elements(DType::float32, 20, 1)); }
};

TEST_F(Memory, TheSuffixesOfASizeAreThoseThatARefusalLists) {
  const auto with = [](const std::string& size) { return Words{"softmax", "@x.npy", "@o.npy", "--memory", size}; };
  for (const char* size : {"268435456", "256M", "256MB", "256MiB", "262144KB", "1G", "1T"}) expect_ok(with(size));
  for (const char* size : {"256m", "256 M", "2.5G", "1P", "M", "-1G", "9223372036854775808"})
    expect_refused(Code::option, "K, M, G or T, also KB or KiB, behind it (powers of 1024)\n         try: 256M\n",
                   with(size));
}

TEST_F(Memory, TheMemoryThatARowNeedsIsNamed) {
  write_header("long.npy", "20000000,");
  std::filesystem::resize_file(at("long.npy"), 128 + 80'000'000);
  for (const Words& words :
       {Words{"entropy", "@long.npy", "@o.npy"}, Words{"kl-divergence", "@long.npy", "@long.npy", "@o.npy"},
        Words{"topk", "@long.npy", "@v.npy", "@i.npy"}, Words{"sample", "@long.npy", "@o.npy"}}) {
    Words all = words;
    all.insert(all.end(), {"--memory", "32M"});
    const Result refused = run(all);
    EXPECT_EQ(refused.status, static_cast<int>(Code::option)) << refused.err;
    const std::size_t found = refused.err.find("try: --memory ");
    ASSERT_NE(found, std::string::npos) << refused.err;
    all.back() = refused.err.substr(found + 14, refused.err.find_first_of(",\n", found) - found - 14);
    expect_ok(all);
  }
}

// What threads keep of the rows they are at is counted: what is refused says how much would do, and that does.
TEST_F(Memory, WhatThreadsKeepHasItsPartOfTheMemory) {
  write_header("rows.npy", "30, 300000");
  std::filesystem::resize_file(at("rows.npy"), 128 + 36'000'000);
  write_header("columns.npy", "200000, 16");
  std::filesystem::resize_file(at("columns.npy"), 128 + 12'800'000);
  for (const Words& words : {Words{"topk", "@rows.npy", "@v.npy", "@i.npy", "-k", "299999"},
                             Words{"topk", "@rows.npy", "@v.npy", "@i.npy", "-k", "299999", "--probabilities"},
                             Words{"sample", "@rows.npy", "@o.npy", "--top-p", "0.9", "--top-k", "200000"},
                             Words{"verify", "@columns.npy", "--axis", "0"}}) {
    Words all = words;
    all.insert(all.end(), {"--threads", "2", "--memory", "36M"});
    const Result refused = run(all);
    EXPECT_EQ(refused.status, static_cast<int>(Code::option)) << refused.err;
    EXPECT_NE(refused.err.find("for 2 threads"), std::string::npos) << refused.err;
    const std::size_t found = refused.err.find("try: --memory ");
    ASSERT_NE(found, std::string::npos) << refused.err;
    all.back() = refused.err.substr(found + 14, refused.err.find(',', found) - found - 14);
    if (kSanitized) continue;  // what else it tells takes minutes there
    for (const std::string& memory : {all.back(), std::string("80M")}) {
      all.back() = memory;
      const Result done = run(all);
      EXPECT_EQ(done.status, 0) << done.err;
      EXPECT_LE(done.peak_rss, std::int64_t{std::stoi(memory)} << 20) << words[0];
    }
  }
}

TEST_F(Memory, AHeaderHasItsPartOfTheMemory) {
  const std::string tensor = R"("x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  const std::string header = R"({"__metadata__":{"a":")" + std::string(3 << 20, 'a') + "\"}," + tensor;
  const std::uint64_t length = header.size();
  std::ofstream(at("h.safetensors"), std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), 8) << header << std::string(4, '\0');
  const Words words{"softmax", "@h.safetensors", "@o.npy", "--memory"};
  const auto with = [&](const char* memory) { return Words{words[0], words[1], words[2], words[3], memory}; };
  expect_refused(Code::option, "a header of " + std::to_string(8 + length) + " bytes", with("32M"));
  expect_refused(Code::option, "try: --memory 49M", with("32M"));
  expect_ok(with("49M"));
}

TEST_F(Memory, ThreadsHaveTheirPartOfTheMemory) {
  expect_refused(Code::option, "for 1000 threads",
                 {"softmax", "@x.npy", "@o.npy", "--threads", "1000", "--memory", "32M"});
  if (kSanitized) return;
  write_header("wide.npy", "1000, 20000");
  std::filesystem::resize_file(at("wide.npy"), 128 + 80'000'000);
  const Result many = run({"entropy", "@wide.npy", "@o.npy", "--threads", "1000", "--memory", "64M"});
  EXPECT_EQ(many.status, 0) << many.err;
  EXPECT_LE(many.peak_rss, 64 << 20);
}

// An address space that the arrays do not fit into.
TEST_F(Memory, WithoutMemoryAnOptionThatTheVerbHasIsNamed) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs its address space";
  write_header("big.npy", "500000, 500");
  std::filesystem::resize_file(at("big.npy"), 128 + 1'000'000'000);
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const struct rlimit narrow { rlim_t{512} << 20, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &narrow), 0);
  const Result result = run({"attention", "@big.npy", "@big.npy", "@big.npy", "@o.npy", "--threads", "1"});
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(result.status, static_cast<int>(Code::out_of_memory)) << result.err;
  EXPECT_EQ(result.err.find("--memory"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace softfold_test
