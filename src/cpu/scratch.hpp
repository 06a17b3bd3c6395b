// Memory that a thread keeps between calls, so that running an operation allocates nothing once it has run before.
#pragma once

#include "softfold/lift/guess.hpp"

#include <array>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

namespace softfold {
inline namespace v0 {
namespace cpu {

class Scratch {
  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;
  };

 public:
  /// Each use has a block of its own.
  enum Use : std::size_t {
    chunk_terms,
    row_terms,
    reduced_chunks,
    nodes,
    blocks,
    columns,
    attention,
    attention_state,
    block_sums,
    block_best,
    best,
    row_values,
    weights,
    row_weights,
    sampled,
    sampled_raw,
    sampled_counts,
    uses
  };

  ~Scratch() {
    for (Block& b : blocks_) std::free(b.data);
  }

  /// At least `count` Ts aligned to 64 bytes, until this thread asks for the same use again.
  template <class T>
  T* get(Use use, std::size_t count) {
    Block& b = blocks_[use];
    if (const std::size_t bytes = count * sizeof(T); bytes > b.bytes) grow(b, bytes);
    return static_cast<T*>(b.data);
  }

  /// A block that is taken out of the scratch while it is held: for memory that is used across an Executor's run(),
  /// where an executor that steals work may begin another operation on this very thread.
  template <class T>
  class Held {
   public:
    Held(Scratch& scratch, Use use, std::size_t count) : home_(scratch.blocks_[use]), block_(std::exchange(home_, {})) {
      if (const std::size_t bytes = count * sizeof(T); bytes > block_.bytes) grow(block_, bytes);
    }
    /// The larger of two stays: what came in between may have left one.
    ~Held() {
      if (block_.bytes > home_.bytes) std::swap(block_, home_);
      std::free(block_.data);
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    T* data() const { return static_cast<T*>(block_.data); }

   private:
    Block& home_;
    Block block_;
  };

  /// What the thread's last chunks were like: consecutive calls often see similar rows.
  template <class T>
  lift::Guess<T>& guess() {
    if constexpr (sizeof(T) == 4) {
      return guess_float_;
    } else {
      return guess_double_;
    }
  }

 private:
  static void grow(Block& b, std::size_t bytes) {
    constexpr std::size_t page = 4096;
    bytes = (bytes + page - 1) / page * page;
    std::free(b.data);
    b.bytes = 0;
    b.data = std::aligned_alloc(page, bytes);
    if (b.data == nullptr) throw std::bad_alloc();
    b.bytes = bytes;
  }

  std::array<Block, uses> blocks_{};
  lift::Guess<float> guess_float_;
  lift::Guess<double> guess_double_;
};

/// The calling thread's.
Scratch& thread_scratch();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
