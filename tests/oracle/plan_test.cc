// What the library gives, through its plans and with all its threads, against the oracles.
#include "oracle/suite.hpp"

#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace softfold_test::oracle {
namespace {

namespace fold = softfold::fold;
using softfold::DType;
using softfold::View;

struct Library {
  template <class S>
  static Results run(std::span<const S> x, double scale) {
    softfold::RowOptions options;
    options.scale = scale;
    return run(x, options);
  }

  template <class S>
  static Results run(std::span<const S> x, const softfold::RowOptions& options) {
    const std::int64_t shape[] = {std::ssize(x)}, none[] = {1};
    const View in(x.data(), dtype_of<S>(), shape);
    std::vector<S> y(x.size() + 1), log_y(x.size() + 1), lse(1);
    softfold::softmax(in, View(y.data(), dtype_of<S>(), shape), options);
    softfold::log_softmax(in, View(log_y.data(), dtype_of<S>(), shape), options);
    softfold::logsumexp(in, View(lse.data(), dtype_of<S>(), std::span(none).first(0)), options);
    y.pop_back();
    log_y.pop_back();
    return {widened(y), widened(log_y), widened(lse)[0]};
  }

  template <class S>
  static std::vector<double> widened(const std::vector<S>& y) {
    std::vector<double> out;
    for (const S v : y) out.push_back(static_cast<double>(fold::widen(v)));
    return out;
  }
};

/// The scale given as data.
struct LibraryScales {
  template <class S>
  static Results run(std::span<const S> x, double scale) {
    softfold::RowOptions options;
    options.scales = View(&scale, DType::float64, std::span<const std::int64_t>{});
    return Library::run(x, options);
  }
};

template <class S>
class PlanOracle : public testing::Test {};
TYPED_TEST_SUITE(PlanOracle, Storages);

TYPED_TEST(PlanOracle, ShortRows) { check_short_rows<Library, TypeParam>(); }
TYPED_TEST(PlanOracle, FaintScales) { check_faint_scales<LibraryScales, TypeParam>(); }
TYPED_TEST(PlanOracle, MediumRows) { check_medium_rows<Library, TypeParam>(); }
TYPED_TEST(PlanOracle, HugeRows) { check_huge_rows<Library, TypeParam>(huge<TypeParam>); }
TYPED_TEST(PlanOracle, LongHugeRows) { check_huge_rows<Library, TypeParam>(std::int64_t{1} << 24); }

}  // namespace
}  // namespace softfold_test::oracle
