// The backward passes: bit for bit their scalar definition, on every SIMD target, layout and thread count. (What the
// definition is worth: tests/oracle.)
#include "cpu/targets.hpp"
#include "softfold/error.hpp"
#include "softfold/fold/gradient.hpp"
#include "softfold/softfold.hpp"
#include "support/bits.hpp"
#include "support/row_reference.hpp"
#include "support/tensor.hpp"
#include "support/thread_counts.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace softfold_test {
namespace {

using softfold::Context;
using softfold::Op;

struct Case {
  DType y, dy, dx;
  std::int64_t n;
  Layout layout = Layout::contiguous, layout_dx = Layout::contiguous;
  double scale = 1;
  bool masked = false, lengths = false, scales = false;
  int in_place = 0;  ///< 1: dx is y (or x); 2: dx is dy
};

constexpr std::int64_t kRows = 8;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// y of softmax, y of log_softmax, or x. Row 4 holds a NaN, row 5 is empty, row 6 holds an infinity, row 7 is wide.
double operand(Op op, Random& random, std::int64_t row, std::int64_t i) {
  const double u = random.uniform();
  if (row == 4 && i % 600 == 2) return kNaN;
  if (op == Op::softmax_backward) return row == 5 ? 0. : row == 6 && i % 500 == 1 ? kInf : u < 0.1 ? 0. : u * 0.01;
  if (op == Op::log_softmax_backward)
    return row == 5 || u < 0.1 ? -kInf : row == 6 ? 100. * (u - 0.5) : row == 7 ? -1e6 * u : -12. * u;
  return row == 5 || u < 0.1 ? -kInf : row == 6 && i % 500 == 1 ? kInf : row == 7 ? 6e4 * (u - 0.5) : 20. * u;
}

class Checker {
 public:
  Checker(const Case& c, Op op)
      : c_(c),
        op_(op),
        y_(make_tensor(c.y, kRows, c.n, c.layout)),
        dy_(make_tensor(c.dy, kRows, c.n, c.layout)),
        mask_(static_cast<std::size_t>(kRows * c.n) + 1),
        length_(kRows),
        scales_(kRows),
        dlse_(kRows),
        states_(4 * kRows) {
    Random random(static_cast<std::uint64_t>(c.n) * 31 + 7);
    for (std::int64_t r = 0; r < kRows; ++r) {
      length_[at(r)] = r == 3 ? 0 : c.n - random.below(c.n + 1) / 3;
      scales_[at(r)] = r == 0 ? 1. : random.uniform(-2., 2.);
      dlse_[at(r)] = random.uniform(-3., 3.);
      for (std::int64_t i = 0; i < c.n; ++i) {
        mask_[at(r * c.n + i)] = random.below(4) != 0;
        put(y_, r, i, operand(op, random, r, i));
        put(dy_, r, i, r == 2 && i % 700 == 3 ? kInf : random.uniform(-2., 2.));
      }
    }
  }

