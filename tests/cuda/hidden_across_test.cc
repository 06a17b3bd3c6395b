// cpu == cuda, bit for bit: rows that lie side by side and of which something is hidden, with scales of their own or to
// another dtype.
#include "cuda/hidden.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

/// What hides elements, and how the operands that say so lie.
enum class Hides { mask, mask_of_all, mask_of_runs, mask_of_rows, lengths, both, causal, nothing, count };

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
        mask_(DType::boolean, shape_of(hides_ == Hides::mask_of_all ? 1 : outer_, mask_n(), mask_inner()),
              mask_strides(), static_cast<std::int64_t>(pick(at, 9, 3))),
        length_(pick(at, 10, 2) == 0 ? DType::int32 : DType::int64,
                shape_of(outer_, 1, pick(at, 11, 3) == 0 ? 1 : inner)),
        scales_(pick(at, 12, 2) == 0 ? DType::float32 : DType::float64,
                shape_of(pick(at, 19, 4) == 0 ? 1 : outer_, 1, pick(at, 20, 4) == 0 ? 1 : inner)) {
    mask_.fill([&](std::int64_t i) { return mask_at(i) ? 1. : 0.; });
    length_.fill([&](std::int64_t i) { return static_cast<double>(length_at(i)); });
    scales_.fill([](std::int64_t i) {
      if (i % 23 == 11) return i % 2 == 0 ? 0. : -0.;
      if (i % 41 == 7) return i % 2 == 0 ? NAN : -HUGE_VAL;
      if (i % 37 == 21) return i % 2 == 0 ? 1e-44 : HUGE_VAL;
      return (i % 2 != 0 ? -0.75 : 1.5) * static_cast<double>(1 + i % 4);
    });
  }

  std::vector<std::int64_t> shape() const { return shape_of(outer_, n_, inner_); }
  /// A tensor of these rows: the which-th of some that begin anywhere, with gaps of their own behind each run of
  /// neighbouring rows and behind all runs.
  Tensor tensor(DType t, std::size_t which) const {
    const auto any = [&](std::size_t i) { return pick(at_ + 977 * which, 30 + i, 7); };
    constexpr std::int64_t gaps[] = {0, 0, 0, 1, 2, 5, 8}, offsets[] = {0, 0, 1, 2, 3, 4, 7};
    const std::int64_t run = inner_ + gaps[any(0)], outer = n_ * run + gaps[any(1)];
    if (is_last()) return {t, shape(), {outer, 1, run}, offsets[any(2)]};
    return {t, shape(), {outer, run, 1}, offsets[any(2)]};
  }
  /// Of the i-th element in the shape's order.
  std::int64_t row_of(std::int64_t i) const { return is_last() ? i / n_ : i % inner_ + i / (n_ * inner_) * inner_; }
  std::int64_t index_of(std::int64_t i) const { return is_last() ? i % n_ : i / inner_ % n_; }
  bool is_shown(std::int64_t i) const {
    const std::int64_t row = row_of(i), outer = row / inner_, column = row % inner_, j = index_of(i);
    if (hides_ == Hides::causal) return j < column + 1 + n_ - inner_;
    if ((hides_ == Hides::lengths || hides_ == Hides::both) && j >= length_at(length_.shape()[2] == 1 ? outer : row))
      return false;
    const std::int64_t inner = mask_inner(), of = hides_ == Hides::mask_of_all ? 0 : outer, n = mask_n();
    return !has_mask() || mask_at((of * n + (n == 1 ? 0 : j)) * inner + (inner == 1 ? 0 : column));
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
           hides_ == Hides::mask_of_rows || hides_ == Hides::both;
  }
  std::vector<std::int64_t> shape_of(std::int64_t outer, std::int64_t n, std::int64_t inner) const {
    if (is_last()) return {outer, inner, n};
    return {outer, n, inner};
  }
  std::int64_t mask_inner() const { return hides_ == Hides::mask_of_runs ? 1 : inner_; }
  std::int64_t mask_n() const { return hides_ == Hides::mask_of_rows ? 1 : n_; }
  /// Masks lie side by side, with gaps or without, or are turned around, or run backwards.
  std::vector<std::int64_t> mask_strides() const {
    const std::int64_t inner = mask_inner(), n = mask_n(), run = inner + (pick(at_, 15, 3) == 0 ? 3 : 0),
                       outer = n * run + (pick(at_, 21, 3) == 0 ? 1 : 0);
    if (pick(at_, 14, 5) == 0) return {n * inner, 1, n};
    if (pick(at_, 14, 5) == 1) return {outer, -run, 1};
    return {outer, run, 1};
  }
  bool mask_at(std::int64_t i) const {
    const std::int64_t inner = mask_inner(), n = mask_n(), row = i % inner + i / (n * inner) * inner, j = i / inner % n;
    if (row % 9 == 4) return false;  // nothing is shown
    if (row % 9 == 5) return j >= n / 2;
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
  const bool log = pick(at, 3, 2) == 1, in_place = pick(at, 4, 4) == 0;
  Tensor x = rows.tensor(t, 0), y = rows.tensor(in_place ? t : other_of(t, at), 1);
  x.fill([&](std::int64_t i) { return value_of(v, rows.row_of(i), rows.index_of(i), n); });
  Tensor& result = in_place ? x : y;
  const std::string kernel =
      run_on_both(log ? Op::log_softmax : Op::softmax, {&x}, result, [&](bool gpu) { return rows.options(gpu); });
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
      << rows.describe() << " " << name_of(t) << " to " << name_of(result.dtype()) << (log ? " log" : "") << " values "
      << static_cast<int>(v) << " by " << kernel;
  if (t == DType::float64) {
    EXPECT_EQ(kernel == "softmax_double_rows", n <= 1024) << kernel << " " << rows.describe();
    return;
  }
  EXPECT_EQ(kernel, n <= 4096 ? "softmax_across_hidden" : "softmax_across_hidden_twice") << rows.describe();
}

