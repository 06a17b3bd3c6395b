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
  constexpr int w = A::kCount;
  for (; n >= 8 * w; n /= 8) {
    // Three levels at once: i meets i + n/2, then i + n/4, then i + n/8.
    const int e = n / 8;
    for (int i = 0; i < e; i += w) {
      const auto at = [&](int k) HWY_ATTR { return hn::Load(D(), a + i + k * e); };
      const auto even = A::add(A::add(at(0), at(4)), A::add(at(2), at(6)));
      const auto odd = A::add(A::add(at(1), at(5)), A::add(at(3), at(7)));
      hn::Store(A::add(even, odd), D(), a + i);
    }
  }
  for (int half = n / 2; half >= w; half /= 2)
    for (int i = 0; i < half; i += w) hn::Store(A::add(hn::Load(D(), a + i), hn::Load(D(), a + half + i)), D(), a + i);
  return A::halve(hn::Load(D(), a));
}

/// The sum of n leaves, kCount <= n <= kChunk, by halving. leaf(i) is the vector of leaves i .. i + kCount - 1, all of
/// them below n. `room` is scratch, aligned, for kChunk numbers: the leaves pass through it, because taking them in the
/// order of the tree would keep the machine from seeing that memory is read from front to back.
template <class T, class Leaf>
HWY_INLINE T sum_leaves(int n, T* room, const Leaf& leaf) {
  using A = Lanes<T>;
  using D = typename A::D;
  constexpr int w = A::kCount;
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
