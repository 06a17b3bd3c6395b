// linear_cross_entropy on the CPU: the logits of a block of rows, their loss and gradient, and what the gradient gives.
#include "cpu/loss_schedule.hpp"
#include "cpu/product.hpp"
#include "front/linear_problem.hpp"
#include "softfold/fold/softcap.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

template <class T>
class LinearRun {
 public:
  LinearRun(const LinearProblem& p, const Context& context)
      : p_(p),
        context_(context),
        losses_(p.rows),
        logits_(std::min(p.rows, kRows) * p.n),
        gradients_(p.softcap > 0 && p.has_gradient() ? std::min(p.rows, kRows) * p.n : 0),
        dweight_(in_place()                     ? 0
                 : p[LinearSlot::dweight].given ? p.n * p.depth
                                                : 0),
        dbias_(p[LinearSlot::dbias].given ? p.n : 0) {}

  void run() {
    check_targets(p_);
    if (p_[LossSlot::status].given) *reinterpret_cast<std::int32_t*>(p_[LossSlot::status].data) = 0;
    share();
    if (p_[LinearSlot::dbias].given) std::fill_n(dbias_.data(), p_.n, 0.);
    for (std::int64_t r = 0; r < p_.rows; r += kRows) rows(r, std::min(kRows, p_.rows - r));
    if (p_[LinearSlot::dweight].given) put_dweight();
    if (p_[LinearSlot::dbias].given) put_dbias();
    if (p_.reduction == Reduction::none) return;
    const double total = sum_over(p_.rows, [&](std::int64_t r) { return losses_.data()[r]; });
    put_number(p_[LossSlot::loss], p_[LossSlot::loss].data, mean(total));
  }

 private:
  /// A multiple of kProductDepth: dweight's runs of products are those of all rows at once.
  static constexpr std::int64_t kRows = kProductDepth;

  /// Whether dweight can be added up where it shall lie.
  bool in_place() const {
    const Operand& o = p_[LinearSlot::dweight];
    return o.given && o.dtype == dtype_of<T>() && o.axis_stride == static_cast<std::int64_t>(sizeof(T)) &&
           o.strides[0] > 0 && o.strides[0] % static_cast<std::int64_t>(sizeof(T)) == 0;
  }
  T* dweight() const { return in_place() ? reinterpret_cast<T*>(p_[LinearSlot::dweight].data) : dweight_.data(); }
  std::int64_t dweight_stride() const {
    return in_place() ? p_[LinearSlot::dweight].strides[0] / static_cast<std::int64_t>(sizeof(T)) : p_.depth;
  }

  /// What all rows share: the number that a mean is divided by, and what gradients are multiplied by.
  void share() {
    const Operand &targets = p_[LossSlot::targets], &weight = p_[LossSlot::weight], &dloss = p_[LossSlot::dloss];
    denominator_ = sum_over(p_.rows, [&](std::int64_t r) {
      const std::int64_t t = integer_at(targets, p_.at(targets, r));
      if (t == p_.ignore_index) return fold::Sum<double>::identity();
      ++counted_;
      return weight.given
                 ? static_cast<double>(fold::narrow<T>(number_at(weight, weight.data + t * weight.axis_stride)))
                 : 1.;
    });
    factor_ = dloss.given && p_.reduction != Reduction::none ? number_at(dloss, dloss.data) : 1.;
    if (p_.reduction == Reduction::mean) factor_ = fold::Scalar<double>::div(factor_, denominator_);
  }
  double mean(double total) const {
    if (counted_ == 0)
      return p_.empty == Empty::nan && p_.reduction == Reduction::mean ? fold::canonical_nan<double>() : 0.;
    return fold::Scalar<double>::add(
        p_.reduction == Reduction::mean ? fold::Scalar<double>::div(total, denominator_) : total, 0.);
  }

  Operand matrix(T* data) const {
    return {
        reinterpret_cast<char*>(data), dtype_of<T>(), true, sizeof(T), {p_.n * static_cast<std::int64_t>(sizeof(T))}};
  }

