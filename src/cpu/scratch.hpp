// Memory that a thread keeps between calls, so that running an operation allocates nothing once it has run before.
#pragma once

#include "softfold/config.hpp"

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// At least `count` Ts aligned to 64 bytes, this thread's own until it asks again with the same Tag.
template <class Tag, class T>
T* scratch(std::size_t count) {
  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;
    ~Block() { std::free(data); }
  };
  thread_local Block block;
  const std::size_t bytes = (count * sizeof(T) + 4095) / 4096 * 4096;
  if (bytes > block.bytes) {
    std::free(block.data);
    block.bytes = 0;
    block.data = std::aligned_alloc(64, bytes);
    if (block.data == nullptr) throw std::bad_alloc();
    block.bytes = bytes;
  }
  return static_cast<T*>(block.data);
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
