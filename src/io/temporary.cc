#include "temporary.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string_view>

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

constexpr std::string_view kSuffix = ".tmp";

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

/// The host is in the name because some shared file systems keep locks on each host alone.
std::string prefix() {
  char host[HOST_NAME_MAX + 1] = {};
  ::gethostname(host, HOST_NAME_MAX);
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a: a name of fixed length and plain letters
  for (const char c : std::string_view(host)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return ".softfold-" + hex(hash) + "-";
}

std::string random_name() {
  std::random_device device;
  const std::uint64_t high = device();
  return prefix() + std::to_string(::getpid()) + "-" + hex(high << 32 | device()) + std::string(kSuffix);
}

/// True unless another open file holds the lock. Where there are no locks, nobody removes anything.
bool lock(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

}  // namespace

Temporary create_temporary(const std::string& folder, unsigned mode) {
  for (;;) {
    Temporary made{folder + "/" + random_name()};
    made.fd = ::open(made.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, static_cast<mode_t>(mode));
    if (made.fd < 0 && errno == EEXIST) continue;
    if (made.fd < 0) return made;
    // Between open and lock another process may have taken the file for abandoned: then it is unlinked, try again.
    struct stat status {};
    if (lock(made.fd) && ::fstat(made.fd, &status) == 0 && status.st_nlink > 0) return made;
    ::close(made.fd);
  }
}

void remove_stale_temporaries(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), &::closedir);
  if (!listing) return;
  const std::string ours = prefix();
  while (const dirent* const entry = ::readdir(listing.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(ours) || !name.ends_with(kSuffix)) continue;
    const int in = ::dirfd(listing.get());
    const int fd = ::openat(in, entry->d_name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlinkat(in, entry->d_name, 0);
    ::close(fd);
  }
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
