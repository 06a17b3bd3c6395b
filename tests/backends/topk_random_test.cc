// topk with its options drawn at random, all together, against a plain sort of what exists, and softmax's,
// log_softmax's and logsumexp's bits.
#include "support/linear_reference.hpp"
#include "support/thread_counts.hpp"

#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace softfold_test {
namespace {

using softfold::TopkOptions;

constexpr DType kFloating[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16};
constexpr DType kInteger[] = {DType::int32, DType::int64};

struct TopkCase {
  Random random;
  std::int64_t rows, n, k;
  Array x, mask, length, scales, values, indices, p, lp, lse;
  TopkOptions o;

  explicit TopkCase(std::uint64_t seed)
      : random(seed * 29 + 11), rows(1 + random.below(5)), n(1 + random.below(seed % 3 == 0 ? 3000 : 80)), k(0) {
    k = random.below(3) == 0 ? random.below(n + 1) : random.below(std::min<std::int64_t>(n, 40) + 1);
    const auto floating = [&] { return kFloating[random.below(4)]; };
    make_x(floating());
    make_what_exists();
    o.sorted = flip();
    o.rows.empty = flip() ? softfold::Empty::zero : softfold::Empty::nan;
    values = Array(floating(), {rows, k}, layout()), indices = Array(kInteger[random.below(2)], {rows, k}, layout());
    p = Array(floating(), {rows, k}, layout()), lp = Array(floating(), {rows, k}, layout());
    lse = Array(floating(), {rows});
    if (flip()) o.probabilities = p.view();
    if (flip()) o.log_probabilities = lp.view();
    if (flip()) o.lse = lse.view();
  }
  bool flip() { return random.below(2) != 0; }
  Layout layout() { return kLayouts[random.below(std::ssize(kLayouts))]; }

  void make_x(DType t) {
    x = Array(t, {rows, n}, layout());
    const double specials[] = {NAN, HUGE_VAL, -HUGE_VAL, 0., -0.};
    const bool ties = flip(), special = random.below(4) == 0;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const double v = random.uniform(-6, 6);
      x.set_value(i, special && random.below(30) == 0 ? specials[random.below(5)] : ties ? std::rint(v) : v);
    }
    if (special && flip())  // a row of which nothing but -inf is left
      for (std::int64_t i = 0; i < n; ++i) x.set_value(i, -HUGE_VAL);
  }
  void make_what_exists() {
    if (flip()) {
      const Shape shapes[] = {{rows, n}, {n}, {rows, 1}};
      mask = Array(DType::boolean, shapes[random.below(3)], layout());
      for (std::int64_t i = 0; i < mask.count(); ++i) mask.set(i, std::uint8_t{random.below(3) != 0});
      o.rows.mask = mask.view();
    }
    if (flip()) {
      length = Array(kInteger[random.below(2)], {rows});
      for (std::int64_t r = 0; r < rows; ++r) length.set_value(r, static_cast<double>(random.below(n + 1)));
      o.rows.length = length.view();
    }
    if (flip()) o.rows.scale = random.uniform(-1.5, 1.5);
    if (flip()) {
      scales = Array(flip() ? DType::float32 : DType::float64, {rows});
      for (std::int64_t r = 0; r < rows; ++r) scales.set_value(r, random.uniform(-1.5, 1.5));
      o.rows.scales = scales.view();
    }
    o.rows.causal = random.below(4) == 0;
  }
  bool exists(std::int64_t r, std::int64_t i) const {
    if (o.rows.length.given() && static_cast<double>(i) >= number(length, r)) return false;
    if (o.rows.causal && i >= r + 1 + n - rows) return false;
    if (!o.rows.mask.given()) return true;
    const bool flat = mask.shape().size() == 1;
    return number(mask, flat ? i : mask.shape()[1] == 1 ? r : r * n + i) != 0;
  }
  /// Where the k largest of row r stand.
  std::vector<std::int64_t> best(std::int64_t r) const {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < n; ++i)
      if (exists(r, i)) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
      const double a = number(x, r * n + i), b = number(x, r * n + j);
      return std::isnan(a) ? !std::isnan(b) : a > b;
    });
    order.resize(std::min(order.size(), static_cast<std::size_t>(k)));
    if (!o.sorted) std::sort(order.begin(), order.end());
    return order;
  }
};

/// Whether element i of a result is v, as its dtype stores it.
void expect_element(const char* name, const Array& got, std::int64_t i, double v, const std::string& what) {
  Array one(got.dtype(), {1});
  one.set_value(0, v);
  const double wanted = number(one, 0), is = number(got, i);
  EXPECT_TRUE(is == wanted ? std::signbit(is) == std::signbit(wanted) : std::isnan(is) && std::isnan(wanted))
      << name << " " << i << " is " << is << ", not " << wanted << ": " << what;
}

void check(TopkCase& c, const std::string& what) {
  const DType own = c.x.dtype() == DType::float64 ? DType::float64 : DType::float32;
  Array p(own, {c.rows, c.n}), lp = p, lse(own, {c.rows});
  softfold::softmax(c.x.view(), p.view(), c.o.rows);
  softfold::log_softmax(c.x.view(), lp.view(), c.o.rows);
  softfold::logsumexp(c.x.view(), lse.view(), c.o.rows);
  const bool nan_rows = c.o.rows.empty == softfold::Empty::nan;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    const auto best = c.best(r);
    if (c.o.lse.given()) expect_element("lse", c.lse, r, number(lse, r), what);
    const bool empty = number(lse, r) == -HUGE_VAL;
    for (std::int64_t j = 0; j < c.k; ++j) {
      const std::int64_t to = r * c.k + j, i = j < std::ssize(best) ? best[static_cast<std::size_t>(j)] : -1;
      EXPECT_EQ(number(c.indices, to), static_cast<double>(i)) << j << " of row " << r << ": " << what;
      expect_element("value", c.values, to, i < 0 ? -HUGE_VAL : number(c.x, r * c.n + i), what);
      const double nothing = empty && nan_rows ? NAN : 0, of_nothing = empty && nan_rows ? NAN : -HUGE_VAL;
      if (c.o.probabilities.given()) expect_element("p", c.p, to, i < 0 ? nothing : number(p, r * c.n + i), what);
      if (c.o.log_probabilities.given())
        expect_element("lp", c.lp, to, i < 0 ? of_nothing : number(lp, r * c.n + i), what);
    }
  }
}

TEST(Topk, OfRandomOptionsIsThePlainSort) {
  const auto executor = softfold::make_thread_executor(3);
  softfold::Context threads;
  threads.cpu = executor.get();
  for (std::uint64_t seed = 0; seed < 600; seed += kStep) {
    TopkCase c(seed);
    softfold::topk(c.x.view(), c.values.view(), c.indices.view(), c.o, seed % 2 == 0 ? softfold::Context{} : threads);
    check(c, "seed " + std::to_string(seed) + ", " + std::to_string(c.rows) + " x " + std::to_string(c.n) + " " +
                 std::string(softfold::name_of(c.x.dtype())));
    EXPECT_TRUE(c.values.only_elements_written() && c.indices.only_elements_written()) << seed;
  }
}

}  // namespace
}  // namespace softfold_test
