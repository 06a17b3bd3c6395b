#include "cpu/tuning.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

Tuning& tuning() {
  static Tuning tuning;
  return tuning;
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