  /// The cross-entropy of rows [first, first + count): a loss a row, and gradients with the factor that all rows share.
  LossProblem loss_of(std::int64_t first, std::int64_t count) {
    LossProblem b = p_;
    b.op = Op::cross_entropy;
    b.outer_rank = 1;
    b.rows = b.outer[0] = count;
    b.elements = count * p_.n;
    const auto shift = [&](auto& operands) {
      for (Operand& o : operands)
        if (o.given && first > 0) o.data += first * o.strides[0];
    };
    shift(b.operands);
    shift(b.more);
    b[Slot::x] = matrix(logits_.data());
    if (p_.has_gradient()) b[Slot::y] = matrix(p_.softcap > 0 ? gradients_.data() : logits_.data());
    b[LossSlot::status].given = false;
    if (p_.reduction == Reduction::none) return b;
    b.reduction = Reduction::none;
    b[LossSlot::loss] = {reinterpret_cast<char*>(losses_.data() + first), DType::float64, true, 0, {sizeof(double)}};
    b[LossSlot::dloss] = {reinterpret_cast<char*>(&factor_), DType::float64, p_.has_gradient(), 0, {0}};
    return b;
  }

  void rows(std::int64_t first, std::int64_t count) {
    const Operand &x = p_[LinearSlot::x], &w = p_[LinearSlot::weight];
    const char* at = first > 0 ? x.data + first * x.strides[0] : x.data;
    const Factor rows_of_x{at, x.dtype, count > 1 ? x.strides[0] : 0, x.axis_stride};
    Product<T>(rows_of_x, {w.data, w.dtype, w.strides[0], w.axis_stride}, count, p_.n, p_.depth, logits_.data(), p_.n,
               false)
        .run(context_);
    if (p_[LinearSlot::bias].given || p_.softcap > 0) finish_logits(count);
    cpu_loss_kernels(Op::cross_entropy)[0].run(loss_of(first, count), context_);
    if (!p_.has_gradient()) return;
    if (p_.softcap > 0) uncap(count);
    const T* g = p_.softcap > 0 ? gradients_.data() : logits_.data();
    const auto size = static_cast<std::int64_t>(sizeof(T)), line = p_.n * size;
    const auto* bytes = reinterpret_cast<const char*>(g);
    if (p_[LinearSlot::dx].given) put_dx({bytes, dtype_of<T>(), line, size}, first, count);
    if (p_[LinearSlot::dweight].given)
      Product<T>({bytes, dtype_of<T>(), size, line}, {at, x.dtype, x.axis_stride, rows_of_x.across}, p_.n, p_.depth,
                 count, dweight(), dweight_stride(), first > 0)
          .run(context_);
    if (p_[LinearSlot::dbias].given) add_dbias(g, count);
  }

  /// Calls body(row, first column, columns) over a block of rows of logits.
  template <class Body>
  void for_logits(std::int64_t count, const Body& body) {
    constexpr std::int64_t width = 1 << 14;
    const std::int64_t across = (p_.n + width - 1) / width;
    parallel_for(executor_of(context_), count * across, [&](std::int64_t task) {
      const std::int64_t j = task % across * width;
      body(task / across, j, std::min(width, p_.n - j));
    });
  }

  void finish_logits(std::int64_t count) {
    const Operand& bias = p_[LinearSlot::bias];
    const T cap = static_cast<T>(p_.softcap);
    for_logits(count, [&](std::int64_t row, std::int64_t j, std::int64_t n) {
      T* z = logits_.data() + row * p_.n + j;
      if (bias.given)
        with_dtype(bias.dtype, [&]<class S>(S) {
          const char* b = bias.data + j * bias.axis_stride;
          for (std::int64_t i = 0; i < n; ++i, b += bias.axis_stride)
            z[i] = fold::Scalar<T>::add(z[i], static_cast<T>(fold::widen(*reinterpret_cast<const S*>(b))));
        });
      if (cap > T(0))
        for (std::int64_t i = 0; i < n; ++i) z[i] = fold::soft_capped(z[i], cap);
    });
  }

