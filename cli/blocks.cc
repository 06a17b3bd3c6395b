#include "blocks.hpp"

#include "interrupt.hpp"

#include "softfold/error.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <future>
#include <new>
#include <system_error>

namespace softfold::cli {
namespace {

/// What the process needs beside its blocks: code, libraries, headers, and the stacks of the first threads.
constexpr std::uint64_t kProcessBytes = std::uint64_t{16} << 20;
constexpr int kFirstThreads = 64;
/// Of every further thread: its stack as far as it is used, what its kernels keep, and what the libraries keep for each
/// thread: with the CUDA runtime 20 KiB, without it 9.
constexpr std::uint64_t kThreadBytes = std::uint64_t{40} << 10;
/// Larger blocks gain nothing, and progress, interrupts and the overlap of reading and writing want small ones.
constexpr std::uint64_t kBlockBytes = std::uint64_t{32} << 20;
/// Across an axis that is not the last, one read takes at least this much of each row of the file.
constexpr std::int64_t kNarrowestRead = 64;

template <class Move>
void for_each_run(const Geometry& g, const Box& b, std::size_t element, Move move) {
  // The longest contiguous runs: a whole box, one outer slice, or one line of the inner axis.
  const bool whole_inner = b.inners == g.inner;
  const bool whole_columns = whole_inner && b.columns == g.n;
  const std::int64_t outers = whole_columns ? 1 : b.outers, lines = whole_inner ? 1 : b.columns;
  const auto run = static_cast<std::size_t>(b.elements() / std::max<std::int64_t>(1, outers * lines)) * element;
  if (b.elements() == 0) return;
  std::size_t done = 0;
  for (std::int64_t o = 0; o < outers; ++o) {
    for (std::int64_t c = 0; c < lines; ++c, done += run) {
      const std::int64_t first = ((b.outer + o) * g.n + b.column + c) * g.inner + b.inner;
      move(static_cast<std::uint64_t>(first) * element, done, run);
    }
  }
}

/// Step i on a thread of its own; where the system gives none, when its future is asked for.
std::future<void> begin(const std::function<void(std::int64_t)>& step, std::int64_t i) {
  try {
    return std::async(std::launch::async, step, i);
  } catch (const std::system_error&) {
    return std::async(std::launch::deferred, step, i);
  }
}

/// Without the blocks.
std::uint64_t process_bytes(const Needs& needs) {
  return kProcessBytes + static_cast<std::uint64_t>(std::max(0, needs.room.threads - kFirstThreads)) * kThreadBytes +
         needs.beside;
}

/// The least that will do where no block is smaller than `block` bytes.
std::uint64_t least_memory(const Needs& needs, std::uint64_t block) {
  return std::max(2 * kProcessBytes, process_bytes(needs) + std::max(block, kProcessBytes / 4));
}

std::uint64_t whole_mebibytes(std::uint64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; }

/// As one writes it: 1M, not 1024K.
std::string memory_text(std::uint64_t bytes) {
  const char* unit = "";
  for (const char* next : {"K", "M", "G", "T"}) {
    if (bytes % 1024 != 0 || bytes == 0) break;
    bytes /= 1024;
    unit = next;
  }
  return fmt::format("{}{}", bytes, unit);
}

/// Of --memory and what else there is to change.
[[noreturn]] void refuse_memory(const Needs& needs, std::uint64_t least, const std::string& why,
                                const std::string& otherwise = {}) {
  const bool crowded = needs.room.threads > 1 && process_bytes(needs) - kProcessBytes >= 1 << 20;
  throw Error(
      Code::option,
      fmt::format("--memory {}{}", memory_text(needs.room.memory),
                  crowded ? fmt::format(" for {} threads", needs.room.threads) : ""),
      fmt::format("at least {}M{}", whole_mebibytes(least), why),
      fmt::format("--memory {}M{}{}", whole_mebibytes(least), crowded ? ", or fewer --threads" : "", otherwise));
}

}  // namespace

Geometry geometry_of(std::span<const std::int64_t> shape, int axis) {
  const int rank = static_cast<int>(shape.size());
  if (axis < -rank || axis >= rank)
    throw Error(Code::shape, fmt::format("axis {} of an array of {} axes", axis, rank),
                rank == 0 ? "an array with at least one axis" : fmt::format("{} .. {}", -rank, rank - 1),
                rank == 0 ? "reshape it to [1]" : fmt::format("--axis {}", axis < 0 ? -rank : -1));
  if (axis < 0) axis += rank;
  Geometry g;
  for (int i = 0; i < rank; ++i) {
    const std::int64_t size = shape[static_cast<std::size_t>(i)];
    (i < axis ? g.outer : i == axis ? g.n : g.inner) *= size;
  }
  return g;
}

Schedule make_schedule(const Geometry& g, const Needs& needs) {
  const auto element = static_cast<std::int64_t>(needs.in_bytes + needs.out_bytes);
  const std::int64_t n = std::max<std::int64_t>(1, g.n);  // rows of no elements have results
  const std::int64_t narrowest =
      std::min(g.inner, std::max<std::int64_t>(1, kNarrowestRead / static_cast<std::int64_t>(needs.in_bytes)));
  const auto narrow = static_cast<std::uint64_t>(narrowest * n) * static_cast<std::uint64_t>(element);
  const std::uint64_t memory = needs.room.memory, least = least_memory(needs, g.inner == 1 ? 0 : narrow);
  if (memory < least_memory(needs, 0)) refuse_memory(needs, least, "");
  const auto available =
      static_cast<std::int64_t>((memory - process_bytes(needs)) / static_cast<std::uint64_t>(element));
  const auto preferred = std::min(available / 2, static_cast<std::int64_t>(kBlockBytes) / element);
  const std::int64_t slice = std::max<std::int64_t>(1, n * g.inner);
  if (slice <= preferred)
    return {false, std::clamp<std::int64_t>(preferred / slice, 1, std::max<std::int64_t>(1, g.outer)), g.n, g.inner, 2};
  const int slots = slice <= available / 2 ? 2 : 1;
  if (slice <= available) return {false, 1, g.n, g.inner, slots};
  if (g.inner == 1) {
    const auto columns = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(preferred)));
    return {true, 1, columns, 1, 2};
  }
  const std::int64_t inners = available / 2 / n;
  if (inners >= narrowest) return {false, 1, g.n, inners, 2};
  if (available / n >= narrowest) return {false, 1, g.n, available / n, 1};
  refuse_memory(needs, least,
                fmt::format(": rows of {} elements that lie {} elements apart are not streamed", n, g.inner),
                ", or transpose the array so that the folded axis is its last");
}

