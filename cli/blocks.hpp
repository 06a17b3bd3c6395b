// An array in a file, cut into blocks that fit into memory: where to cut, moving a block between file and memory, and
// reading the next one while the last is computed and written.
#pragma once

#include "softfold/io/array_file.hpp"
#include "softfold/io/array_output.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace softfold::cli {

/// An array around the axis that is folded: (outer, n, inner), C-contiguous.
struct Geometry {
  std::int64_t outer = 1, n = 1, inner = 1;

  std::int64_t rows() const { return outer * inner; }
  std::int64_t elements() const { return outer * n * inner; }
};
/// Throws Error{Code::shape} if the shape has no such axis.
Geometry geometry_of(std::span<const std::int64_t> shape, int axis);

/// A box of such an array: [outer, outer + outers) and so on.
struct Box {
  std::int64_t outer, outers, column, columns, inner, inners;

  std::int64_t elements() const { return outers * columns * inners; }
};

/// How an array is cut. Not streamed: every box has whole rows. Streamed: rows are too long for that; a box is a piece
/// of one row of an array whose last axis is folded.
struct Schedule {
  bool streamed = false;
  std::int64_t outers = 1, columns = 1, inners = 1;  ///< of a box, the last ones smaller
  int slots = 1;                                     ///< boxes in memory at once: 2 overlaps reading, work and writing
};

/// What a process may take, and the threads that take their part of it.
struct Room {
  std::uint64_t memory;  ///< bytes, as the user gave them; what the process itself needs is left free
  int threads;
};
/// What a schedule has to fit into its room.
struct Needs {
  std::size_t in_bytes, out_bytes;  ///< of an element that is read, and of the result held for it
  Room room;
  std::uint64_t beside = 0;  ///< bytes that the work takes beside its blocks, however these are cut
};
/// Bytes that go with a row of n elements, as bytes of each element, rounded up.
constexpr std::size_t bytes_beside(std::uint64_t bytes, std::int64_t n) {
  const auto elements = static_cast<std::uint64_t>(n < 1 ? 1 : n);
  return static_cast<std::size_t>((bytes + elements - 1) / elements);
}
/// Throws Error{Code::option} if not even one row of an array with inner > 1 fits; the fix says how much would.
Schedule make_schedule(const Geometry& geometry, const Needs& needs);
/// The same, never streamed: what also refuses a row of the last axis that does not fit.
Schedule make_row_schedule(const Geometry& geometry, const Needs& needs);

/// Every box of the array, in the file's order; rows of no elements have boxes of no columns. None is made before it
/// is asked for: a header of a few bytes may speak of 2^60 rows.
class Boxes {
 public:
  Boxes(const Geometry& geometry, const Schedule& schedule);
  bool empty() const { return size() == 0; }
  std::size_t size() const { return static_cast<std::size_t>(outers_ * inners_ * pieces_); }
  Box operator[](std::size_t index) const;

 private:
  Geometry g_;
  Schedule s_;
  std::int64_t outers_, inners_, pieces_;  ///< how many there are
};
/// The columns [begin, end), cut where (offset + column) is a multiple of `step`; no columns are one empty piece.
std::vector<std::pair<std::int64_t, std::int64_t>> column_pieces(std::int64_t begin, std::int64_t end,
                                                                 std::int64_t offset, std::int64_t step);

/// Fills `into` with the box's elements, contiguous in the order (outer, column, inner).
void read_box(const io::ArrayFile& file, const Geometry& geometry, const Box& box, std::span<std::byte> into);
void write_box(io::ArrayOutput& file, const Geometry& geometry, const Box& box, std::span<const std::byte> from);

/// Memory that is not touched before it is used, aligned for SIMD and to pages.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes);
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
};

/// `count` buffers of one size, used in turn.
class Slots {
 public:
  Slots() = default;
  Slots(int count, std::size_t bytes) {
    for (int i = 0; i < count; ++i) buffers_.emplace_back(bytes);
  }
  std::byte* operator[](std::int64_t step) const {
    return buffers_[static_cast<std::size_t>(step) % buffers_.size()].data();
  }

 private:
  std::vector<Buffer> buffers_;
};

/// Steps 0 .. count-1, each read(i), compute(i), write(i). With two slots read(i + 1) runs beside compute(i) and
/// write(i - 1), so that step i may use slot i % 2; with one slot everything runs in turn. Stops at an interrupt.
struct Steps {
  std::function<void(std::int64_t)> read, compute, write;
};
void run_steps(std::int64_t count, int slots, const Steps& steps);

}  // namespace softfold::cli