  /// Gradients of what the cap gave to gradients of what it took.
  void uncap(std::int64_t count) {
    const T cap = static_cast<T>(p_.softcap);
    for_logits(count, [&](std::int64_t row, std::int64_t j, std::int64_t n) {
      const T* z = logits_.data() + row * p_.n + j;
      T* g = gradients_.data() + row * p_.n + j;
      for (std::int64_t i = 0; i < n; ++i) g[i] = fold::soft_cap_gradient(g[i], z[i], cap);
    });
  }

  void put_dx(const Factor& g, std::int64_t first, std::int64_t count) {
    const Operand &dx = p_[LinearSlot::dx], &w = p_[LinearSlot::weight];
    const Room<T> room(count * p_.depth);
    Product<T>(g, {w.data, w.dtype, w.axis_stride, w.strides[0]}, count, p_.depth, p_.n, room.data(), p_.depth, false)
        .run(context_);
    for (std::int64_t r = 0; r < count; ++r)
      put_line(dx, first + r > 0 ? dx.data + (first + r) * dx.strides[0] : dx.data, room.data() + r * p_.depth,
               p_.depth);
  }

  template <class From>
  static void put_line(const Operand& o, char* to, const From* from, std::int64_t n) {
    with_dtype(o.dtype, [&]<class S>(S) {
      for (std::int64_t i = 0; i < n; ++i, to += o.axis_stride) *reinterpret_cast<S*>(to) = fold::narrow<S>(from[i]);
    });
  }

  void put_dweight() {
    const Operand& o = p_[LinearSlot::dweight];
    if (p_.rows == 0)
      for (std::int64_t v = 0; v < p_.n; ++v) std::fill_n(dweight() + v * dweight_stride(), p_.depth, T(0));
    if (in_place()) return;
    constexpr std::int64_t classes = 1 << 8;
    parallel_for(executor_of(context_), (p_.n + classes - 1) / classes, [&](std::int64_t task) {
      for (std::int64_t v = task * classes; v < std::min(p_.n, (task + 1) * classes); ++v)
        put_line(o, o.data + v * o.strides[0], dweight_.data() + v * p_.depth, p_.depth);
    });
  }

  void add_dbias(const T* g, std::int64_t count) {
    constexpr std::int64_t width = 1 << 12;
    parallel_for(executor_of(context_), (p_.n + width - 1) / width, [&](std::int64_t task) {
      const std::int64_t j = task * width, n = std::min(width, p_.n - j);
      for (std::int64_t r = 0; r < count; ++r)
        for (std::int64_t i = 0; i < n; ++i)
          dbias_.data()[j + i] =
              fold::Scalar<double>::add(dbias_.data()[j + i], static_cast<double>(g[r * p_.n + j + i]));
    });
  }
  void put_dbias() { put_line(p_[LinearSlot::dbias], p_[LinearSlot::dbias].data, dbias_.data(), p_.n); }

  const LinearProblem& p_;
  const Context& context_;
  Room<double> losses_;
  Room<T> logits_, gradients_, dweight_;
  Room<double> dbias_;
  double denominator_ = 0, factor_ = 1;
  std::int64_t counted_ = 0;
};

void run(const LinearProblem& p, const Context& context) {
  with_fold_type(p, [&]<class T>(T) { LinearRun<T>(p, context).run(); });
}

const char* refuses(const LinearProblem& p, const Context&) {
  return p.outer_rank > 1 ? "rows do not lie at one stride" : nullptr;
}

constexpr Kernel<LinearProblem> kLinear[] = {{"linear_cross_entropy_rows", refuses, run, nullptr}};

}  // namespace
}  // namespace cpu

std::span<const Kernel<LinearProblem>> cpu_linear_kernels() { return cpu::kLinear; }

}  // namespace v0
}  // namespace softfold
