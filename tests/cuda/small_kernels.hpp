// Which kernels tests run.
#pragma once

#include <cstdlib>
#include <cstring>

namespace softfold_test {

/// Before the first plan: the problems of tests are small, so that they are many, and unless the environment says
/// otherwise the kernels for small ones leave them to the others.
inline void leave_out_small_kernels() {
  setenv("SOFTFOLD_WITHOUT",
         "softmax_small_rows,backward_small_rows,softmax_any_few,backward_any_few,few_elements,"
         "cross_entropy_small,entropy_small_rows,kl_small_rows",
         0);
}
inline bool leaves_out_small_kernels() {
  const char* names = std::getenv("SOFTFOLD_WITHOUT");
  return names != nullptr && std::strstr(names, "cross_entropy_small") != nullptr;
}

}  // namespace softfold_test