  void run(const Context& context = {}) {
    if (op_ == Op::logsumexp_backward)
      softfold::state(y_.view(), View(states_.data(), DType::float64, states_shape_), options());
    Tensor dx = c_.in_place == 1 ? y_ : c_.in_place == 2 ? dy_ : make_tensor(c_.dx, kRows, c_.n, c_.layout_dx);
    Tensor expected = dx;
    if (c_.y == DType::float64) {
      fill_expected<double>(expected);
    } else {
      fill_expected<float>(expected);
    }
    const View y = c_.in_place == 1 ? dx.view() : y_.view();
    const View dy = c_.in_place == 2 ? dx.view() : dy_.view();
    if (op_ == Op::softmax_backward) {
      softfold::softmax_backward(y, dy, dx.view(), options(), context);
    } else if (op_ == Op::log_softmax_backward) {
      softfold::log_softmax_backward(y, dy, dx.view(), options(), context);
    } else {
      softfold::logsumexp_backward(y, View(states_.data(), DType::float64, states_shape_),
                                   View(dlse_.data(), DType::float64, row_shape_), dx.view(), options(), context);
    }
    const bool equal = dx.bytes == expected.bytes;
    EXPECT_TRUE(equal) << name_of(op_);
    for (std::int64_t r = 0; !equal && r < kRows; ++r)
      for (std::int64_t i = 0; i < c_.n; ++i)
        if (std::memcmp(dx.at(r, i), expected.at(r, i), size_of(dx.dtype)) != 0) {
          ADD_FAILURE() << "first differs in row " << r << " at " << i << ": " << get<double>(dx, r, i) << " for "
                        << get<double>(expected, r, i);
          break;
        }
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  static void put(Tensor& t, std::int64_t r, std::int64_t i, double value) {
    with_dtype(t.dtype, [&]<class S>(S) {
      const S v = fold::narrow<S>(value);
      std::memcpy(t.at(r, i), &v, sizeof v);
    });
  }
  template <class T>
  static T get(Tensor& t, std::int64_t r, std::int64_t i) {
    return with_dtype(t.dtype, [&]<class S>(S) {
      S v;
      std::memcpy(&v, t.at(r, i), sizeof v);
      return static_cast<T>(fold::widen(v));
    });
  }

  softfold::RowOptions options() {
    softfold::RowOptions o;
    o.scale = c_.scale;
    if (c_.masked) o.mask = View(mask_.data(), DType::boolean, mask_shape_);
    if (c_.lengths) o.length = View(length_.data(), DType::int64, row_shape_);
    if (c_.scales) o.scales = View(scales_.data(), DType::float64, row_shape_);
    return o;
  }

  /// One row by the definition.
  template <class T, class Gradient>
  std::vector<T> through_pair(const ReferenceRow<T>& y, const std::vector<T>& dy) {
    lift::TreeBuilder<fold::Sum<T>> tree;
    bool nothing = true;
    for (std::size_t begin = 0; begin < dy.size(); begin += lift::kChunk) {
      std::vector<T> leaves;
      for (std::size_t i = begin; i < std::min(dy.size(), begin + lift::kChunk); ++i) {
        leaves.push_back(y.present[i] ? Gradient::leaf(y.x[i], dy[i]) : -T(0));
        if (y.present[i] && y.x[i] != Gradient::nothing()) nothing = false;
      }
      tree.push(lift::halve<fold::Sum<T>>(leaves.data(), static_cast<int>(leaves.size())));
    }
    const Gradient gradient{tree.root(), static_cast<T>(y.scale)};
    std::vector<T> dx(dy.size(), T(0));
    for (std::size_t i = 0; !nothing && i < dy.size(); ++i)
      if (y.present[i]) dx[i] = gradient(y.x[i], dy[i]);
    return dx;
  }

  template <class T>
  std::vector<T> through_logsumexp(const ReferenceRow<T>& x, T dlse) {
    const fold::Normaliser<T> row(reference_state(x));
    const fold::LogSumExpGradient<T> gradient{row, fold::make_scale<T>(x.scale).c, dlse, static_cast<T>(x.scale)};
    std::vector<T> dx(x.x.size(), T(0));
    for (std::size_t i = 0; !row.empty && i < dx.size(); ++i)
      if (x.present[i]) dx[i] = row.regular ? gradient(x.x[i]) : fold::canonical_nan<T>();
    return dx;
  }

  template <class T>
  void fill_expected(Tensor& expected) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      ReferenceRow<T> y;
      std::vector<T> dy, dx;
      y.scale = c_.scale * (c_.scales ? scales_[at(r)] : 1.);
      for (std::int64_t i = 0; i < c_.n; ++i) {
        y.x.push_back(get<T>(y_, r, i));
        dy.push_back(get<T>(dy_, r, i));
        y.present.push_back((!c_.masked || mask_[at(r * c_.n + i)] != 0) && (!c_.lengths || i < length_[at(r)]));
      }
      if (op_ == Op::softmax_backward) dx = through_pair<T, fold::SoftmaxGradient<T>>(y, dy);
      if (op_ == Op::log_softmax_backward) dx = through_pair<T, fold::LogSoftmaxGradient<T>>(y, dy);
      if (op_ == Op::logsumexp_backward) dx = through_logsumexp(y, static_cast<T>(dlse_[at(r)]));
      for (std::int64_t i = 0; i < c_.n; ++i)
        with_dtype(expected.dtype, [&]<class S>(S) {
          const S v = fold::narrow<S>(dx[at(i)]);
          std::memcpy(expected.at(r, i), &v, sizeof v);
        });
    }
  }

  Case c_;
  Op op_;
  Tensor y_, dy_;
  std::vector<unsigned char> mask_;
  std::vector<std::int64_t> length_;
  std::vector<double> scales_, dlse_, states_;
  std::int64_t mask_shape_[2] = {kRows, c_.n}, row_shape_[1] = {kRows}, states_shape_[2] = {kRows, 4};
};

