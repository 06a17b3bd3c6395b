// Every CPU kernel, on every SIMD target that runs here, against the scalar definition: the same bits, and nothing
// written beside the output.
#include "cpu/targets.hpp"
#include "softfold/plan.hpp"
#include "support/bits.hpp"
#include "support/row_reference.hpp"
#include "support/tensor.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace softfold_test {
namespace {

using softfold::Op;

/// What a test case is made of.
struct Case {
  DType in, out;
  std::int64_t n;
  Layout layout_in = Layout::contiguous, layout_out = Layout::contiguous;
  double scale = 1;
  bool masked = false, lengths = false, scales = false, in_place = false;
  softfold::Empty empty = softfold::Empty::zero;
  softfold::Rung rung = softfold::Rung::automatic;
};

constexpr std::int64_t kRows = 11;

/// Rows of every kind: ordinary, far apart, around 0, constant, with -inf, with +inf, with NaN, all -inf, huge, tiny,
/// and one whose first log-probability is subnormal.
double element(Random& random, std::int64_t kind, std::int64_t i) {
  const double infinity = std::numeric_limits<double>::infinity();
  switch (kind) {
    case 0: return random.uniform(-4, 4);
    case 1: return random.uniform(-300, 300);
    case 2: return static_cast<double>(i) * 0.01;
    case 3: return -7;
    case 4: return random.below(3) == 0 ? -infinity : random.uniform(-20, 20);
    case 5: return i % 700 == 5 ? infinity : random.uniform(-4, 4);
    case 6: return i % 900 == 3 ? std::numeric_limits<double>::quiet_NaN() : random.uniform(-4, 4);
    case 7: return -infinity;
    case 8: return (random.below(2) == 0 ? 1 : -1) * std::ldexp(random.uniform(), static_cast<int>(random.below(127)));
    case 10: return i == 0 ? -1e-39 : -1000;
    default: return i / 1024 % 2 == 0 ? -3e7 + random.uniform(0, 9) : random.uniform(-150, 3);
  }
}

class Checker {
 public:
  explicit Checker(const Case& c)
      : c_(c),
        x_(make_tensor(c.in, kRows, c.n, c.layout_in)),
        random_(static_cast<std::uint64_t>(c.n) * 977 + 5),
        mask_(static_cast<std::size_t>(kRows * c.n) + 1),
        length_(kRows),
        scales_(kRows, 1.) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      length_[static_cast<std::size_t>(r)] = r == 9 ? 0 : c.n - random_.below(c.n + 1) / 3;
      constexpr double values[] = {1, 0.3, -1, 0, 2.5, 1, -0.7, 1, 1e-3, 40, 1};
      scales_[static_cast<std::size_t>(r)] = values[r];
      for (std::int64_t i = 0; i < c.n; ++i) {
        mask_[at(r, i)] = random_.below(4) != 0;
        with_dtype(c.in, [&]<class S>(S) {
          const S v = fold::narrow<S>(element(random_, r, i));
          std::memcpy(x_.at(r, i), &v, sizeof v);
        });
      }
    }
  }

  softfold::RowOptions options() {
    softfold::RowOptions o;
    o.scale = c_.scale;
    o.empty = c_.empty;
    o.rung = c_.rung;
    if (c_.masked) o.mask = View(mask_.data(), DType::boolean, mask_shape_);
    if (c_.lengths) o.length = View(length_.data(), DType::int64, row_shape_);
    if (c_.scales) o.scales = View(scales_.data(), DType::float64, row_shape_);
    return o;
  }

  template <class T>
  ReferenceRow<T> row(std::int64_t r) {
    ReferenceRow<T> row;
    row.scale = c_.scale * (c_.scales ? scales_[static_cast<std::size_t>(r)] : 1.);
    for (std::int64_t i = 0; i < c_.n; ++i) {
      with_dtype(c_.in, [&]<class S>(S) {
        S v;
        std::memcpy(&v, x_.at(r, i), sizeof v);
        row.x.push_back(static_cast<T>(fold::widen(v)));
      });
      row.present.push_back((!c_.masked || mask_[at(r, i)] != 0) &&
                            (!c_.lengths || i < length_[static_cast<std::size_t>(r)]));
    }
    return row;
  }

  void run() {
    if (c_.in == DType::float64) {
      run_in<double>();
    } else {
      run_in<float>();
    }
  }

 private:
  std::size_t at(std::int64_t r, std::int64_t i) const { return static_cast<std::size_t>(r * c_.n + i); }

  template <class T>
  void run_in() {
    std::vector<double> states(4 * kRows, -1);
    const std::int64_t states_shape[] = {kRows, 4};
    const View states_view(states.data(), DType::float64, states_shape);
    if (c_.rung == softfold::Rung::automatic) {
      softfold::plan(Op::state, std::vector{x_.view()}, std::vector{states_view}, options()).run();
      for (std::int64_t r = 0; r < kRows; ++r) {
        const auto s = reference_state(row<T>(r));
        const double* got = states.data() + 4 * r;
        EXPECT_EQ(bits(got[0]), bits(s.m)) << "m of row " << r;
        EXPECT_EQ(bits(got[1]), bits(static_cast<double>(s.d))) << "d of row " << r;
        EXPECT_EQ(got[3], static_cast<double>(fold::Real<T>::kDigits));
      }
    }
    expect_rows<T>(Op::softmax, [&](const auto& row, const auto& s) { return reference_softmax(row, s, c_.empty); });
    expect_rows<T>(Op::log_softmax,
                   [&](const auto& row, const auto& s) { return reference_log_softmax(row, s, c_.empty); });
    expect_lse<T>();
    if (c_.rung != softfold::Rung::automatic) return;
    expect_rows<T>(
        Op::finish_softmax, [&](const auto& row, const auto& s) { return reference_softmax(row, s, c_.empty); },
        &states_view);
    expect_rows<T>(
        Op::finish_log_softmax, [&](const auto& row, const auto& s) { return reference_log_softmax(row, s, c_.empty); },
        &states_view);
  }

  template <class T, class Reference>
  void expect_rows(Op op, const Reference& reference, const View* states = nullptr) {
    Tensor y = make_tensor(c_.out, kRows, c_.n, c_.layout_out);
    if (c_.in_place) y = x_;
    Tensor expected = y;
    for (std::int64_t r = 0; r < kRows; ++r) {
      const auto values = row<T>(r);
      const auto result = reference(values, reference_state(values));
      for (std::int64_t i = 0; i < c_.n; ++i)
        with_dtype(c_.out, [&]<class S>(S) {
          const S v = fold::narrow<S>(result[static_cast<std::size_t>(i)]);
          std::memcpy(expected.at(r, i), &v, sizeof v);
        });
    }
    std::vector<View> inputs{c_.in_place ? y.view() : x_.view()};
    if (states != nullptr) inputs.push_back(*states);
    softfold::plan(op, inputs, std::vector{y.view()}, options()).run();
    const bool equal = y.bytes == expected.bytes;
    EXPECT_TRUE(equal) << name_of(op);
    for (std::int64_t r = 0; !equal && r < kRows; ++r)
      for (std::int64_t i = 0; i < c_.n; ++i)
        if (std::memcmp(y.at(r, i), expected.at(r, i), size_of(c_.out)) != 0) {
          ADD_FAILURE() << name_of(op) << " first differs in row " << r << " at " << i;
          break;
        }
  }

  template <class T>
  void expect_lse() {
    std::vector<double> lse(kRows, -1);
    softfold::plan(Op::logsumexp, std::vector{x_.view()}, std::vector{View(lse.data(), DType::float64, row_shape_)},
                   options())
        .run();
    for (std::int64_t r = 0; r < kRows; ++r) {
      const auto values = row<T>(r);
      const T expected = reference_lse(values, reference_state(values));
      EXPECT_EQ(bits(lse[static_cast<std::size_t>(r)]), bits(fold::canonical(static_cast<double>(expected))))
          << "lse of row " << r;
    }
  }

  Case c_;
  Tensor x_;
  Random random_;
  std::vector<unsigned char> mask_;
  std::vector<std::int64_t> length_;
  std::vector<double> scales_;
  std::int64_t mask_shape_[2] = {kRows, c_.n}, row_shape_[1] = {kRows};
};

