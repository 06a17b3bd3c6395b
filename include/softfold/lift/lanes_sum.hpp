// The plain sum of one chunk over SIMD lanes: lift::halve of fold::Sum, bit for bit. Read once per target, as
// lanes.hpp.
#include "softfold/lift/lanes.hpp"

#include <bit>

#if defined(SOFTFOLD_LIFT_LANES_SUM_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SOFTFOLD_LIFT_LANES_SUM_HPP
#undef SOFTFOLD_LIFT_LANES_SUM_HPP
#else
#define SOFTFOLD_LIFT_LANES_SUM_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

/// a[0..n) by halving, n a power of two of at least kCount; overwrites a, which is aligned.
template <class T>
HWY_INLINE T halve_in_place(T* a, int n) {
  using A = Lanes<T>;
  using D = typename A::D;
  for (int half = n / 2; half >= A::kCount; half /= 2)
    for (int i = 0; i < half; i += A::kCount)
      hn::Store(A::add(hn::Load(D(), a + i), hn::Load(D(), a + half + i)), D(), a + i);
  return A::halve(hn::Load(D(), a));
}

/// The sum of n leaves, kCount <= n <= kChunk, by halving. leaf(i) is the vector of leaves i .. i + kCount - 1, all of
/// them below n. `room` is scratch, aligned, for kChunk numbers.
template <class T, class Leaf>
HWY_INLINE T sum_leaves(int n, T* room, const Leaf& leaf) {
  using A = Lanes<T>;
  using D = typename A::D;
  constexpr int w = A::kCount;
  if ((n & (n - 1)) == 0 && n >= 8 * w) {
    // Three levels at once: i meets i + n/2, then i + n/4, then i + n/8.
    const int e = n / 8;
    for (int i = 0; i < e; i += w) {
      const auto even = A::add(A::add(leaf(i), leaf(i + 4 * e)), A::add(leaf(i + 2 * e), leaf(i + 6 * e)));
      const auto odd = A::add(A::add(leaf(i + e), leaf(i + 5 * e)), A::add(leaf(i + 3 * e), leaf(i + 7 * e)));
      hn::Store(A::add(even, odd), D(), room + i);
    }
    return halve_in_place(room, e);
  }
  const int whole = static_cast<int>(std::bit_ceil(static_cast<unsigned>(n)));
  for (int i = n / w * w; i < whole; i += w) hn::Store(A::set(-T(0)), D(), room + i);
  for (int i = 0; i + w <= n; i += w) hn::Store(leaf(i), D(), room + i);
  if (n % w != 0) hn::StoreU(leaf(n - w), D(), room + (n - w));
  return halve_in_place(room, whole);
}

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
