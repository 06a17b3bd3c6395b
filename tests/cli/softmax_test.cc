// softmax, log-softmax, logsumexp: the library's bits, whatever the file, the axis and the memory.
#include "cli/support.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <cerrno>
#include <cstddef>
#include <regex>
#include <thread>
#include <tuple>

namespace softfold_test {
namespace {

using namespace softfold;

class SoftmaxCommand : public CommandTest {
 protected:
  /// What the library computes in memory.
  static std::vector<std::byte> expected(Op op, DType dtype, DType output, const Shape& shape, int axis,
                                         std::span<const std::byte> x, double scale = 1) {
    Shape result = shape;
    const std::size_t at = static_cast<std::size_t>(axis < 0 ? axis + std::ssize(shape) : axis);
    if (op == Op::logsumexp) result.erase(result.begin() + static_cast<std::ptrdiff_t>(at));
    std::size_t count = 1;
    for (const auto n : result) count *= static_cast<std::size_t>(n);
    std::vector<std::byte> y(count * size_of(output));
    RowOptions options;
    options.axis = axis;
    options.scale = scale;
    const View in(static_cast<const void*>(x.data()), dtype, shape), out(y.data(), output, result);
    plan(op, {&in, 1}, {&out, 1}, options).run();
    return y;
  }
};

TEST_F(SoftmaxCommand, EveryOperationAndDtypeHasTheLibrarysBits) {
  const Shape shape{3, 1031};
  for (const DType dtype : {DType::float32, DType::float64, DType::float16}) {
    const auto x = random_elements(dtype, 3 * 1031, 5);
    write_array(at("x.npy"), dtype, shape, x);
    const std::pair<const char*, Op> verbs[] = {
        {"softmax", Op::softmax}, {"log-softmax", Op::log_softmax}, {"logsumexp", Op::logsumexp}};
    for (const auto& [verb, op] : verbs) {
      for (const DType output : {dtype, DType::float32}) {
        expect_ok({verb, "@x.npy", "@y.npy", "--dtype", std::string(name_of(output)), "--scale", "0.5"});
        const auto y = io::open_array(at("y.npy"));
        EXPECT_EQ(y.dtype(), output);
        EXPECT_EQ(shape_of(y), op == Op::logsumexp ? Shape{3} : shape);
        EXPECT_EQ(elements_of(y), expected(op, dtype, output, shape, -1, x, 0.5)) << verb << name_of(dtype);
      }
    }
  }
}

TEST_F(SoftmaxCommand, BFloat16AndSafetensors) {
  const auto x = random_elements(DType::bfloat16, 2 * 500, 5);
  write_array(at("x.npy"), DType::bfloat16, {2, 500}, x);
  write_array(at("x.safetensors"), DType::bfloat16, {2, 500}, x);
  expect_refused(Code::dtype, "try: --as bfloat16", {"softmax", "@x.npy", "@y.npy"});
  EXPECT_NE(run({"softmax", "@x.npy", "@y.npy", "--as", "bf16"}).err.find("with --as bfloat16"), std::string::npos);
  expect_ok({"softmax", "@x.npy", "@y.npy", "--as", "bf16"});
  expect_ok({"softmax", "@x.safetensors", "@y.safetensors", "--tensor", "x"});
  const auto y = expected(Op::softmax, DType::bfloat16, DType::bfloat16, {2, 500}, -1, x);
  EXPECT_EQ(elements_of(io::open_array(at("y.npy"), "", DType::bfloat16)), y);
  EXPECT_EQ(elements_of(io::open_array(at("y.safetensors"), "x")), y);
  expect_refused(Code::option, "x", {"softmax", "@x.safetensors", "@y.npy", "--tensor", "xx"});
}

TEST_F(SoftmaxCommand, EveryAxisAlsoWhereABlockHasAFewColumnsOnly) {
  const Shape shape{3, 40000, 70};  // one slice of 11 MB and its result are more than --memory 32M leaves
  const auto x = random_elements(DType::float32, 3 * 40000 * 70, 5);
  write_array(at("x.npy"), DType::float32, shape, x);
  for (const int axis : {0, 1, 2}) {
    if (kSanitized && axis != 1) continue;  // millions of short rows
    expect_ok({"softmax", "@x.npy", "@y.npy", "--axis", std::to_string(axis), "--memory", "32M"});
    EXPECT_EQ(elements_of(io::open_array(at("y.npy"))),
              expected(Op::softmax, DType::float32, DType::float32, shape, axis, x));
  }
}

TEST_F(SoftmaxCommand, ColumnsThatDoNotFitAreRefusedWithTheMemoryThatWouldDo) {
  const Shape shape{1000000, 40};
  write_array(at("x.npy"), DType::float32, shape, std::vector<std::byte>(160000000));
  expect_refused(Code::option, "transpose", {"softmax", "@x.npy", "@y.npy", "--axis", "0", "--memory", "32M"});
  expect_ok({"logsumexp", "@x.npy", "@y.npy", "--axis", "0", "--memory", "256M"});
  EXPECT_EQ(entries(), 2u);
}

TEST_F(SoftmaxCommand, NothingInIt) {
  write_array(at("x.npy"), DType::float32, {0, 5}, {});
  write_array(at("z.npy"), DType::float32, {2, 0}, {});
  for (const std::string name : {"@x.npy", "@z.npy"}) {
    expect_ok({"softmax", name, "@y.npy"});
    EXPECT_EQ(shape_of(io::open_array(at("y.npy"))), shape_of(io::open_array(at(name.substr(1)))));
  }
  expect_ok({"logsumexp", "@z.npy", "@y.npy"});
  const float nothing[] = {-INFINITY, -INFINITY};
  const auto bytes = std::as_bytes(std::span(nothing));
  EXPECT_EQ(elements_of(io::open_array(at("y.npy"))), std::vector<std::byte>(bytes.begin(), bytes.end()));
}

TEST_F(SoftmaxCommand, RowsOfNaNAreCounted) {
  const float x[] = {1, -INFINITY, 2, -INFINITY, NAN, 0, -INFINITY, INFINITY, 1, 3, 4, 5}, few[] = {1, 2};
  write_array(at("x.npy"), DType::float32, {4, 3}, std::as_bytes(std::span(x)));
  write_array(at("few.npy"), DType::float32, {1, 2}, std::as_bytes(std::span(few)));
  const std::vector<std::int64_t> classes(4, 2);
  write_array(at("t.npy"), DType::int64, {4}, std::as_bytes(std::span(classes)));
  // Streamed: a row that does not fit is written in pieces.
  write_header("long.npy", "2, 10000000");
  std::filesystem::resize_file(at("long.npy"), 128 + 80'000'000);
  std::fstream(at("long.npy"), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(128 + 36'000'000)
      .write(reinterpret_cast<const char*>(&x[4]), 4);
  for (const std::string verb : {"softmax", "log-softmax", "logsumexp", "entropy"}) {
    const std::string count = verb == "logsumexp" ? "1" : "2";  // that of +inf is +inf
    const std::string told = expect_ok({verb, "@x.npy", "@y.npy"});
    EXPECT_NE(told.find("NaN in " + count + " of 4 rows\n"), std::string::npos) << told;
    EXPECT_EQ(expect_ok({verb, "@few.npy", "@y.npy"}).find("NaN in"), std::string::npos);
    EXPECT_NE(expect_ok({verb, "@x.npy", "@y.npy", "--json"}).find("\"nan_rows\": " + count + ","), std::string::npos);
  }
  EXPECT_NE(expect_ok({"softmax", "@x.npy", "@y.npy", "--axis", "0"}).find("NaN in 1 of 3 rows"), std::string::npos);
  EXPECT_NE(expect_ok({"cross-entropy", "@x.npy", "@t.npy"}).find("NaN in 2 of 4 rows"), std::string::npos);
  expect_ok({"state", "@x.npy", "@x.part"});
  EXPECT_NE(expect_ok({"finish", "@x.npy", "@x.part", "@y.npy"}).find("NaN in 2 of 4 rows"), std::string::npos);
  EXPECT_NE(expect_ok({"finish", "@x.npy", "@x.part", "@y.npy", "--json"}).find("\"nan_rows\": 2,"), std::string::npos);
  const Words streamed{"softmax", "@long.npy", "@y.npy", "--memory", "33M"};
  EXPECT_NE(expect_ok(streamed).find("two passes"), std::string::npos);
  EXPECT_NE(expect_ok(streamed).find("NaN in 1 of 2 rows"), std::string::npos);
}

/// A row, and rows, of 200 MB in all, with numbers in every block.
class LargeFile : public SoftmaxCommand {
 protected:
  static constexpr std::int64_t kElements = 50'000'003;

  void write_large(const std::string& name, const Shape& shape) {
    std::int64_t left = 1;
    for (const auto n : shape) left *= n;
    auto output = io::create_npy(at(name), DType::float32, shape);
    const auto block = random_elements(DType::float32, 999'983, 7);
    for (std::uint64_t done = 0; left > 0;) {
      const auto bytes = std::min(block.size(), static_cast<std::size_t>(left) * 4);
      output.write(done, std::span(block).first(bytes));
      done += bytes;
      left -= static_cast<std::int64_t>(bytes / 4);
    }
    output.commit();
  }

  std::string hash(const std::string& name) const { return expect_ok({"hash", "@" + name}).substr(0, 16); }
};

constexpr std::int64_t kMost = std::int64_t{kSanitized ? 4096 : 32} << 20;

// A thread's stack is as large as the limit on stacks: with this one the system gives no thread.
TEST_F(SoftmaxCommand, WithoutAnotherThreadTheSameBits) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's run-time library does not take such a limit";
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_STACK, &before), 0);
  const struct rlimit beyond { rlim_t{1} << 47, before.rlim_max };
  if (beyond.rlim_cur > before.rlim_max) GTEST_SKIP() << "stacks of this size are forbidden";
  write_array(at("x.npy"), DType::float32, {3'000'000}, random_elements(DType::float32, 3'000'000, 5));
  expect_ok({"softmax", "@x.npy", "@whole.npy"});
  ASSERT_EQ(::setrlimit(RLIMIT_STACK, &beyond), 0);
  const Result alone = run({"softmax", "@x.npy", "@y.npy", "--memory", "32M", "--threads", "3"});
  ASSERT_EQ(::setrlimit(RLIMIT_STACK, &before), 0);
  EXPECT_EQ(alone.status, 0) << alone.err;
  EXPECT_EQ(contents(at("y.npy")), contents(at("whole.npy")));
}

TEST_F(LargeFile, ARowLargerThanMemoryHasTheSameBits) {
  write_large("x.npy", {kElements});
  expect_ok({"softmax", "@x.npy", "@whole.npy"});
  for (const std::string verb : {"softmax", "log-softmax", "logsumexp"}) {
    const Result streamed = run({verb, "@x.npy", "@streamed.npy", "--memory", "32M", "--json"});
    EXPECT_EQ(streamed.status, 0) << streamed.err;
    EXPECT_NE(streamed.out.find("\"streamed\": true"), std::string::npos) << streamed.out;
    EXPECT_LT(streamed.peak_rss, kMost);
    if (verb == "softmax") {
      EXPECT_EQ(hash("streamed.npy"), hash("whole.npy"));
    }
  }
  expect_refused(Code::option, "--memory", {"softmax", "@x.npy", "@y.npy", "--memory", "32M", "--rung", "tiled"});
}

TEST_F(LargeFile, ManyRowsLargerThanMemoryHaveTheSameBits) {
  write_large("x.npy", {3000, 16667});
  expect_ok({"softmax", "@x.npy", "@whole.npy", "--threads", "1"});
  const Result blocks = run({"softmax", "@x.npy", "@blocks.npy", "--memory", "32M", "--threads", "3"});
  EXPECT_EQ(blocks.status, 0) << blocks.err;
  EXPECT_LT(blocks.peak_rss, kMost);
  EXPECT_EQ(hash("blocks.npy"), hash("whole.npy"));
}

// 4.8 GB in, as much out, in two passes.
TEST_F(LargeFile, LongARowOfManyGigabytesStaysInItsMemory) {
  write_large("x.npy", {1'200'000'001});
  std::string before;
  for (const auto& [memory, threads, most] : {std::tuple{"256M", "2", 256}, std::tuple{"64M", "1", 64}}) {
    const Result streamed = run({"softmax", "@x.npy", "@y.npy", "--memory", memory, "--threads", threads});
    ASSERT_EQ(streamed.status, 0) << streamed.err;
    EXPECT_LE(streamed.peak_rss, std::int64_t{most} << 20);
    const std::string bits = hash("y.npy");
    if (!before.empty()) {
      EXPECT_EQ(bits, before);
    }
    before = bits;
  }
}

// Work that takes more than the bar's patience: 2 GiB that no disk holds, and a pause of half a second for a machine
// that reads them faster.
TEST_F(LargeFile, ATerminalSeesHowFarHowFastAndHowLongStill) {
  write_header("x.npy", "536870912,");
  std::filesystem::resize_file(at("x.npy"), 128 + (std::uintmax_t{1} << 31));
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  const std::string seen_by = ::ptsname(terminal);
  const pid_t child = start({"logsumexp", "@x.npy", "@y.npy", "--memory", "32M"}, seen_by);
  ASSERT_TRUE(wait_for_temporary(child));
  ::kill(child, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::kill(child, SIGCONT);
  std::string seen;
  char buffer[4096];
  for (ssize_t got; (got = ::read(terminal, buffer, sizeof buffer)) > 0;)
    seen.append(buffer, static_cast<std::size_t>(got));
  ::close(terminal);
  EXPECT_EQ(wait_for(child).status, 0);
  EXPECT_TRUE(std::regex_search(seen, std::regex(R"(\[#+\.*\] +[0-9]+%  [0-9.]+ [kMG]?B/s  [0-9]+:[0-9]{2} left)")))
      << seen;
  EXPECT_TRUE(seen.ends_with("\r\x1b[K")) << "the bar must be gone";
}

TEST_F(LargeFile, KilledWhileWritingLeavesTheOldResult) {
  write_large("x.npy", {kElements});
  write_array(at("y.npy"), DType::float32, {2}, random_elements(DType::float32, 2, 1));
  const std::string before = contents(at("y.npy"));
  for (const int signal : {SIGKILL, SIGTERM, SIGINT, SIGQUIT, SIGALRM, SIGXCPU, SIGRTMIN}) {
    const pid_t child = start({"softmax", "@x.npy", "@y.npy", "--memory", "32M"});
    ASSERT_TRUE(wait_for_temporary(child));
    ::kill(child, signal);
    ::kill(child, signal);  // as timeout(1) does: the process, then its group
    const Result result = wait_for(child);
    EXPECT_EQ(result.status, signal == SIGKILL ? -SIGKILL : 130) << result.err;
    EXPECT_EQ(contents(at("y.npy")), before);
    EXPECT_EQ(entries(), signal == SIGKILL ? 3u : 2u);  // what a killed process leaves, the next one removes
  }
}

TEST_F(LargeFile, AnIgnoredSignalStaysIgnored) {
  write_large("x.npy", {kElements});
  const auto before = ::signal(SIGHUP, SIG_IGN);  // as nohup does
  const pid_t child = start({"logsumexp", "@x.npy", "@y.npy", "--memory", "32M"});
  ::signal(SIGHUP, before);
  ASSERT_TRUE(wait_for_temporary(child));
  ::kill(child, SIGHUP);
  EXPECT_EQ(wait_for(child).status, 0);
}

// A pipe that nobody reads any more ends the command without a word, and without a trace.
TEST_F(SoftmaxCommand, ABrokenPipeLeavesNothing) {
  write_array(at("x.npy"), DType::float32, {6}, random_elements(DType::float32, 6, 1));
  expect_ok({"state", "@x.npy", "@x.part", "--offset", "0"});
  // What it has to say is a note, then a refusal.
  for (const std::string& verb : {"finish " + at("x.npy") + " " + at("x.part"), "softmax " + at("missing.npy")}) {
    const std::string until_gone = "(until test -e " + at("gone") + "; do sleep 0.01; done; ",
                      call = SOFTFOLD_COMMAND " " + verb + " " + at("y.npy"),
                      unread = until_gone + call + "; echo $? >" + at("status") + ") 2>&1 | (exec <&-; touch " +
                               at("gone") + ")";
    EXPECT_EQ(std::system(unread.c_str()), 0);
    EXPECT_EQ(contents(at("status")), std::to_string(128 + SIGPIPE) + "\n") << verb;
    EXPECT_EQ(entries(), 4u);
    std::filesystem::remove(at("gone"));
  }
}

TEST_F(SoftmaxCommand, AFullDiskIsRefusedBeforeAnyWork) {
  std::filesystem::create_directory(at("disk"));
  if (::mount("tmpfs", at("disk").c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "may not mount a small disk";
  write_array(at("x.npy"), DType::float32, {1000, 1000}, std::vector<std::byte>(4000000));
  expect_refused(Code::io, "4000128 bytes", {"softmax", "@x.npy", "@disk/y.npy"});
  EXPECT_TRUE(std::filesystem::is_empty(at("disk")));
  ::umount(at("disk").c_str());
}

/// From here on this process and what it starts meet a file system that reserves nothing and does not say what is free,
/// as some over a network do. False if the system takes no filter.
bool forbid_asking_for_space() {
  struct sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fstatfs, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog filter { static_cast<unsigned short>(std::size(program)), program };
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// The whole array in memory, and in pieces.
TEST_F(SoftmaxCommand, ADiskThatFillsUpWhileWritingLeavesTheOldResult) {
  constexpr int kNoFilter = 77;
  std::filesystem::create_directory(at("disk"));
  if (::mount("tmpfs", at("disk").c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "may not mount a small disk";
  write_array(at("disk/y.npy"), DType::float32, {2}, random_elements(DType::float32, 2, 1));
  const std::string before = contents(at("disk/y.npy"));
  write_array(at("x.npy"), DType::float32, {3000, 3000}, random_elements(DType::float32, 9'000'000, 1));
  for (const char* memory : {"256M", "32M"}) {
    const pid_t child = ::fork();  // a filter is for good
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (!forbid_asking_for_space()) ::_exit(kNoFilter);
      const Result result = run({"softmax", "@x.npy", "@disk/y.npy", "--memory", memory});
      const bool told = result.err.find("No space left on device") != std::string::npos;
      ::_exit(told ? result.status : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoFilter) {
      ::umount(at("disk").c_str());
      GTEST_SKIP() << "may not filter system calls";
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(Code::io)) << status;
    EXPECT_EQ(contents(at("disk/y.npy")), before);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(at("disk")), {}), 1);
  }
  ::umount(at("disk").c_str());
}

TEST_F(SoftmaxCommand, RefusedBeforeAnyWork) {
  write_array(at("x.npy"), DType::float32, {2, 3}, random_elements(DType::float32, 6, 1));
  write_array(at("i.npy"), DType::int32, {6}, std::vector<std::byte>(24));
  expect_refused(Code::shape, "axis 2", {"softmax", "@x.npy", "@y.npy", "--axis", "2"});
  expect_refused(Code::dtype, "int32", {"softmax", "@i.npy", "@y.npy"});
  expect_refused(Code::dtype, "float33", {"softmax", "@x.npy", "@y.npy", "--dtype", "float33"});
  expect_refused(Code::option, "scale", {"softmax", "@x.npy", "@y.npy", "--scale", "1e300"});
  expect_refused(Code::option, "same file", {"softmax", "@x.npy", "@x.npy"});
  expect_refused(Code::option, "try: nan", {"softmax", "@x.npy", "@y.npy", "--empty", "nam"});
  expect_refused(Code::option, "try: 256M", {"softmax", "@x.npy", "@y.npy", "--memory", "lots"});
  expect_refused(Code::option, "at least 32M", {"softmax", "@x.npy", "@y.npy", "--memory", "1M"});
  expect_refused(Code::option, "threads", {"softmax", "@x.npy", "@y.npy", "--threads", "-1"});
  expect_refused(Code::option, "try: cuda", {"softmax", "@x.npy", "@y.npy", "--backend", "cud"});
  expect_refused(Code::file, "No such file", {"softmax", "@none.npy", "@y.npy"});
  expect_refused(Code::option, ".npy or .safetensors", {"softmax", "@x.npy", "@y.txt"});
  expect_refused(Code::option, "/y.npy\n", {"softmax", "@x.npy", "@y.npy/"});
  expect_refused(Code::option, "try: result.npy", {"softmax", "@x.npy", "/dev/null"});
  expect_refused(Code::option, "try: " + folder() + "/result.npy", {"softmax", "@x.npy", folder()});
  expect_refused(Code::io, "No such file", {"softmax", "@x.npy", "@no/y.npy"});
  EXPECT_EQ(entries(), 2u);
}

}  // namespace
}  // namespace softfold_test
