// cpu == cuda, bit for bit: rows that lie side by side and of which something is hidden, with scales of their own or to
// another dtype.
#include "cuda/hidden.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

/// What hides elements, and how the operands that say so lie.
enum class Hides { mask, mask_of_all, mask_of_runs, lengths, both, causal, nothing, count };

/// Rows side by side of n elements, [outer, n, inner], with a causal limit [outer, inner, n]; of options that follow
/// from `at`.
class SideBySide {
 public:
  SideBySide(std::int64_t inner, std::int64_t n, std::size_t at)
      : outer_(pick(at, 7, 3) == 0 ? 1 : 2),
        n_(n),
        inner_(inner),
        at_(at),
        hides_(static_cast<Hides>(pick(at, 8, static_cast<std::size_t>(Hides::count)))),
        mask_(DType::boolean, shape_of(hides_ == Hides::mask_of_all ? 1 : outer_, n, mask_inner()), mask_strides(),
              static_cast<std::int64_t>(pick(at, 9, 3))),
        length_(pick(at, 10, 2) == 0 ? DType::int32 : DType::int64,
                shape_of(outer_, 1, pick(at, 11, 3) == 0 ? 1 : inner)),
        scales_(pick(at, 12, 2) == 0 ? DType::float32 : DType::float64, shape_of(outer_, 1, inner)) {
    mask_.fill([&](std::int64_t i) { return mask_at(i) ? 1. : 0.; });
    length_.fill([&](std::int64_t i) { return static_cast<double>(length_at(i)); });
    scales_.fill([](std::int64_t i) {
      if (i % 23 == 11) return 0.;
      if (i % 37 == 21) return i % 2 == 0 ? 1e-44 : HUGE_VAL;
      return (i % 2 != 0 ? -0.75 : 1.5) * static_cast<double>(1 + i % 4);
    });
  }

  std::vector<std::int64_t> shape() const { return shape_of(outer_, n_, inner_); }
  /// With `gap` elements behind each run of neighbouring rows.
  std::vector<std::int64_t> strides(std::int64_t gap) const {
    if (is_last()) return {n_ * (inner_ + gap), 1, inner_ + gap};
    return {n_ * (inner_ + gap), inner_ + gap, 1};
  }
  /// Of the i-th element in the shape's order.
  std::int64_t row_of(std::int64_t i) const { return is_last() ? i / n_ : i % inner_ + i / (n_ * inner_) * inner_; }
  std::int64_t index_of(std::int64_t i) const { return is_last() ? i % n_ : i / inner_ % n_; }
  bool is_shown(std::int64_t i) const {
    const std::int64_t row = row_of(i), outer = row / inner_, column = row % inner_, j = index_of(i);
    if (hides_ == Hides::causal) return j < column + 1 + n_ - inner_;
    if ((hides_ == Hides::lengths || hides_ == Hides::both) && j >= length_at(length_.shape()[2] == 1 ? outer : row))
      return false;
    const std::int64_t inner = mask_inner(), of = hides_ == Hides::mask_of_all ? 0 : outer;
    return !has_mask() || mask_at((of * n_ + j) * inner + (inner == 1 ? 0 : column));
  }

  softfold::RowOptions options(bool gpu) {
    softfold::RowOptions o;
    o.axis = is_last() ? 2 : 1;
    o.scale = pick(at_, 5, 3) == 0 ? -0.75 : 1.;
    o.empty = pick(at_, 6, 4) == 0 ? softfold::Empty::nan : softfold::Empty::zero;
    if (has_mask()) o.mask = mask_.view(gpu);
    if (hides_ == Hides::lengths || hides_ == Hides::both) o.length = length_.view(gpu);
    o.causal = hides_ == Hides::causal;
    if (hides_ == Hides::nothing || pick(at_, 13, 4) == 0) o.scales = scales_.view(gpu);
    return o;
  }
  std::string describe() const {
    return std::to_string(outer_) + "x" + std::to_string(n_) + "x" + std::to_string(inner_) + " hides " +
           std::to_string(static_cast<int>(hides_)) + " at " + std::to_string(at_);
  }

