// Whatever stands in a partial file, it is read in blocks or refused with an Error; what is read is written back byte
// for byte, and folds on without harm.
#include "softfold/error.hpp"
#include "softfold/io/partial_file.hpp"

#include <sys/mman.h>
#include <unistd.h>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

namespace {

using namespace softfold;

void require(bool truth) {
  if (!truth) std::abort();
}

/// A file in memory, with a path to open it by.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes) : fd_(::memfd_create("partial", 0)) {
    require(::write(fd_, bytes.data(), bytes.size()) == std::ssize(bytes));
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

/// Where what was read is written back: in memory where the system has such a folder, as it is made durable each time.
class Folder {
 public:
  Folder() {
    std::string name =
        std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path().string();
    name += "/softfold-fuzz-XXXXXX";
    require(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file() const { return path_ / "again.part"; }

 private:
  std::filesystem::path path_;
};

std::vector<std::byte> bytes_of_file(const std::string& path) {
  const io::InputFile file(path);
  std::vector<std::byte> bytes(file.size());
  file.read(0, bytes);
  return bytes;
}

/// Reads all rows, `block` at a time, and writes them back.
void copy(io::PartialReader reader, const io::InputFile& file, std::int64_t block, const std::string& to) {
  const io::PartialSpan& span = reader.span();
  require(span.rows >= 1 && span.offset >= 0 && span.length >= 0);
  io::PartialOutput output(to, span, {});
  while (reader.left() > 0) {
    io::PartialRows rows = reader.read(file, block);
    std::visit(
        [](const auto& some) {
          for (const auto& row : some) require(!(row.state().m != row.state().m));
        },
        rows);
    output.write(rows);
    try {
      io::order_of_join(std::vector<io::NamedSpan>{{"a", span}, {"b", span}});
      const io::PartialRows same = rows;
      io::join_rows(rows, same);
    } catch (const Error&) {
    }
  }
  output.commit();
}

void check(std::span<const std::byte> bytes, std::int64_t block) {
  static const Folder folder;
  const MemoryFile memory(bytes);
  const io::InputFile file(memory.path());
  std::optional<io::PartialReader> reader;
  try {
    reader.emplace(file);
    for (io::PartialReader all = *reader; all.left() > 0;) all.check(file, block);
  } catch (const Error&) {
    return;
  }
  copy(*reader, file, block, folder.file());
  const auto again = bytes_of_file(folder.file());
  require(again.size() == bytes.size() && std::memcmp(again.data(), bytes.data(), bytes.size()) == 0);
}

/// The input with true checksums behind the head and behind each row, so that what lies behind them is reached.
std::vector<std::byte> with_true_checksums(std::vector<std::byte> bytes) {
  constexpr std::size_t head = 64, sum = 8;
  if (bytes.size() < head + 2 * sum) return bytes;
  std::size_t rows = 0;
  std::memcpy(&rows, bytes.data() + 48, sizeof rows);
  const std::size_t behind_head = bytes.size() - head - sum;
  if (rows == 0 || behind_head / rows < sum || behind_head % rows != 0) rows = 1;  // a lie: one sum at the end
  std::uint64_t hash = 0xCBF29CE484222325U;
  std::size_t at = 0;
  for (std::size_t end = head; end < bytes.size(); end += behind_head / rows) {
    for (; at < end; ++at) hash = (hash ^ std::to_integer<std::uint64_t>(bytes[at])) * 0x100000001B3U;
    std::memcpy(bytes.data() + end, &hash, sum);
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* const first = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> file(first, first + size);
  const auto block = static_cast<std::int64_t>(1 + size % 3);
  check(file, block);
  check(with_true_checksums(file), block);
  return 0;
}