void compare_states(DType t, std::int64_t inner, std::int64_t n, std::size_t at) {
  SideBySide rows(inner, n, at);
  const Values v = kAnyValues[pick(at, 0, std::size(kAnyValues))];
  const bool state = pick(at, 18, 3) == 0;
  Tensor x = rows.tensor(t, 0);
  const std::int64_t outer = rows.shape()[0];
  Tensor y = state ? Tensor(DType::float64, {outer, inner, 4}) : Tensor(other_of(t, at), {outer, inner});
  x.fill([&](std::int64_t i) { return value_of(v, rows.row_of(i), rows.index_of(i), n); });
  const std::string kernel =
      run_on_both(state ? Op::state : Op::logsumexp, {&x}, y, [&](bool gpu) { return rows.options(gpu); });
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(difference(y.host(), y.download(), y.size()), "")
      << rows.describe() << " " << name_of(t) << (state ? " state" : " logsumexp") << " values " << static_cast<int>(v)
      << " by " << kernel;
  const bool few_together = inner * static_cast<std::int64_t>(softfold::size_of(t)) <= 32 && n >= 128;
  if (t == DType::float64 || !few_together || kernel != "fold_any_rows")
    EXPECT_EQ(kernel, t == DType::float64 ? "fold_double_rows" : "fold_across_hidden") << rows.describe();
}

/// What is hidden of y and dy may be anything.
void compare_gradients(DType t, std::int64_t inner, std::int64_t n, std::size_t at) {
  SideBySide rows(inner, n, at);
  const Values v = kAnyValues[pick(at, 0, std::size(kAnyValues))];
  const bool log = pick(at, 3, 2) == 1;
  const std::size_t to = pick(at, 4, 5);  // dx, or in place of y or dy
  Tensor y = rows.tensor(t, 0), dy = rows.tensor(t, 1), dx = rows.tensor(to > 1 ? other_of(t, at) : t, 2);
  y.fill([&](std::int64_t i) { return value_of(v, rows.row_of(i), rows.index_of(i), n); });
  const softfold::View forward = y.view(false);
  softfold::plan(log ? Op::log_softmax : Op::softmax, {&forward, 1}, {&forward, 1}, rows.options(false)).run();
  y.upload();
  dy.fill([&](std::int64_t i) {
    return rows.is_shown(i) ? gradient_of(rows.row_of(i), rows.index_of(i)) : planted(rows.row_of(i), i);
  });
  Tensor& result = to == 0 ? dy : to == 1 ? y : dx;
  const std::string kernel = run_on_both(log ? Op::log_softmax_backward : Op::softmax_backward, {&y, &dy}, result,
                                         [&](bool gpu) { return rows.options(gpu); });
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
      << rows.describe() << " " << name_of(t) << " to " << name_of(result.dtype()) << (log ? " log" : "") << " values "
      << static_cast<int>(v) << " to " << to << " by " << kernel;
  if (t == DType::float64) {
    if (n <= 512) EXPECT_EQ(kernel, "backward_double_rows") << rows.describe();
    return;
  }
  if (n <= 4096) EXPECT_EQ(kernel, "backward_across_hidden") << rows.describe();
  if (n > 8192) EXPECT_EQ(kernel, "backward_across_hidden_twice") << rows.describe();
}

class CudaHiddenAcross : public CudaHidden {};