void check(const Case& c, const Context& context = {}) {
  SCOPED_TRACE(testing::Message() << name_of(c.y) << ", " << name_of(c.dy) << " -> " << name_of(c.dx) << ", n = " << c.n
                                  << ", layouts " << static_cast<int>(c.layout) << ", " << static_cast<int>(c.layout_dx)
                                  << ", scale " << c.scale << (c.masked ? ", mask" : "")
                                  << (c.lengths ? ", lengths" : "") << (c.scales ? ", scales" : "") << ", in place "
                                  << c.in_place);
  for (const Op op : {Op::softmax_backward, Op::log_softmax_backward, Op::logsumexp_backward})
    if (op != Op::logsumexp_backward || c.in_place != 2) Checker(c, op).run(context);
}

class Backward : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(softfold::cpu::use_target(GetParam())); }
  void TearDown() override { softfold::cpu::use_target(softfold::cpu::targets().front()); }
};

TEST_P(Backward, EveryLength) {
  for (const DType t : kFloating)
    for (const std::int64_t n : {0,  1,  2,   3,   5,   7,   8,   9,   15,  16,  17,   31,   33,   63,   64,
                                 65, 90, 127, 128, 129, 255, 256, 257, 512, 999, 1023, 1024, 1025, 2048, 5003})
      check({t, t, t, n});
}

TEST_P(Backward, EveryMixOfDtypes) {
  for (const DType y : kFloating)
    for (const DType dy : kFloating)
      for (const DType dx : kFloating)
        if ((y == DType::float64) == (dy == DType::float64))
          for (const std::int64_t n : {1, 13, 100, 1030}) check({y, dy, dx, n});
}

TEST_P(Backward, EveryLayout) {
  for (const DType t : kFloating)
    for (const Layout layout : kLayouts)
      for (const Layout layout_dx : kLayouts)
        for (const std::int64_t n : {1, 70, 1025}) check({t, t, t, n, layout, layout_dx});
}

TEST_P(Backward, ScalesMasksAndLengths) {
  for (const DType t : kFloating)
    for (int bits = 0; bits < 8; ++bits)
      for (const double scale : {1., 0.125, -0.7, 0.})
        for (const std::int64_t n : {1, 40, 1100}) {
          Case c{t, t, t, n, bits % 3 == 0 ? Layout::transposed : Layout::contiguous};
          c.masked = (bits & 1) != 0, c.lengths = (bits & 2) != 0, c.scales = (bits & 4) != 0;
          c.scale = scale;
          check(c);
        }
}

TEST_P(Backward, InPlace) {
  for (const DType t : kFloating)
    for (const Layout layout : kLayouts)
      for (const bool masked : {false, true})
        for (const std::int64_t n : {1, 9, 100, 1024, 2100})
          for (const int in_place : {1, 2}) {
            Case c{t, t, t, n, layout, layout};
            c.in_place = in_place, c.masked = masked;
            check(c);
          }
}

INSTANTIATE_TEST_SUITE_P(Targets, Backward,
                         testing::ValuesIn(softfold::cpu::targets().begin(), softfold::cpu::targets().end()),
                         [](const auto& target) { return std::string(target.param); });

TEST(BackwardThreads, SharedRowsAndManyRowsHaveTheSameBits) {
  for (const int threads : kThreadCounts) {
    const auto executor = softfold::make_thread_executor(threads);
    const Context context{executor.get(), nullptr, nullptr};
    // Results of 9.6 MB, whose rows begin anywhere in a line, leave past the cache.
    for (const std::int64_t n : {std::int64_t{5000}, 300007 / kShrink})
      check({DType::float32, DType::float32, DType::float32, n}, context);
    Case c{DType::bfloat16, DType::float32, DType::float16, 120000 / kShrink};
    c.masked = c.lengths = true;
    check(c, context);
  }
}

TEST(BackwardRefusals, StatesThatDoNotBelongToX) {
  float x[] = {1, 2}, dx[] = {-7, -7}, dlse = 1;
  const std::int64_t shape[] = {2}, states_shape[] = {4};
  for (const auto& bad : {std::vector<double>{2, 1.5, 0.5, 24}, std::vector<double>{2, 1.5, 1, 53},
                          std::vector<double>{2.5, 1.5, 1, 24}, std::vector<double>{2, -1, 1, 24}}) {
    try {
      softfold::logsumexp_backward(
          View(x, DType::float32, shape), View(static_cast<const void*>(bad.data()), DType::float64, states_shape),
          View(&dlse, DType::float32, std::span<const std::int64_t>{}), View(dx, DType::float32, shape));
      ADD_FAILURE() << "taken: " << bad[0] << " " << bad[1] << " " << bad[2] << " " << bad[3];
    } catch (const softfold::Error& e) {
      EXPECT_EQ(e.code, softfold::Code::state);
    }
    EXPECT_EQ(dx[0], -7.F);
  }
}

}  // namespace
}  // namespace softfold_test
