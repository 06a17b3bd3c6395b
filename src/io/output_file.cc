#include "softfold/io/output_file.hpp"

#include "detail.hpp"
#include "temporary.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <climits>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

constexpr const char* kElsewhere = "write to another folder";

[[noreturn]] void refuse_destination(const std::string& path, const std::string& what, const std::string& fix) {
  throw Error(Code::option, "the output " + in_quotes(path) + ", " + what, "a new file or a regular file to replace",
              fix);
}

[[noreturn]] void fail(const std::string& path, int error, const char* fix) {
  throw Error(Code::io, "the output " + in_quotes(path) + ": " + reason(error), "an output that can be written",
              fix_of(error, fix));
}

[[noreturn]] void refuse_size(const std::string& path, std::uint64_t bytes, const std::string& allowed,
                              const char* fix) {
  throw Error(Code::io, "the output " + in_quotes(path) + ", which needs " + std::to_string(bytes) + " bytes", allowed,
              fix);
}

/// What stands at `path`, links not followed; nothing if nothing does.
std::optional<struct stat> status_of(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return status;
  if (errno == ENOENT) return std::nullopt;
  fail(path, errno, kElsewhere);
}

/// Follows a symbolic link: the file it names is the one to replace.
std::string resolved(const std::string& path) {
  const auto status = status_of(path);
  if (!status || !S_ISLNK(status->st_mode)) return path;
  const std::unique_ptr<char, decltype(&std::free)> target(::realpath(path.c_str(), nullptr), &std::free);
  if (!target) refuse_destination(path, "a link to nothing", "name the file itself");
  return target.get();
}

void refuse_unfit(const std::string& path, const struct stat& status, std::span<const FileId> inputs) {
  if (S_ISDIR(status.st_mode)) refuse_destination(path, "a directory", "name a file in it");
  if (!S_ISREG(status.st_mode)) refuse_destination(path, "a pipe or device", "write to a file");
  for (const FileId& input : inputs)
    if (status.st_dev == input.device && status.st_ino == input.inode)
      refuse_destination(path, "the same file as the input " + in_quotes(input.path), "write to another file");
  if (::access(path.c_str(), W_OK) != 0) fail(path, errno, "write to another file");
}

}  // namespace

OutputFile::OutputFile(const std::string& destination, std::uint64_t bytes, std::span<const FileId> inputs)
    : bytes_(bytes) {
  if (destination.empty()) refuse_destination(destination, "no file name", "a file's name");
  if (destination.ends_with('/')) refuse_destination(destination, "no file name", "name a file in it");
  destination_ = resolved(destination);
  const std::size_t slash = destination_.rfind('/');
  folder_ = slash == std::string::npos ? "." : destination_.substr(0, slash + 1);
  const auto existing = status_of(destination_);
  if (existing) refuse_unfit(destination_, *existing, inputs);

  remove_stale_temporaries(folder_);
  // A file that is replaced keeps its permissions; the temporary never has wider ones.
  auto [temporary, fd] = create_temporary(folder_, existing ? existing->st_mode & 0777 : 0666);
  if (fd < 0) fail(destination_, errno, errno == ENOENT ? "create the folder first" : kElsewhere);
  temporary_ = std::move(temporary);
  fd_ = fd;
  try {
    if (existing && ::fchmod(fd_, existing->st_mode & 0777) != 0) fail(destination_, errno, kElsewhere);
    reserve();
  } catch (...) {
    discard();  // the destructor does not run for an object that was never made
    throw;
  }
}

OutputFile::~OutputFile() { discard(); }

OutputFile::OutputFile(OutputFile&& other) noexcept
    : destination_(std::move(other.destination_)),
      folder_(std::move(other.folder_)),
      temporary_(std::move(other.temporary_)),
      bytes_(other.bytes_),
      written_(other.written_.load()),
      fd_(std::exchange(other.fd_, -1)) {}

void OutputFile::discard() noexcept {
  if (fd_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(std::exchange(fd_, -1));
}

void OutputFile::reserve() {
  // Beyond this limit the kernel would send SIGXFSZ, which ends the process.
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes_ > limit.rlim_cur)
    refuse_size(destination_, bytes_, "at most " + std::to_string(limit.rlim_cur) + " bytes a file",
                "raise the limit on file sizes: ulimit -f");
  if (bytes_ > LLONG_MAX) fail(destination_, EFBIG, "write a smaller array");
  if (bytes_ == 0) return;
  int failed = 0;
  do {
    failed = ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes_)) == 0 ? 0 : errno;
  } while (failed == EINTR);
  if (failed == 0) return;
  if (failed != EOPNOTSUPP && failed != ENOSYS && failed != ENOSPC) fail(destination_, failed, kElsewhere);
  struct statvfs disk {};
  const bool known = ::fstatvfs(fd_, &disk) == 0 && disk.f_blocks > 0;
  const std::uint64_t available = known ? std::uint64_t{disk.f_bavail} * disk.f_frsize : UINT64_MAX;
  if (failed == ENOSPC || bytes_ > available)
    refuse_size(destination_, bytes_, "what fits: " + (known ? std::to_string(available) + " bytes are free" : "less"),
                "free space, or write elsewhere");
  // This file system reserves nothing and has the space now; a write fails if that changes.
  if (::ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) fail(destination_, errno, kElsewhere);
}

void OutputFile::write(std::uint64_t offset, std::span<const std::byte> from) {
  if (offset > bytes_ || from.size() > bytes_ - offset)
    throw Error(Code::shape, std::to_string(from.size()) + " bytes written at byte " + std::to_string(offset),
                "bytes of the output, which has " + std::to_string(bytes_));
  const auto result = transfer(from.size(), [&](std::size_t done, std::size_t left) {
    return ::pwrite(fd_, from.data() + done, left, static_cast<off_t>(offset + done));
  });
  if (result.done < from.size())
    fail(destination_, result.error != 0 ? result.error : ENOSPC, "free space, or write elsewhere");
  written_.fetch_add(from.size(), std::memory_order_relaxed);
}

void OutputFile::commit() {
  if (fd_ < 0) throw Error(Code::internal, "a second commit of " + in_quotes(destination_), "one commit");
  if (written_.load() < bytes_)
    throw Error(Code::internal,
                "a commit of " + in_quotes(destination_) + " after " + std::to_string(written_.load()) + " bytes",
                "a commit once all " + std::to_string(bytes_) + " bytes are written");
  if (::fsync(fd_) != 0) fail(destination_, errno, kElsewhere);
  if (::rename(temporary_.c_str(), destination_.c_str()) != 0) fail(destination_, errno, kElsewhere);
  ::close(std::exchange(fd_, -1));
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = folder >= 0 && ::fsync(folder) == 0;
  const int failed = synced ? 0 : errno;
  if (folder >= 0) ::close(folder);
  // A folder that may not be read, or a file system that does not sync folders: the file stands all the same.
  if (!synced && failed != EINVAL && failed != EACCES) fail(destination_, failed, kElsewhere);
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
