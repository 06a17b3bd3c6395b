// state, merge, finish: a softmax over shards has the bits of the whole, wherever it was cut.
#include "cli/support.hpp"

#include <sys/stat.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

namespace softfold_test {
namespace {

using namespace softfold;

class Sharded : public CommandTest {
 protected:
  /// Folds x.npy in shards between `cuts`, joins them in a random order in two rounds, finishes every shard and
  /// compares the pieces with the single run's columns.
  void expect_same_bits(DType dtype, std::int64_t rows, const std::vector<std::int64_t>& cuts, bool log,
                        std::uint64_t seed) {
    const std::int64_t n = cuts.back();
    const auto as = dtype == DType::bfloat16 ? Words{"--as", "bf16"} : Words{};
    write_array(at("x.npy"), dtype, rows == 0 ? Shape{n} : Shape{rows, n},
                random_elements(dtype, std::max<std::int64_t>(rows, 1) * n, 5, seed));
    call({log ? "log-softmax" : "softmax", "@x.npy", "@whole.npy", "--scale", "1.5"}, as);
    Words parts, joined;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      parts.push_back(file('p', i));
      call({"state", "@x.npy", parts.back(), "--scale", "1.5", "--range", range(cuts, i)}, as);
    }
    // Neighbours first in pairs, then all in a random order.
    Random random(seed);
    for (std::size_t i = 0; i < parts.size(); i += 2) {
      joined.push_back(file('j', i));
      call({"merge", parts[i], "-o", joined.back()}, i + 1 < parts.size() ? Words{parts[i + 1]} : Words{});
    }
    for (std::size_t i = joined.size(); i > 1; --i)
      std::swap(joined[i - 1], joined[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
    call({"merge", "-o", "@all.part"}, joined);
    const auto whole = io::open_array(at("whole.npy"), "", dtype);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      call({"finish", "@x.npy", "@all.part", "@y.npy", "--range", range(cuts, i)}, log ? Words{"--log"} : Words{}, as);
      expect_columns(whole, io::open_array(at("y.npy"), "", dtype), cuts[i]);
    }
  }

  static std::string file(char kind, std::size_t i) {
    std::string name{'@', kind};
    return name.append(std::to_string(i)).append(".part");
  }
  static std::string range(const std::vector<std::int64_t>& cuts, std::size_t i) {
    return std::to_string(cuts[i]) + ":" + std::to_string(cuts[i + 1]);
  }

  void call(Words words, const Words& more, const Words& still_more = {}) {
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), still_more.begin(), still_more.end());
    expect_ok(words);
  }

  /// That `piece` has the columns of `whole` from `from` on.
  static void expect_columns(const io::ArrayFile& whole, const io::ArrayFile& piece, std::int64_t from) {
    const auto element = static_cast<std::int64_t>(size_of(whole.dtype()));
    const auto all = elements_of(whole), part = elements_of(piece);
    const std::int64_t n = whole.shape().back() * element, width = piece.shape().back() * element;
    for (std::int64_t at_part = 0, at = from * element; at_part < std::ssize(part); at_part += width, at += n)
      ASSERT_TRUE(std::equal(part.begin() + at_part, part.begin() + at_part + width, all.begin() + at)) << from;
  }
};

