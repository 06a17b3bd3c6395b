// The frame that a chunk is reduced in, when it is guessed (lanes_chunk.hpp), and what a reduced chunk leaves behind.
#pragma once

#include "softfold/fold/logsumexp.hpp"

namespace softfold {
inline namespace v0 {
namespace lift {

/// A chunk's state, and what its stored terms 2^f * 2^(n - s) are.
template <class T>
struct Reduced {
  typename fold::LogSumExp<T>::State state;
  T frame;  ///< s; NaN if there are none
  T least;  ///< no term lies between 0 and this
};

/// The largest even integer up to m, |m| < 2^22 (double: 2^51).
template <class T>
SOFTFOLD_HD T even_frame(T m) {
  // Rounding to a multiple of 2 may go up; m is an integer, so then it went up by exactly 1.
  const T magic = T(2) * fold::Real<T>::kMagic;
  const T even = fold::Scalar<T>::sub(fold::Scalar<T>::add(m, magic), magic);
  return even > m ? even - T(2) : even;
}

/// What one thread expects of its next chunk. It changes speed, never bits.
template <class T>
struct Guess {
  static constexpr int kPause = 8;  ///< chunks that are done exactly after one whose guess was wrong
  T frame = T(0);
  int pause = 1;  ///< the first chunk is not guessed

  SOFTFOLD_HD bool take() { return pause == 0 || pause-- == 0; }
  /// Takes the frame of a chunk that was done exactly.
  SOFTFOLD_HD Reduced<T> found(const Reduced<T>& r) {
    if (!fold::is_nan(r.frame)) frame = r.frame;
    return r;
  }
};

}  // namespace lift
}  // namespace v0
}  // namespace softfold
