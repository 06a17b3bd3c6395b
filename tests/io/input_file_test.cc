// Files that are read: what is no file is refused, short reads are continued, changes are noticed.
#include "softfold/io/input_file.hpp"

#include "io/detail.hpp"
#include "softfold/io/array_file.hpp"
#include "support.hpp"

#include <sys/stat.h>
#include <cerrno>

namespace {

using namespace softfold;
using namespace softfold_test;

TEST(InputFile, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(Code::file, "missing.npy': No such file", [&] { io::open_array(folder / "missing.npy"); });
  expect_error(Code::file, "try: check the path", [&] { io::open_array(folder / "missing.npy"); });
  expect_error(Code::file, "try: check the path", [&] { io::open_array(folder / "nowhere/logits.npy"); });
  write_contents(folder / "logits.npy", "text"), write_contents(folder / "labels.npy", "text");
  expect_error(Code::file, "try: '" + folder / "logits.npy" + "'", [&] { io::open_array(folder / "logit.npy"); });
  expect_error(Code::file, "try: write the data to a file first", [] { io::open_array("-"); });
  expect_error(Code::file, "a directory", [&] { io::open_array(folder.path()); });
  expect_error(Code::file, "try: name a file in it", [&] { io::open_array(folder.path()); });
  expect_error(Code::file, "a pipe or device", [&] { io::open_array(folder / "pipe"); });
  expect_error(Code::file, "a pipe or device", [] { io::open_array("/dev/zero"); });
}

TEST(InputFile, NamesThePathInEveryRefusal) {
  const TemporaryFolder folder;
  write_contents(folder / "x.npy", "text");
  expect_error(Code::file, folder / "x.npy", [&] { io::open_array(folder / "x.npy"); });
}

TEST(InputFile, NoticesChanges) {
  const TemporaryFolder folder;
  write_contents(folder / "x", "0123456789");
  const io::InputFile file(folder / "x");
  file.check_unchanged();
  char text[4];
  file.read(3, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(std::string(text, 4), "3456");
  std::filesystem::resize_file(folder / "x", 5);
  expect_error(Code::file, "became shorter", [&] { file.read(3, std::as_writable_bytes(std::span(text))); });
  expect_error(Code::file, "was written to", [&] { file.check_unchanged(); });
  expect_error(Code::file, "which has 10 bytes", [&] { file.read(7, std::as_writable_bytes(std::span(text))); });
}

TEST(InputFile, IsTheSameHoweverItIsSpelt) {
  const TemporaryFolder folder;
  write_contents(folder / "x", "text");
  std::filesystem::create_symlink("x", folder / "link");
  const io::InputFile file(folder / "x"), link(folder / "link");
  EXPECT_EQ(file.id().inode, link.id().inode);
  EXPECT_EQ(file.id().device, link.id().device);
}

TEST(Transfer, ContinuesAfterShortReadsAndInterruptions) {
  int calls = 0;
  const auto result = io::transfer(10, [&](std::size_t done, std::size_t left) -> ssize_t {
    EXPECT_EQ(done + left, 10u);
    if (++calls % 2 == 0) {
      errno = EINTR;
      return -1;
    }
    return left < 3 ? static_cast<ssize_t>(left) : 3;
  });
  EXPECT_EQ(result.done, 10u);
  EXPECT_EQ(result.error, 0);
  EXPECT_EQ(calls, 7);
}

TEST(Transfer, StopsAtTheEndAndAtErrors) {
  const auto ended = io::transfer(10, [](std::size_t done, std::size_t) -> ssize_t { return done == 0 ? 4 : 0; });
  EXPECT_EQ(ended.done, 4u);
  EXPECT_EQ(ended.error, 0);
  const auto failed = io::transfer(10, [](std::size_t done, std::size_t) -> ssize_t {
    errno = EIO;
    return done == 0 ? 4 : -1;
  });
  EXPECT_EQ(failed.done, 4u);
  EXPECT_EQ(failed.error, EIO);
}

}  // namespace
