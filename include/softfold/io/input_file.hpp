// A file that is only read, by offset. Never mapped: mapped pages count as resident memory.
#pragma once

#include "softfold/error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace softfold {
inline namespace v0 {
namespace io {

/// Which file it is, however it is spelt: two paths of one file give equal device and inode.
struct FileId {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::string path;  ///< as the caller spelt it, for messages
};

/// An open regular file. Reading is thread-safe; moving and destroying are not.
class SOFTFOLD_API InputFile {
 public:
  /// Throws Error: Code::file (missing, a directory, not a regular file), Code::io (not readable).
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return id_.path; }
  const FileId& id() const { return id_; }
  std::uint64_t size() const { return size_; }  ///< bytes, when it was opened

  /// Fills `into` with the bytes from `offset` on.
  /// Throws Error: Code::file (the file ends before that), Code::io.
  void read(std::uint64_t offset, std::span<std::byte> into) const;

  /// Throws Error{Code::file} if the file was written to since it was opened. A caller that reads it twice asks this
  /// after the second pass, before committing a result.
  void check_unchanged() const;

 private:
  int fd_ = -1;
  std::uint64_t size_ = 0;
  std::int64_t modified_s_ = 0, modified_ns_ = 0;
  FileId id_;
};

}  // namespace io
}  // namespace v0
}  // namespace softfold
