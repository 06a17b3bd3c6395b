// A file that appears whole or not at all: written beside its destination, renamed over it on commit.
#pragma once

#include "softfold/io/input_file.hpp"

#include <atomic>

namespace softfold {
inline namespace v0 {
namespace io {

/// The file is written as `.softfold-<host>-<pid>-<random>.tmp` in the destination's folder. Its full size is reserved
/// first, so a full disk is refused before any work (where the file system cannot reserve, its free space is
/// compared). Until commit() the destination, if there is one, is untouched, whatever happens to the process; a
/// killed process leaves its temporary, which the next OutputFile in that folder removes. A symbolic link as the
/// destination is followed.
class SOFTFOLD_API OutputFile {
 public:
  /// `bytes`: the size of the finished file. `inputs`: files that must not be the destination.
  /// Throws Error: Code::option (the destination is a directory, a device, a dangling link, or one of `inputs`),
  /// Code::io (no such folder, no permission, no space).
  OutputFile(const std::string& destination, std::uint64_t bytes, std::span<const FileId> inputs = {});
  /// Removes the temporary if there was no commit.
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(OutputFile&&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return destination_; }  ///< the destination, links resolved
  std::uint64_t size() const { return bytes_; }             ///< bytes of the finished file

  /// Writes at `offset` bytes from the start. Thread-safe; blocks may come in any order.
  /// Throws Error: Code::shape (beyond the size), Code::io.
  void write(std::uint64_t offset, std::span<const std::byte> from);

  /// Makes the file durable (fsync), renames it to the destination and makes that durable too. Once only.
  /// Throws Error: Code::internal (fewer bytes written than the size, or a second commit), Code::io.
  void commit();

 private:
  void reserve();
  void discard() noexcept;

  std::string destination_, folder_, temporary_;
  std::uint64_t bytes_ = 0;
  std::atomic<std::uint64_t> written_{0};
  int fd_ = -1;
};

}  // namespace io
}  // namespace v0
}  // namespace softfold