Schedule make_row_schedule(const Geometry& g, const Needs& needs) {
  const std::uint64_t least = least_memory(needs, static_cast<std::uint64_t>(g.n) * (needs.in_bytes + needs.out_bytes));
  if (needs.room.memory < least)
    refuse_memory(needs, least,
                  least > least_memory(needs, 0) ? fmt::format(": room for a row of {} elements", g.n) : "");
  return make_schedule(g, needs);
}

std::vector<std::pair<std::int64_t, std::int64_t>> column_pieces(std::int64_t begin, std::int64_t end,
                                                                 std::int64_t offset, std::int64_t step) {
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
  if (begin == end) pieces.emplace_back(begin, end);
  while (begin < end) {
    const std::int64_t next = std::min(end, begin + step - (offset + begin) % step);
    pieces.emplace_back(begin, next);
    begin = next;
  }
  return pieces;
}

Boxes::Boxes(const Geometry& geometry, const Schedule& schedule) : g_(geometry), s_(schedule) {
  const auto cut = [](std::int64_t size, std::int64_t step) { return size == 0 ? 0 : (size - 1) / step + 1; };
  outers_ = cut(g_.outer, s_.outers);
  inners_ = cut(g_.inner, s_.inners);
  pieces_ = std::max<std::int64_t>(1, cut(g_.n, s_.columns));
}

Box Boxes::operator[](std::size_t index) const {
  const auto at = static_cast<std::int64_t>(index);
  const std::int64_t outer = at / pieces_ / inners_ * s_.outers, inner = at / pieces_ % inners_ * s_.inners,
                     column = at % pieces_ * s_.columns;
  return {outer, std::min(s_.outers, g_.outer - outer), column, std::min(s_.columns, g_.n - column),
          inner, std::min(s_.inners, g_.inner - inner)};
}

void read_box(const io::ArrayFile& file, const Geometry& g, const Box& box, std::span<std::byte> into) {
  for_each_run(g, box, size_of(file.dtype()), [&](std::uint64_t at, std::size_t done, std::size_t bytes) {
    file.read(at, into.subspan(done, bytes));
  });
}

void write_box(io::ArrayOutput& file, const Geometry& g, const Box& box, std::span<const std::byte> from) {
  for_each_run(g, box, size_of(file.array().dtype), [&](std::uint64_t at, std::size_t done, std::size_t bytes) {
    file.write(at, from.subspan(done, bytes));
  });
}

Buffer::Buffer(std::size_t bytes) {
  constexpr std::size_t page = 4096;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(page, (std::max(bytes, page) + page - 1) / page * page)));
  if (!data_) throw std::bad_alloc();
}

void Buffer::Free::operator()(std::byte* p) const { std::free(p); }

void run_steps(std::int64_t count, int slots, const Steps& steps) {
  if (slots < 2 || count < 2) {
    for (std::int64_t i = 0; i < count; ++i) {
      check_interrupt();
      steps.read(i);
      steps.compute(i);
      steps.write(i);
    }
    return;
  }
  // A future's destructor waits, so whatever is thrown here, nothing runs on.
  std::future<void> reading = begin(steps.read, 0), writing;
  for (std::int64_t i = 0; i < count; ++i) {
    check_interrupt();
    reading.get();
    if (i + 1 < count) reading = begin(steps.read, i + 1);
    steps.compute(i);
    if (writing.valid()) writing.get();
    writing = begin(steps.write, i);
  }
  writing.get();
}

}  // namespace softfold::cli
