#include "cpu/reduce_run.hpp"

#include "cpu/chunk_ops.hpp"
#include "cpu/scratch.hpp"

#include <cmath>

namespace softfold {
inline namespace v0 {
namespace cpu {

template <class T>
typename Partial<T>::State reduce_run(const T* x, int n, T c) {
  alignas(64) T terms[ChunkOps<T>::kTermsRoom], turned[lift::kChunk];
  const auto reduce = chunk_ops<T>().reduce[index(dtype_of<T>())];
  auto& guess = thread_scratch().guess<T>();
  if (c > T(0)) return reduce(x, n, c, terms, guess, false).state;
  // The operations want c > 0: negated for c < 0, times 0 for c = 0, which makes an infinity the NaN that it should be.
  const T factor = c < T(0) ? T(-1) : T(0);
  for (int i = 0; i < n; ++i) turned[i] = factor * x[i];
  return reduce(turned, n, c < T(0) ? -c : T(1), terms, guess, false).state;
}

template Partial<float>::State reduce_run<float>(const float*, int, float);
template Partial<double>::State reduce_run<double>(const double*, int, double);

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