 private:
  bool is_last() const { return hides_ == Hides::causal; }
  bool has_mask() const {
    return hides_ == Hides::mask || hides_ == Hides::mask_of_all || hides_ == Hides::mask_of_runs ||
           hides_ == Hides::both;
  }
  std::vector<std::int64_t> shape_of(std::int64_t outer, std::int64_t n, std::int64_t inner) const {
    if (is_last()) return {outer, inner, n};
    return {outer, n, inner};
  }
  std::int64_t mask_inner() const { return hides_ == Hides::mask_of_runs ? 1 : inner_; }
  /// Masks lie side by side, with or without a gap, or are turned around.
  std::vector<std::int64_t> mask_strides() const {
    const std::int64_t inner = mask_inner(), gap = pick(at_, 15, 3) == 0 ? 3 : 0;
    if (pick(at_, 14, 4) == 0) return {n_ * inner, 1, n_};
    return {n_ * (inner + gap), inner + gap, 1};
  }
  bool mask_at(std::int64_t i) const {
    const std::int64_t inner = mask_inner(), row = i % inner + i / (n_ * inner) * inner, j = i / inner % n_;
    if (row % 9 == 4) return false;  // nothing is shown
    if (row % 9 == 5) return j >= n_ / 2;
    return Random(static_cast<std::uint64_t>(i) + 5).next() % 4 != 0;
  }
  std::int64_t length_at(std::int64_t i) const {
    if (i % 7 == 3) return 0;
    return i % 7 == 5 ? n_ : (i * 7919 + n_ / 2) % (n_ + 1);
  }

  std::int64_t outer_, n_, inner_;
  std::size_t at_;
  Hides hides_;
  Tensor mask_, length_, scales_;
};

/// To which dtype results go.
DType other_of(DType t, std::size_t at) {
  if (t == DType::float64 || pick(at, 16, 3) != 0) return t;
  if (t != DType::float32) return DType::float32;
  return pick(at, 17, 2) == 0 ? DType::bfloat16 : DType::float16;
}

void compare(DType t, std::int64_t inner, std::int64_t n, std::size_t at) {
  SideBySide rows(inner, n, at);
  const Values v = kAnyValues[pick(at, 0, std::size(kAnyValues))];
  const std::int64_t gap = pick(at, 1, 3) == 0 ? 5 : 0, offset = static_cast<std::int64_t>(pick(at, 2, 5));
  const bool log = pick(at, 3, 2) == 1, in_place = pick(at, 4, 4) == 0;
  Tensor x(t, rows.shape(), rows.strides(gap), offset);
  Tensor y(in_place ? t : other_of(t, at), rows.shape(), rows.strides(gap + 8), offset + 4);
  x.fill([&](std::int64_t i) { return value_of(v, rows.row_of(i), rows.index_of(i), n); });
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in = x.view(gpu), out = in_place ? x.view(gpu) : y.view(gpu);
    const auto plan = softfold::plan(log ? Op::log_softmax : Op::softmax, {&in, 1}, {&out, 1}, rows.options(gpu));
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Tensor& result = in_place ? x : y;
  EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
      << rows.describe() << " " << name_of(t) << " to " << name_of(result.dtype()) << (log ? " log" : "") << " values "
      << static_cast<int>(v) << " by " << kernel;
  if (t == DType::float64) return;
  EXPECT_EQ(kernel, n <= 4096 ? "softmax_across_hidden" : "softmax_across_hidden_twice") << rows.describe();
}

void compare_states(DType t, std::int64_t inner, std::int64_t n, std::size_t at) {
  SideBySide rows(inner, n, at);
  const Values v = kAnyValues[pick(at, 0, std::size(kAnyValues))];
  const std::int64_t gap = pick(at, 1, 3) == 0 ? 5 : 0, offset = static_cast<std::int64_t>(pick(at, 2, 5));
  const bool state = pick(at, 18, 3) == 0;
  Tensor x(t, rows.shape(), rows.strides(gap), offset);
  const std::int64_t outer = rows.shape()[0];
  Tensor y = state ? Tensor(DType::float64, {outer, inner, 4}) : Tensor(other_of(t, at), {outer, inner});
  x.fill([&](std::int64_t i) { return value_of(v, rows.row_of(i), rows.index_of(i), n); });
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in = x.view(gpu), out = y.view(gpu);
    const auto plan = softfold::plan(state ? Op::state : Op::logsumexp, {&in, 1}, {&out, 1}, rows.options(gpu));
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(difference(y.host(), y.download(), y.size()), "")
      << rows.describe() << " " << name_of(t) << (state ? " state" : " logsumexp") << " values " << static_cast<int>(v)
      << " by " << kernel;
  if (t != DType::float64) EXPECT_EQ(kernel, "fold_across_hidden") << rows.describe();
}

