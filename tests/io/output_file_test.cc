// An output appears whole or not at all: on a full disk, after kill -9, and when it is refused.
#include "softfold/io/output_file.hpp"

#include "softfold/io/array_file.hpp"
#include "support.hpp"

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <thread>
#include <vector>

namespace {

using namespace softfold;
using namespace softfold_test;
namespace fs = std::filesystem;

void write_whole(const std::string& path, const std::string& text) {
  io::OutputFile file(path, text.size());
  file.write(0, bytes_of_text(text));
  file.commit();
}

TEST(OutputFile, AppearsOnCommitAndNotBefore) {
  const TemporaryFolder folder;
  const std::string path = folder / "y";
  io::OutputFile file(path, 4);
  file.write(2, bytes_of_text("cd"));
  file.write(0, bytes_of_text("ab"));
  EXPECT_FALSE(fs::exists(path));
  file.commit();
  EXPECT_EQ(contents(path), "abcd");
  EXPECT_EQ(folder.entries(), 1);
  expect_error(Code::internal, "second commit", [&] { file.commit(); });
}

TEST(OutputFile, WithoutCommitLeavesWhatWasThere) {
  const TemporaryFolder folder;
  write_contents(folder / "y", "old");
  {
    io::OutputFile file(folder / "y", 4);
    file.write(0, bytes_of_text("abcd"));
  }
  EXPECT_EQ(contents(folder / "y"), "old");
  EXPECT_EQ(folder.entries(), 1);
}

TEST(OutputFile, MovedStillCommits) {
  const TemporaryFolder folder;
  io::OutputFile first(folder / "y", 2);
  first.write(0, bytes_of_text("ab"));
  io::OutputFile second(std::move(first));
  second.commit();
  EXPECT_EQ(contents(folder / "y"), "ab");
}

TEST(OutputFile, ReplacesAndKeepsPermissions) {
  const TemporaryFolder folder;
  write_contents(folder / "y", "an older, longer text");
  ASSERT_EQ(::chmod((folder / "y").c_str(), 0600), 0);
  write_whole(folder / "y", "new");
  EXPECT_EQ(contents(folder / "y"), "new");
  EXPECT_EQ(fs::status(folder / "y").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(OutputFile, OfNoBytes) {
  const TemporaryFolder folder;
  write_whole(folder / "y", "");
  EXPECT_TRUE(fs::exists(folder / "y"));
}

TEST(OutputFile, ThreadsWriteTheirBlocks) {
  const TemporaryFolder folder;
  constexpr std::size_t kBlock = 10'007, kBlocks = 64;
  io::OutputFile file(folder / "y", kBlock * kBlocks);
  const auto write_every_second = [&](std::size_t first) {
    for (std::size_t i = first; i < kBlocks; i += 2) {
      const std::string block(kBlock, static_cast<char>('0' + i));
      file.write(i * kBlock, bytes_of_text(block));
    }
  };
  std::thread other(write_every_second, 1);
  write_every_second(0);
  other.join();
  file.commit();
  const std::string text = contents(folder / "y");
  ASSERT_EQ(text.size(), kBlock * kBlocks);
  for (std::size_t i = 0; i < text.size(); ++i) ASSERT_EQ(text[i], static_cast<char>('0' + i / kBlock)) << i;
}

TEST(OutputFile, RefusesDestinationsThatAreNoFile) {
  const TemporaryFolder folder;
  const auto open = [](const std::string& path) { io::OutputFile file(path, 1); };
  fs::create_symlink(folder / "nothing", folder / "dangling");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(Code::option, "a directory", [&] { open(folder.path()); });
  expect_error(Code::io, "a shorter name", [&] { open(folder / std::string(300, 'x')); });
  expect_error(Code::option, "no file name", [&] { open(folder.path() + "/"); });
  expect_error(Code::option, "no file name", [&] { open(""); });
  expect_error(Code::option, "a link to nothing", [&] { open(folder / "dangling"); });
  expect_error(Code::option, "a pipe or device", [&] { open(folder / "pipe"); });
  expect_error(Code::option, "a pipe or device", [&] { open("/dev/null"); });
  expect_error(Code::io, "create the folder first", [&] { open(folder / "missing/y"); });
  EXPECT_EQ(folder.entries(), 2);
}

TEST(OutputFile, RefusesToBeAnInput) {
  const TemporaryFolder folder;
  write_contents(folder / "x", "input");
  fs::create_symlink("x", folder / "link");
  fs::create_hard_link(folder / "x", folder / "hard");
  const io::InputFile input(folder / "x");
  const std::string roundabout = "../" + fs::path(folder.path()).filename().string() + "/x";
  for (const std::string& name : {std::string("x"), std::string("link"), std::string("hard"), roundabout})
    expect_error(Code::option, "the same file as the input '" + folder / "x" + "'; allowed: ", [&] {
      io::OutputFile(folder / name, 5, {&input.id(), 1});
    });
  EXPECT_EQ(contents(folder / "x"), "input");
}

TEST(OutputFile, FollowsALink) {
  const TemporaryFolder folder;
  write_contents(folder / "target", "old");
  fs::create_symlink("target", folder / "link");
  write_whole(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(contents(folder / "target"), "new");
}

/// Lowers the largest file size for one test.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const struct rlimit lower { bytes, old_.rlim_max };
    ::setrlimit(RLIMIT_FSIZE, &lower);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &old_); }

 private:
  struct rlimit old_ {};
};

TEST(OutputFileFull, AFileSizeLimitIsRefusedWithoutASignal) {
  const TemporaryFolder folder;
  write_contents(folder / "y", "old");
  const FileSizeLimit limit(1 << 20);
  expect_error(Code::io,
               "needs 1048577 bytes; allowed: at most 1048576 bytes a file; try: raise the limit on file sizes",
               [&] { io::OutputFile(folder / "y", (1 << 20) + 1); });
  EXPECT_EQ(contents(folder / "y"), "old");
  EXPECT_EQ(folder.entries(), 1);
  write_whole(folder / "y", std::string(1 << 20, 'x'));
}

/// Mounts a small file system over `path`, seen by this process alone.
bool mount_over(const std::string& path, const char* type, const char* options) {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount(type, path.c_str(), type, 0, options) == 0;
}

TEST(OutputFileFull, AFullDiskIsRefusedBeforeAnyWork) {
  const TemporaryFolder folder;
  if (!mount_over(folder.path(), "tmpfs", "size=1m")) GTEST_SKIP() << "needs root to mount a small tmpfs";
  write_contents(folder / "y", "old");
  expect_error(Code::io, "needs 2097152 bytes; allowed: what fits: 10", [&] { io::OutputFile(folder / "y", 2 << 20); });
  EXPECT_EQ(contents(folder / "y"), "old");
  EXPECT_EQ(folder.entries(), 1);
  write_whole(folder / "y", std::string(800'000, 'x'));
  ::umount(folder.path().c_str());
}

TEST(OutputFileFull, AFileSystemThatCannotReserveStillWorks) {
  const TemporaryFolder folder;
  if (!mount_over(folder.path(), "ramfs", nullptr)) GTEST_SKIP() << "needs root to mount a ramfs";
  write_whole(folder / "y", "text");
  EXPECT_EQ(contents(folder / "y"), "text");
  ::umount(folder.path().c_str());
}

/// A child that runs `work` and is killed with SIGKILL once it has told that it is in the middle of it, after `delay`.
template <class Work>
void kill_during(Work work, std::chrono::microseconds delay) {
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    work([&] { return ::write(told[1], "x", 1); });
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(told[0], &byte, 1), 1);
  std::this_thread::sleep_for(delay);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  ::close(told[0]);
  ::close(told[1]);
}

TEST(OutputFileKilled, DuringAWriteLeavesTheDestinationAndOneTemporary) {
  for (const bool exists : {false, true}) {
    const TemporaryFolder folder;
    if (exists) write_contents(folder / "y", "old");
    kill_during(
        [&](auto tell) {
          io::OutputFile file(folder / "y", 1 << 20);
          const std::string block(1 << 10, 'x');
          for (std::uint64_t offset = 0;; offset = (offset + block.size()) % (1 << 20)) {
            file.write(offset, bytes_of_text(block));
            if (offset == 1 << 19) tell();
          }
        },
        std::chrono::microseconds(0));
    EXPECT_EQ(fs::exists(folder / "y"), exists);
    EXPECT_EQ(contents(folder / "y"), exists ? "old" : "");
    EXPECT_EQ(folder.entries(), exists ? 2 : 1);
    write_whole(folder / "z", "next");  // the next output removes what the dead one left
    EXPECT_EQ(folder.entries(), exists ? 2 : 1);
  }
}

TEST(OutputFileKilled, AtAnyMomentLeavesOneTextOrTheOther) {
  const TemporaryFolder folder;
  const std::string first(50'000, 'a'), second(70'000, 'b');
  write_whole(folder / "y", first);
  for (int i = 0; i < 20; ++i) {
    kill_during(
        [&](auto tell) {
          tell();
          for (;;) {
            write_whole(folder / "y", second);
            write_whole(folder / "y", first);
          }
        },
        std::chrono::microseconds(137 * i));
    const std::string text = contents(folder / "y");
    EXPECT_TRUE(text == first || text == second) << text.size();
  }
  EXPECT_LE(folder.entries(), 2);
}

TEST(OutputFileKilled, ALivingOutputIsNotTakenForADeadOne) {
  const TemporaryFolder folder;
  io::OutputFile first(folder / "y", 2);
  io::OutputFile second(folder / "y", 2);
  first.write(0, bytes_of_text("ab"));
  second.write(0, bytes_of_text("cd"));
  second.commit();
  EXPECT_EQ(contents(folder / "y"), "cd");
  first.commit();
  EXPECT_EQ(contents(folder / "y"), "ab");
}

}  // namespace