TEST_F(CudaHiddenAcross, Rows) {
  std::size_t at = 0;
  for (const std::int64_t n : {2, 3, 8, 21, 32, 33, 64, 100, 128, 257, 512, 1000, 1024})
    for (const std::int64_t inner : {2, 3, 32, 64, 100, 257})
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
        for (int i = 0; i < 2; ++i) {
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

/// What is hidden is never a frame, nor anything else; numbers far from all others that stand first do not slow down.
TEST_F(CudaHiddenAcross, PlantedInHiddenPlaces) {
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t n : {30, 1000, 2500, 5000})
      for (const double first : {double(NAN), -1e4}) {
        const std::int64_t inner = n < 2000 ? 96 : 12;
        Tensor x(t, {2, n, inner}), mask(DType::boolean, {2, n, inner});
        const auto is_shown = [&](std::int64_t i) { return i / inner % n >= 5 && i % 3 != 1; };
        mask.fill([&](std::int64_t i) { return is_shown(i) ? 1. : 0.; });
        x.fill([&](std::int64_t i) {
          if (is_shown(i)) return value_of(Values::normal, i % inner, i / inner % n, n);
          return i / inner % n == 0 ? first : planted(i % inner, i / inner % n);
        });
        softfold::RowOptions cpu, cuda;
        cpu.axis = cuda.axis = 1;
        cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
        expect_same(x, cpu, cuda, std::to_string(n));
        Tensor lse(DType::float32, {2, inner});
        run_on_both(Op::logsumexp, {&x}, lse, [&](bool gpu) { return gpu ? cuda : cpu; });
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        ASSERT_EQ(difference(lse.host(), lse.download(), lse.size()), "") << n << " " << name_of(t);
      }
}

/// Bytes of a mask other than 0 and 1, in words, apart, and the same for a run.
TEST_F(CudaHiddenAcross, MasksOfAnyByte) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const unsigned char byte : {0x02, 0x80, 0xFF})
      for (const std::int64_t gap : {0, 1})
        for (const std::int64_t of_mask : {1, 64}) {
          const std::int64_t n = 100;
          Tensor x(t, {2, n, 64}), mask(DType::boolean, {2, n, of_mask}, {n * (of_mask + gap), of_mask + gap, 1});
          mask.poison(byte);
          x.fill([&](std::int64_t i) { return value_of(Values::normal, i % 64, i / 64 % n, n); });
          softfold::RowOptions cpu, cuda;
          cpu.axis = cuda.axis = 1;
          cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
          expect_same(x, cpu, cuda, "byte " + std::to_string(byte));
        }
}

/// Lengths that only the device knows are clamped.
TEST_F(CudaHiddenAcross, LengthsOutsideTheRows) {
  const std::int64_t n = 300, inner = 40;
  for (const DType t : {DType::float32, DType::bfloat16}) {
    Tensor x(t, {1, n, inner}), clamped(DType::int64, {1, 1, inner}), wild(DType::int64, {1, 1, inner});
    const auto length_of = [&](std::int64_t i) { return i % 3 == 0 ? -5. - 1e15 : i % 3 == 1 ? n + 1e15 : 77.; };
    clamped.fill([&](std::int64_t i) { return std::clamp(length_of(i), 0., static_cast<double>(n)); });
    wild.fill(length_of);
    x.fill([&](std::int64_t i) { return value_of(Values::normal, i % inner, i / inner, n); });
    softfold::RowOptions cpu, cuda;
    cpu.axis = cuda.axis = 1;
    cpu.length = clamped.cpu(), cuda.length = wild.cuda();
    expect_same(x, cpu, cuda, "lengths");
  }
}

/// Dtypes that the kernels of this file do not take together.
TEST_F(CudaHiddenAcross, OtherDtypes) {
  const std::int64_t n = 70;
  for (const DType t : {DType::bfloat16, DType::float16}) {
    const DType other = t == DType::bfloat16 ? DType::float16 : DType::bfloat16;
    Tensor x(t, {2, n, 32}), y(other, {2, n, 32}), dy(DType::float32, {2, n, 32}), dx(t, {2, n, 32});
    x.fill([&](std::int64_t i) { return std::fabs(value_of(Values::normal, i % 32, i / 32 % n, n)) / 100.; });
    dy.fill([&](std::int64_t i) { return value_of(Values::normal, i % 32 + 5, i / 32 % n, n); });
    softfold::RowOptions o;
    o.axis = 1;
    run_on_both(Op::softmax, {&x}, y, [&](bool) { return o; });
    run_on_both(Op::softmax_backward, {&x, &dy}, dx, [&](bool) { return o; });
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(difference(y.host(), y.download(), y.size()), "") << name_of(t);
    EXPECT_EQ(difference(dx.host(), dx.download(), dx.size()), "") << name_of(t);
  }
}

}  // namespace
}  // namespace softfold_test
