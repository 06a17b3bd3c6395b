// What a fold is. A fold turns a row into a small state, piece by piece, in any grouping:
//
//   State   a regular type, a few numbers
//   identity()        the state of nothing
//   push(s, x)        the state of what s holds and one more element
//   merge(a, b)       the state of what a and b hold together
//   finish(s)         what the user asked for
//
// Its laws, which tests/laws checks for every fold and every lift:
//
//   merge(identity, s) == s == merge(s, identity)      exactly
//   merge(a, b) == merge(b, a)                         bit for bit
//   merge(merge(a, b), c) == merge(a, merge(b, c))     within the fold's stated bound
//
// Associativity within a bound lets any schedule be right; one fixed tree (lift/tree.hpp) makes every schedule give
// the same bits. A fold knows nothing of threads, lanes or devices: lift/ carries it across each of those levels.
#pragma once

#include <concepts>

namespace softfold {
inline namespace v0 {
namespace fold {

template <class F>
concept Fold = requires(const F f, typename F::State a, typename F::State b, typename F::Element x) {
  { F::identity() } -> std::same_as<typename F::State>;
  { f.push(a, x) } -> std::same_as<typename F::State>;
  { F::merge(a, b) } -> std::same_as<typename F::State>;
  f.finish(a);
};

}  // namespace fold
}  // namespace v0
}  // namespace softfold
