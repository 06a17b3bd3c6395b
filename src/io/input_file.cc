#include "softfold/io/input_file.hpp"

#include "detail.hpp"
#include "softfold/io/nearest.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace softfold {
inline namespace v0 {
namespace io {

namespace {

constexpr const char *kRegular = "a regular file: it is read by offset, more than once",
                     *kToFile = "write the data to a file first";

/// The file beside a missing one whose name is nearest to its, or "check the path".
std::string fix_of_missing(const std::string& path) {
  constexpr int kMost = 10000;  // names that are looked at
  const std::filesystem::path missing(path);
  const auto folder = missing.parent_path();
  std::error_code error;
  std::vector<std::string> names;
  auto entry = std::filesystem::directory_iterator(folder.empty() ? "." : folder, error);
  for (; !error && entry != std::filesystem::end(entry) && names.size() < kMost; entry.increment(error))
    if (std::error_code ignored; entry->is_regular_file(ignored)) names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const std::string_view near = nearest(missing.filename().string(), candidates);
  return near.empty() ? "check the path" : in_quotes((folder / near).string());
}

}  // namespace

InputFile::InputFile(std::string path) {
  // O_NONBLOCK: opening a named pipe must be refused below, not wait for its writer.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    const int error = errno;
    const bool missing = error == ENOENT || error == ENOTDIR;
    if (missing && path == "-") throw Error(Code::file, "'-', standard input", kRegular, kToFile);
    throw Error(missing ? Code::file : Code::io, in_quotes(path) + ": " + reason(error), "a file that can be read",
                missing ? fix_of_missing(path) : fix_of(error, "check the path and its permissions"));
  }
  struct stat status {};
  const int failed = ::fstat(fd_, &status) == 0 ? 0 : errno;
  if (failed != 0 || !S_ISREG(status.st_mode)) {
    ::close(std::exchange(fd_, -1));
    if (failed != 0) throw Error(Code::io, in_quotes(path) + ": " + reason(failed), "a file that can be read");
    const bool folder = S_ISDIR(status.st_mode);
    throw Error(Code::file, in_quotes(path) + ", " + (folder ? "a directory" : "a pipe or device"), kRegular,
                folder ? "name a file in it" : kToFile);
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
  modified_s_ = status.st_mtim.tv_sec;
  modified_ns_ = status.st_mtim.tv_nsec;
  id_ = {status.st_dev, status.st_ino, std::move(path)};
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      modified_s_(other.modified_s_),
      modified_ns_(other.modified_ns_),
      id_(std::move(other.id_)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(modified_s_, other.modified_s_);
  std::swap(modified_ns_, other.modified_ns_);
  std::swap(id_, other.id_);
  return *this;
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset > size_ || into.size() > size_ - offset)
    throw Error(Code::file, in_quotes(path()) + ", which has " + std::to_string(size_) + " bytes",
                "at least " + std::to_string(into.size()) + " bytes from byte " + std::to_string(offset) + " on");
  const auto result = transfer(into.size(), [&](std::size_t done, std::size_t left) {
    return ::pread(fd_, into.data() + done, left, static_cast<off_t>(offset + done));
  });
  if (result.error != 0)
    throw Error(Code::io, in_quotes(path()) + ": " + reason(result.error), "a file that can be read to its end");
  if (result.done < into.size())
    throw Error(Code::file, in_quotes(path()) + ", which became shorter while it was read",
                "a file that stays as it is until the work is done", "copy it first");
}

void InputFile::check_unchanged() const {
  struct stat now {};
  if (::fstat(fd_, &now) != 0)
    throw Error(Code::io, in_quotes(path()) + ": " + reason(errno), "a file that can be read");
  if (static_cast<std::uint64_t>(now.st_size) == size_ && now.st_mtim.tv_sec == modified_s_ &&
      now.st_mtim.tv_nsec == modified_ns_)
    return;
  throw Error(Code::file, in_quotes(path()) + ", which was written to while it was read",
              "a file that stays as it is until the work is done", "copy it first");
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