/// What is hidden of y and dy may be anything.
void compare_gradients(DType t, std::int64_t inner, std::int64_t n, std::size_t at) {
  SideBySide rows(inner, n, at);
  const Values v = kAnyValues[pick(at, 0, std::size(kAnyValues))];
  const std::int64_t gap = pick(at, 1, 3) == 0 ? 5 : 0, offset = static_cast<std::int64_t>(pick(at, 2, 5));
  const bool log = pick(at, 3, 2) == 1;
  const std::size_t to = pick(at, 4, 5);  // dx, or in place of y or dy
  Tensor y(t, rows.shape(), rows.strides(gap), offset), dy(t, rows.shape(), rows.strides(0));
  Tensor dx(to > 1 ? other_of(t, at) : t, rows.shape(), rows.strides(gap + 8), offset);
  y.fill([&](std::int64_t i) { return value_of(v, rows.row_of(i), rows.index_of(i), n); });
  const softfold::View forward = y.view(false);
  softfold::plan(log ? Op::log_softmax : Op::softmax, {&forward, 1}, {&forward, 1}, rows.options(false)).run();
  y.upload();
  dy.fill([&](std::int64_t i) {
    return rows.is_shown(i) ? gradient_of(rows.row_of(i), rows.index_of(i)) : planted(rows.row_of(i), i);
  });
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in[] = {y.view(gpu), dy.view(gpu)};
    const softfold::View out = to == 0 ? dy.view(gpu) : to == 1 ? y.view(gpu) : dx.view(gpu);
    const auto plan =
        softfold::plan(log ? Op::log_softmax_backward : Op::softmax_backward, in, {&out, 1}, rows.options(gpu));
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Tensor& result = to == 0 ? dy : to == 1 ? y : dx;
  EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
      << rows.describe() << " " << name_of(t) << " to " << name_of(result.dtype()) << (log ? " log" : "") << " values "
      << static_cast<int>(v) << " to " << to << " by " << kernel;
  if (t == DType::float64) return;
  if (n <= 4096) EXPECT_EQ(kernel, "backward_across_hidden") << rows.describe();
  if (n > 8192) EXPECT_EQ(kernel, "backward_across_hidden_twice") << rows.describe();
}

class CudaHiddenAcross : public CudaHidden {};

TEST_F(CudaHiddenAcross, Rows) {
  std::size_t at = 0;
  for (const std::int64_t n : {2, 3, 8, 21, 32, 33, 64, 100, 128, 257, 512, 1000, 1024})
    for (const std::int64_t inner : {2, 3, 32, 64, 100, 257})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
        for (int i = 0; i < 3; ++i) {
          if (HasFailure()) return;
          compare(t, inner, n, at);
          compare_gradients(t, inner, n, at);
          compare_states(t, inner, n, at++);
        }
}

TEST_F(CudaHiddenAcross, Chunks) {
  std::size_t at = 0;
  for (const std::int64_t n : {1025, 1500, 2048, 2049, 3000, 4095, 4096, 4097, 10000, 17001})
    for (const std::int64_t inner : {2, 3, 8, 64, 100})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
        for (int i = 0; i < 2; ++i) {
          if (HasFailure()) return;
          compare(t, inner, n, at);
          compare_gradients(t, inner, n, at);
          compare_states(t, inner, n, at++);
        }
}

TEST_F(CudaHiddenAcross, Doubles) {
  std::size_t at = 0;
  for (const std::int64_t n : {2, 7, 8, 9, 21, 32, 64, 100, 257, 512, 1000, 1025, 5000, 17001, 140000})
    for (const std::int64_t inner : {2, 3, 33, 64})
      for (int i = 0; i < (n < 2000 ? 4 : 1); ++i) {
        if (HasFailure()) return;
        compare(DType::float64, inner, n, at);
        compare_gradients(DType::float64, inner, n, at);
        compare_states(DType::float64, inner, n, at++);
      }
}

/// What is hidden is never a frame, nor anything else.
TEST_F(CudaHiddenAcross, PlantedInHiddenPlaces) {
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t n : {30, 1000, 2500}) {
      const std::int64_t inner = 96;
      Tensor x(t, {2, n, inner}), mask(DType::boolean, {2, n, inner});
      const auto is_shown = [&](std::int64_t i) { return i / inner % n >= 5 && i % 3 != 1; };
      mask.fill([&](std::int64_t i) { return is_shown(i) ? 1. : 0.; });
      x.fill([&](std::int64_t i) {
        return is_shown(i) ? value_of(Values::normal, i % inner, i / inner % n, n) : planted(i % inner, i / inner % n);
      });
      softfold::RowOptions cpu, cuda;
      cpu.axis = cuda.axis = 1;
      cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
      expect_same(x, cpu, cuda, std::to_string(n));
    }
}

}  // namespace
}  // namespace softfold_test