TEST_F(Sharded, OneRowCutAnywhere) {
  expect_same_bits(DType::float32, 0, {0, 1, 1000, 1024, 3072, 3075, 100'000, 123'457, 300'001}, false, 1);
}
TEST_F(Sharded, ManyRowsFloat64) { expect_same_bits(DType::float64, 7, {0, 2048, 2049, 5000, 5003}, true, 2); }
TEST_F(Sharded, ManyRowsBFloat16) { expect_same_bits(DType::bfloat16, 33, {0, 700, 700, 1400, 9999}, false, 3); }

TEST_F(Sharded, SmallMemoryManyThreads) {
  const std::int64_t length = 9'000'001 / kShorter, cut = 4'000'001 / kShorter;
  write_array(at("x.npy"), DType::float32, {length}, random_elements(DType::float32, length, 5));
  expect_ok({"softmax", "@x.npy", "@whole.npy"});
  expect_ok({"state", "@x.npy", "@a.part", "--range", "0:" + std::to_string(cut), "--memory", "32M", "--threads", "3"});
  expect_ok({"state", "@x.npy", "@b.part", "--range", std::to_string(cut) + ":", "--threads", "1"});
  expect_ok({"merge", "@b.part", "@a.part", "-o", "@all.part"});
  expect_ok({"finish", "@x.npy", "@all.part", "@y.npy", "--memory", "32M"});
  EXPECT_EQ(contents(at("y.npy")), contents(at("whole.npy")));
  // A few kilobytes, whatever the length.
  EXPECT_LT(std::filesystem::file_size(at("all.part")), 10'000u);
}

// Five pieces of each row: its states go on from one to the next, which is the other slot's.
TEST_F(Sharded, RowsInPiecesHaveTheBitsOfWholeOnes) {
  const std::int64_t length = 2'100'001;  // with its results 17 MB, of which --memory 32M leaves 16
  write_array(at("x.npy"), DType::float32, {2, length}, random_elements(DType::float32, 2 * length, 5));
  expect_ok({"softmax", "@x.npy", "@whole.npy"});
  expect_ok({"state", "@x.npy", "@x.part", "--memory", "32M"});
  expect_ok({"finish", "@x.npy", "@x.part", "@unsplit.npy"});
  const Result done = run({"finish", "@x.npy", "@x.part", "@pieces.npy", "--memory", "32M"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_TRUE(kSanitized || done.peak_rss <= 32 << 20) << done.peak_rss;
  const std::string pieces = contents(at("pieces.npy"));
  EXPECT_TRUE(pieces == contents(at("unsplit.npy")));
  EXPECT_TRUE(pieces == contents(at("whole.npy")));
}

TEST_F(Sharded, ShardsInFilesOfTheirOwn) {
  const auto x = random_elements(DType::float32, 5000, 5);
  write_array(at("x.npy"), DType::float32, {5000}, x);
  write_array(at("a.npy"), DType::float32, {1500}, std::span(x).first(6000));
  write_array(at("b.npy"), DType::float32, {3500}, std::span(x).subspan(6000));
  expect_ok({"state", "@a.npy", "@a.part", "--row-length", "5000"});
  expect_ok({"state", "@b.npy", "@b.part", "--offset", "1500"});
  expect_ok({"merge", "@b.part", "@a.part", "-o", "@all.part"});
  expect_ok({"softmax", "@x.npy", "@whole.npy"});
  expect_ok({"finish", "@b.npy", "@all.part", "@y.npy"});
  expect_columns(io::open_array(at("whole.npy")), io::open_array(at("y.npy")), 1500);
  expect_ok({"logsumexp", "@x.npy", "@lse.npy"});
  expect_ok({"finish", "--logsumexp", "@all.part", "@lse2.npy"});
  EXPECT_EQ(elements_of(io::open_array(at("lse.npy"))), elements_of(io::open_array(at("lse2.npy"))));
  float lse = 0;
  io::open_array(at("lse.npy")).read(0, std::as_writable_bytes(std::span(&lse, 1)));
  EXPECT_EQ(std::stof(expect_ok({"finish", "--logsumexp", "@all.part"})), lse);
  EXPECT_NE(expect_ok({"finish", "--logsumexp", "@all.part", "@lse2.npy", "--json"}).find("lse2.npy"),
            std::string::npos);
  for (const Words& unused :
       {Words{"--range", "0:5"}, {"--as", "f32"}, {"--dtype", "f16"}, {"--tensor", "t"}, {"--log"}}) {
    Words words{"finish", "--logsumexp", "@all.part"};
    words.insert(words.end(), unused.begin(), unused.end());
    expect_refused(Code::usage, unused[0], words);
  }
  const float nothing[] = {-INFINITY, -INFINITY};
  write_array(at("n.npy"), DType::float32, {2}, std::as_bytes(std::span(nothing)));
  expect_ok({"state", "@n.npy", "@n.part"});
  EXPECT_NE(expect_ok({"finish", "--logsumexp", "@n.part", "--json"}).find("\"-inf\""), std::string::npos);
}

TEST_F(Sharded, WhatDoesNotBelongTogetherIsRefused) {
  const auto x = random_elements(DType::float32, 4000, 5);
  write_array(at("x.npy"), DType::float32, {4000}, x);
  write_array(at("m.npy"), DType::float32, {2, 2000}, x);
  write_array(at("d.npy"), DType::float64, {2000}, random_elements(DType::float64, 2000, 5));
  expect_ok({"state", "@x.npy", "@a.part", "--range", "0:2000"});
  expect_ok({"state", "@x.npy", "@b.part", "--range", "2001:4000"});
  expect_ok({"state", "@x.npy", "@c.part", "--range", "2000:4000", "--scale", "2"});
  expect_ok({"state", "@m.npy", "@m.part", "--offset", "2000"});
  expect_ok({"state", "@d.npy", "@d.part", "--offset", "2000"});
  expect_ok({"state", "@d.npy", "@long.part", "--row-length", "5000"});
  expect_ok({"state", "@d.npy", "@short.part", "--offset", "2000", "--row-length", "4000"});
  expect_ok({"state", "@x.npy", "@whole.part"});
  const std::size_t files = entries();
  expect_refused(Code::state, "2000:2001", {"merge", "@a.part", "@b.part", "-o", "@all.part"});
  expect_refused(Code::state, "overlapping", {"merge", "@a.part", "@a.part", "-o", "@all.part"});
  expect_refused(Code::state, "scale", {"merge", "@a.part", "@c.part", "-o", "@all.part"});
  expect_refused(Code::state, "2 rows", {"merge", "@a.part", "@m.part", "-o", "@all.part"});
  expect_refused(Code::state, "float64", {"merge", "@a.part", "@d.part", "-o", "@all.part"});
  expect_refused(Code::state, "5000", {"merge", "@long.part", "@short.part", "-o", "@all.part"});
  expect_refused(Code::state, "softfold merge", {"finish", "@x.npy", "@a.part", "@y.npy"});
  expect_refused(Code::state, "softfold merge", {"finish", "@x.npy", "@b.part", "@y.npy"});
  expect_refused(Code::state, "softfold merge", {"finish", "--logsumexp", "@a.part"});
  expect_refused(Code::shape, "the partial's 1 row,", {"finish", "@m.npy", "@whole.part", "@y.npy"});
  expect_refused(Code::file, "partial", {"merge", "@x.npy", "-o", "@all.part"});
  expect_refused(Code::shape, "range", {"state", "@x.npy", "@y.part", "--range", "5:4001"});
  expect_refused(Code::option, "--row-length", {"state", "@x.npy", "@y.part", "--row-length", "3999"});
  expect_refused(Code::option, "try: --row-length 4000", {"state", "@x.npy", "@y.part", "--row-length", "3999"});
  for (const std::string length : {"9007199254740993", "9223372036854775807", "-1"})
    expect_refused(Code::option, "2^53", {"state", "@x.npy", "@y.part", "--row-length", length});
  EXPECT_EQ(entries(), files);
}

TEST_F(Sharded, NoInputIsEverReplaced) {
  write_array(at("x.npy"), DType::float32, {4000}, random_elements(DType::float32, 4000, 5));
  expect_ok({"state", "@x.npy", "@a.part", "--range", "0:2000"});
  expect_ok({"state", "@x.npy", "@b.part", "--range", "2000:4000"});
  expect_ok({"state", "@x.npy", "@p.part"});
  std::filesystem::rename(at("p.part"), at("p.npy"));  // whatever its name, a partial
  const std::string x = contents(at("x.npy")), a = contents(at("a.part")), b = contents(at("b.part")),
                    p = contents(at("p.npy"));
  for (const std::string file : {"x.npy", "b.part", "p.npy"}) {
    std::filesystem::create_symlink(file, at("soft-" + file));
    std::filesystem::create_hard_link(at(file), at("hard-" + file));
  }
  for (const std::string link : {"@", "@soft-", "@hard-"}) {
    expect_refused(Code::option, "same file", {"merge", "@a.part", "@b.part", "-o", link + "b.part"});
    expect_refused(Code::option, "same file", {"finish", "@x.npy", "@p.npy", link + "p.npy"});
    expect_refused(Code::option, "same file", {"finish", "@x.npy", "@p.npy", link + "x.npy"});
    expect_refused(Code::option, "same file", {"finish", "--logsumexp", "@p.npy", link + "p.npy"});
    expect_refused(Code::option, "same file", {"state", "@x.npy", link + "x.npy"});
  }
  EXPECT_EQ(contents(at("x.npy")), x);
  EXPECT_EQ(contents(at("a.part")), a);
  EXPECT_EQ(contents(at("b.part")), b);
  EXPECT_EQ(contents(at("p.npy")), p);
}

// Two shards without --offset both claim to begin the row; leaving one out would give wrong probabilities.
TEST_F(Sharded, AForgottenOffsetIsAskedFor) {
  const auto x = random_elements(DType::float32, 4000, 5);
  write_array(at("0.npy"), DType::float32, {2500}, std::span(x).first(10000));
  write_array(at("1.npy"), DType::float32, {1500}, std::span(x).subspan(10000));
  expect_ok({"state", "@0.npy", "@0.part"});
  expect_ok({"state", "@1.npy", "@1.part"});
  const Result merged = run({"merge", "@1.part", "@0.part", "-o", "@row.part"});
  EXPECT_EQ(merged.status, static_cast<int>(Code::state));
  EXPECT_NE(merged.err.find("1.part', whose elements from 0 on"), std::string::npos) << merged.err;
  EXPECT_NE(merged.err.find("--offset 2500"), std::string::npos) << merged.err;
  // A partial of one shard may be the whole row; finish says that it cannot know.
  EXPECT_NE(run({"finish", "@0.npy", "@0.part", "@p.npy"}).err.find("--row-length"), std::string::npos);
  for (const Words& words :
       {Words{"finish", "--logsumexp", "@0.part"}, Words{"finish", "--logsumexp", "@0.part", "@l.npy"},
        Words{"finish", "--logsumexp", "@0.part", "--json"}})
    EXPECT_NE(run(words).err.find("elements 0:2500 and does not say how long the row is"), std::string::npos);
  expect_ok({"state", "@0.npy", "@0.part", "--row-length", "2500"});
  EXPECT_EQ(run({"finish", "@0.npy", "@0.part", "@p.npy"}).err, "");
  EXPECT_EQ(run({"finish", "--logsumexp", "@0.part"}).err, "");
}

TEST_F(Sharded, APartialReplacesNothingButPartials) {
  write_array(at("x.npy"), DType::float32, {4000}, random_elements(DType::float32, 4000, 5));
  write_array(at("d.npy"), DType::float32, {4000}, random_elements(DType::float32, 4000, 5));
  std::filesystem::rename(at("d.npy"), at("data"));
  const std::string before = contents(at("data"));
  expect_ok({"state", "@x.npy", "@a.part"});
  for (const std::string name : {"@new.npy", "@new.safetensors", "@data"}) {
    expect_refused(Code::option, ".part", {"state", "@x.npy", name});
    expect_refused(Code::option, ".part", {"merge", "@a.part", "-o", name});
  }
  EXPECT_EQ(contents(at("data")), before);
  EXPECT_EQ(entries(), 3u);
  std::ofstream(at("empty")).close();
  expect_ok({"state", "@x.npy", "@a.part"});
  expect_ok({"merge", "@a.part", "-o", "@empty"});
}

TEST_F(Sharded, RefusedBeforeTheShardIsRead) {
  write_array(at("x.npy"), DType::float32, {10}, random_elements(DType::float32, 10, 5));
  for (const std::string offset : {"-1", "9007199254740983", "9223372036854775807"})
    expect_refused(Code::shape, "--offset", {"state", "@x.npy", "@y.part", "--offset", offset});
  expect_refused(Code::option, "scale", {"state", "@x.npy", "@y.part", "--scale", "1e300"});
  expect_refused(Code::io, "No such file", {"state", "@x.npy", "@no/y.part"});
  EXPECT_EQ(entries(), 1u);
  expect_ok({"state", "@x.npy", "@y.part", "--offset", "9007199254740982", "--row-length", "9007199254740992"});
}

TEST_F(CommandTest, FinishRefusesAShardWithMoreThanThePartialHasSeen) {
  const Shape shape{3, 70'000};
  auto x = random_elements(DType::float32, 210'000, 2);
  write_array(at("x.npy"), DType::float32, shape, x);
  expect_ok({"state", "@x.npy", "@x.part"});
  const float above = 50;
  std::memcpy(x.data() + 4 * 139'999, &above, sizeof above);
  write_array(at("other.npy"), DType::float32, shape, x);
  for (const Words& more : {Words{}, Words{"--log"}, Words{"--dtype", "f16", "--memory", "32M"}}) {
    Words words{"finish", "@other.npy", "@x.part", "@y.npy"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(Code::state, "row 1 ", words);
    EXPECT_FALSE(std::filesystem::exists(at("y.npy")));
  }
  expect_ok({"finish", "@x.npy", "@x.part", "@y.npy"});
}

class ManyShortRows : public Sharded {
 protected:
  static constexpr std::int64_t kRows = 200'000 / kShorter;

  void SetUp() override {
    write_array(at("x.npy"), DType::float32, {kRows, 2}, random_elements(DType::float32, 2 * kRows, 5));
    call({"state", "@x.npy", "@a.part", "--range", "0:1"}, {});
    call({"state", "@x.npy", "@b.part", "--range", "1:2"}, {});
    call({"merge", "@b.part", "@a.part", "-o", "@all.part"}, {});
  }
};

// Held all at once, these rows' partials would be 44 MB, and as JSON 64.
TEST_F(ManyShortRows, StayInTheirMemory) {
  std::filesystem::remove(at("all.part"));
  for (const Words& words : {Words{"state", "@x.npy", "@a.part", "--range", "0:1", "--memory", "32M"},
                             {"merge", "@b.part", "@a.part", "-o", "@all.part"},
                             {"finish", "@x.npy", "@all.part", "@y.npy", "--memory", "32M"},
                             {"finish", "--logsumexp", "@all.part", "@lse2.npy", "--memory", "32M"},
                             {"finish", "--logsumexp", "@all.part", "--json", "--memory", "32M"}}) {
    const Result done = run(words);
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_TRUE(kSanitized || done.peak_rss <= 32 << 20) << ::testing::PrintToString(words) << done.peak_rss;
  }
  expect_ok({"softmax", "@x.npy", "@whole.npy"});
  expect_ok({"logsumexp", "@x.npy", "@lse.npy"});
  EXPECT_EQ(contents(at("y.npy")), contents(at("whole.npy")));
  EXPECT_EQ(contents(at("lse2.npy")), contents(at("lse.npy")));
}

TEST_F(ManyShortRows, ArePrintedAsOneList) {
  expect_ok({"finish", "--logsumexp", "@all.part", "@lse.npy", "--dtype", "f64"});
  std::vector<double> lse(kRows);
  io::open_array(at("lse.npy")).read(0, std::as_writable_bytes(std::span(lse)));
  const auto told = nlohmann::json::parse(expect_ok({"finish", "--logsumexp", "@all.part", "--json"}));
  EXPECT_EQ(told.at("logsumexp").get<std::vector<double>>(), lse);
  std::istringstream lines(expect_ok({"finish", "--logsumexp", "@all.part"}));
  std::int64_t row = 0;
  for (float value = 0; lines >> value; ++row)
    ASSERT_EQ(value, static_cast<float>(lse[static_cast<std::size_t>(row)])) << row;
  EXPECT_EQ(row, kRows);
}

// The list is longer than a pipe holds: where it is not read on, the command waits in the middle of it.
TEST_F(ManyShortRows, OfAnInterruptedListAreNotAll) {
  for (const Words& more : {Words{}, Words{"--json"}}) {
    Words words{"finish", "--logsumexp", "@all.part"};
    words.insert(words.end(), more.begin(), more.end());
    const std::string out = folder() + ".out";  // the command's standard output
    ASSERT_EQ(::mkfifo(out.c_str(), 0600), 0);
    const pid_t child = start(words);
    std::ifstream pipe(out);
    std::string line;
    std::getline(pipe, line);
    ::kill(child, SIGINT);
    std::int64_t lines = 1;
    while (std::getline(pipe, line)) ++lines;
    ::unlink(out.c_str());
    const Result interrupted = wait_for(child);
    EXPECT_EQ(interrupted.status, 130);
    EXPECT_LT(lines, kRows);
    EXPECT_NE(interrupted.err.find("interrupted; the list that was printed is not whole\n"), std::string::npos)
        << interrupted.err;
  }
}

TEST_F(ManyShortRows, WithDamageInTheLastAreRefusedBeforeTheFirst) {
  {
    std::fstream file(at("all.part"), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-10, std::ios::end).put('?');
  }
  const std::size_t files = entries();
  for (const Words& words : {Words{"merge", "@all.part", "-o", "@z.part"},
                             {"finish", "--logsumexp", "@all.part"},
                             {"finish", "--logsumexp", "@all.part", "@z.npy"},
                             {"finish", "@x.npy", "@all.part", "@z.npy"}}) {
    const Result refused = run(words);
    EXPECT_EQ(refused.status, static_cast<int>(Code::file)) << refused.err;
    EXPECT_NE(refused.err.find("all.part': a damaged partial file"), std::string::npos) << refused.err;
    EXPECT_EQ(refused.out, "");
  }
  EXPECT_EQ(entries(), files);
}

TEST_F(Sharded, MorePartialsThanFilesThatMayBeOpen) {
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  write_array(at("x.npy"), DType::float32, {60}, random_elements(DType::float32, 60, 5));
  Words words{"merge", "-o", "@all.part"};
  for (std::size_t i = 0; i < 60; ++i) {
    words.push_back(file('p', i));
    expect_ok({"state", "@x.npy", words.back(), "--range", std::to_string(i) + ":" + std::to_string(i + 1)});
  }
  const struct rlimit few { 40, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const Result merged = run(words);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(merged.status, 0) << merged.err;
  expect_ok({"state", "@x.npy", "@whole.part", "--range", "0:60"});
  EXPECT_EQ(contents(at("all.part")), contents(at("whole.part")));
}

}  // namespace
}  // namespace softfold_test