class CpuEqualsReference : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(softfold::cpu::use_target(GetParam())); }
  void TearDown() override { softfold::cpu::use_target(softfold::cpu::targets().front()); }
};

constexpr std::int64_t kSizes[] = {0,   1,    2,    3,    5,    7,    8,    9,    15,   16,   17,   31,  33,
                                   63,  64,   65,   100,  127,  128,  129,  255,  256,  257,  511,  512, 513,
                                   768, 1000, 1023, 1024, 1025, 1536, 2047, 2048, 2049, 3072, 4097, 5003};

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << name_of(c.in) << " -> " << name_of(c.out) << ", n = " << c.n << ", layouts "
                                  << static_cast<int>(c.layout_in) << ", " << static_cast<int>(c.layout_out)
                                  << ", scale " << c.scale << (c.masked ? ", mask" : "")
                                  << (c.lengths ? ", lengths" : "") << (c.scales ? ", scales" : ""));
  Checker(c).run();
}

TEST_P(CpuEqualsReference, EveryLength) {
  for (const DType t : kFloating)
    for (const auto n : kSizes) check({t, t, n});
}

TEST_P(CpuEqualsReference, EveryPairOfDtypes) {
  for (const DType in : kFloating)
    for (const DType out : kFloating)
      for (const std::int64_t n : {1, 13, 100, 1030}) check({in, out, n});
}

