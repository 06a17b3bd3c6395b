// The definition of every row operation, an element at a time in scalar arithmetic: what each backend must equal bit
// for bit.
#pragma once

#include "softfold/fold/float16.hpp"
#include "softfold/lift/chunks.hpp"
#include "softfold/options.hpp"

#include <cmath>
#include <memory>
#include <vector>

namespace softfold_test {

namespace fold = softfold::fold;
namespace lift = softfold::lift;

/// One row as the definition sees it: values widened to the fold's precision, and which of them exist.
template <class T>
struct ReferenceRow {
  std::vector<T> x;
  std::vector<bool> present;
  double scale = 1;
};

template <class T>
typename fold::LogSumExp<T>::State reference_state(const ReferenceRow<T>& row) {
  using Lse = fold::LogSumExp<T>;
  const auto scale = fold::make_scale<T>(row.scale);
  lift::TreeBuilder<Lse> tree;
  T terms[lift::kChunk];
  const auto present = std::make_unique<bool[]>(row.x.size() + 1);
  for (std::size_t i = 0; i < row.x.size(); ++i) {
    present[i] = row.present[i];
    if (present[i] && !std::isfinite(scale.c)) return Lse::not_a_number();
  }
  const auto n = static_cast<std::int64_t>(row.x.size());
  for (std::int64_t i = 0; i < n; i += lift::kChunk)
    tree.push(lift::reduce_chunk(row.x.data() + i, static_cast<int>(std::min<std::int64_t>(lift::kChunk, n - i)),
                                 scale.c, terms, present.get() + i));
  return tree.root();
}

template <class T>
T reference_lse(const ReferenceRow<T>& row, const typename fold::LogSumExp<T>::State& s) {
  return fold::LogSumExp<T>{fold::make_scale<T>(row.scale)}.finish(s);
}

/// What is written where nothing exists, and in rows that are empty or hold +inf or NaN; true if the element is one.
template <class T>
bool reference_special(const ReferenceRow<T>& row, std::size_t i, bool regular, bool empty, softfold::Empty choice,
                       T missing, T* y) {
  if (!regular && empty) return *y = choice == softfold::Empty::nan ? fold::canonical_nan<T>() : missing, true;
  if (!row.present[i]) return *y = missing, true;
  if (!regular) return *y = fold::canonical_nan<T>(), true;
  if (std::isinf(row.x[i])) return *y = missing, true;  // in a regular row: scale * x = -inf
  return false;
}

template <class T>
std::vector<T> reference_softmax(const ReferenceRow<T>& row, const typename fold::LogSumExp<T>::State& s,
                                 softfold::Empty choice) {
  using Lse = fold::LogSumExp<T>;
  const auto c = fold::make_scale<T>(row.scale).c;
  const fold::Normaliser<T> norm(s);
  std::vector<T> y(row.x.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (reference_special(row, i, norm.regular, norm.empty, choice, T(0), &y[i])) continue;
    const T t = Lse::is_fast(norm.m) ? fold::term<fold::Scalar<T>>(row.x[i], c, Lse::narrow(norm.m))
                                     : fold::term_wide(row.x[i], c, norm.m);
    y[i] = fold::Normaliser<T>::probability(t, norm.multiplier(norm.m));
  }
  return y;
}

template <class T>
std::vector<T> reference_log_softmax(const ReferenceRow<T>& row, const typename fold::LogSumExp<T>::State& s,
                                     softfold::Empty choice) {
  const fold::LogNormaliser<T> norm(s, fold::make_scale<T>(row.scale));
  std::vector<T> y(row.x.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (reference_special(row, i, norm.regular, norm.empty, choice, -fold::infinity<T>(), &y[i])) continue;
    y[i] = norm.log_probability(row.x[i]);
  }
  return y;
}

}  // namespace softfold_test
