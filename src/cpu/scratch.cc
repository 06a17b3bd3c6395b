#include "cpu/scratch.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