TEST_P(CpuEqualsReference, EveryLayout) {
  for (const DType t : kFloating)
    for (const Layout in : kLayouts)
      for (const Layout out : kLayouts)
        for (const std::int64_t n : {1, 70, 1025}) check({t, t, n, in, out});
}

TEST_P(CpuEqualsReference, EveryScale) {
  for (const DType t : kFloating)
    for (const double scale : {0.125, 0.6931471805599453, -1., 0., 1e-9, -37.5, 1e6})
      for (const std::int64_t n : {3, 100, 1500}) check({t, t, n, Layout::contiguous, Layout::contiguous, scale});
}

TEST_P(CpuEqualsReference, MasksLengthsAndScales) {
  for (const DType t : kFloating)
    for (int bits = 1; bits < 8; ++bits)
      for (const auto empty : {softfold::Empty::zero, softfold::Empty::nan})
        for (const std::int64_t n : {1, 40, 1100}) {
          Case c{t, t, n, bits % 3 == 0 ? Layout::transposed : Layout::contiguous};
          c.masked = (bits & 1) != 0, c.lengths = (bits & 2) != 0, c.scales = (bits & 4) != 0;
          c.empty = empty;
          check(c);
        }
}

TEST_P(CpuEqualsReference, InPlace) {
  for (const DType t : kFloating)
    for (const Layout layout : kLayouts)
      for (const std::int64_t n : {1, 9, 100, 1024, 2100}) {
        Case c{t, t, n, layout, layout};
        c.in_place = true;
        check(c);
      }
}

TEST_P(CpuEqualsReference, TiledAsFused) {
  for (const DType t : kFloating)
    for (const std::int64_t n : {1, 100, 1024, 2500}) {
      Case c{t, t, n};
      c.rung = softfold::Rung::tiled;
      check(c);
    }
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuEqualsReference,
                         testing::ValuesIn(softfold::cpu::targets().begin(), softfold::cpu::targets().end()),
                         [](const auto& target) { return std::string(target.param); });

}  // namespace
}  // namespace softfold_test
