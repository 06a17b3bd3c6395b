// linear_cross_entropy: matrix products by cuBLASLt, the loss and its gradient by the kernels of cross_entropy.
#include "cuda/linear.cuh"

#include "cuda/cublas_lt.hpp"
#include "cuda/elements.hpp"
#include "cuda/levels.cuh"
#include "cuda/states.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// The algorithm of a product is that for so many rows, whatever the batch.
constexpr std::int64_t kLikeRows = 8192;

std::int64_t bytes_of(const LinearProblem& p) { return static_cast<std::int64_t>(size_of(p[Slot::x].dtype)); }

const LossKernel* loss_kernel(const LossProblem& p, const Context& context) {
  for (const LossKernel& k : cuda_loss_kernels(Op::cross_entropy))
    if (k.refuses(p, context) == nullptr) return &k;
  return nullptr;
}

/// A vector a row (or a class) side by side, as a matrix.
Matrix matrix_of(const Operand& o, std::int64_t rows, std::int64_t columns) {
  const auto size = static_cast<std::int64_t>(size_of(o.dtype));
  const std::int64_t stride = rows > 1 ? o.strides[0] / size : columns;
  return {o.data, o.dtype, rows, columns, stride};
}

/// All logits at once, and their gradient in their place.
class FastRun {
 public:
  FastRun(const LinearProblem& p, const Context& context, char* workspace)
      : p_(p), context_(context), parts_(workspace), stream_(stream_of(context)) {
    // Rows of logits begin at multiples of 128 bytes, however many classes there are.
    stride_ = (p.n * bytes_of(p) + 127) / 128 * 128;
    room_ = parts_.bytes_for<char>(kProductRoom);
    const auto all = static_cast<std::size_t>(p.rows * stride_);
    logits_ = parts_.bytes_for<char>(all);
    gradients_ = p.softcap > 0 && p.has_gradient() ? parts_.bytes_for<char>(all) : logits_;
    loss_ = loss_problem();
    kernel_ = loss_kernel(loss_, context);
    const std::size_t bytes = kernel_->workspace(loss_, context);
    lent_ = {parts_.bytes_for<char>(bytes), bytes};
  }
  std::size_t bytes() const { return parts_.used(); }

  void run() {
    const Matrix x = matrix_of(p_[LinearSlot::x], p_.rows, p_.depth);
    const Matrix w = matrix_of(p_[LinearSlot::weight], p_.n, p_.depth);
    const Matrix logits = matrix(logits_), gradients = matrix(gradients_);
    if (p_.rows > 0) multiply({x, w, logits, Turn::none, Turn::transposed, kLikeRows, false}, room_, stream_);
    if (p_[LinearSlot::bias].given || p_.softcap > 0) finish();
    Context own = context_;
    own.workspace = &lent_;
    kernel_->run(loss_, own);
    if (p_.softcap > 0 && p_.has_gradient()) remove_cap();
    if (p_[LinearSlot::dx].given && p_.rows > 0)
      multiply(
          {gradients, w, matrix_of(p_[LinearSlot::dx], p_.rows, p_.depth), Turn::none, Turn::none, kLikeRows, false},
          room_, stream_);
    if (p_[LinearSlot::dweight].given) put_dweight(gradients, x);
    if (p_[LinearSlot::dbias].given) put_dbias();
  }

 private:
  Matrix matrix(char* data) const { return {data, p_[Slot::x].dtype, p_.rows, p_.n, stride_ / bytes_of(p_)}; }

  /// The cross-entropy of the logits, the gradient of which takes their place.
  LossProblem loss_problem() const {
    LossProblem q = p_;
    q.op = Op::cross_entropy;
    q.outer_rank = 1;
    q.outer[0] = p_.rows;
    const auto lie_at = [&](char* data) { return Operand{data, p_[Slot::x].dtype, true, bytes_of(p_), {stride_}}; };
    q[Slot::x] = lie_at(logits_);
    if (p_.has_gradient()) q[Slot::y] = lie_at(gradients_);
    return q;
  }

  template <class F>
  void with_logits(F&& f) const {
    if (p_.is_double()) return f.template operator()<double>();
    with_element(p_[Slot::x].dtype, f);
  }
  void finish() const {
    with_logits([&]<class E>() {
      launch("finish_logits", finish_logits<E>, {Run::blocks(p_.rows, p_.n), Run::kThreads}, stream_,
             reinterpret_cast<E*>(logits_), p_.n, stride_ / bytes_of(p_), p_[LinearSlot::bias], p_.softcap);
    });
  }
  void remove_cap() const {
    with_logits([&]<class E>() {
      launch("uncap", uncap<E>, {Run::blocks(p_.rows, p_.n), Run::kThreads}, stream_, reinterpret_cast<E*>(logits_),
             reinterpret_cast<E*>(gradients_), p_.n, stride_ / bytes_of(p_), p_.softcap);
    });
  }
  void put_dweight(const Matrix& gradients, const Matrix& x) const {
    const Operand& o = p_[LinearSlot::dweight];
    if (p_.rows > 0)
      return multiply({gradients, x, matrix_of(o, p_.n, p_.depth), Turn::transposed, Turn::none, 0, false}, room_,
                      stream_);
    const auto size = static_cast<std::size_t>(p_.depth) * size_of(o.dtype);
    check(cudaMemset2DAsync(o.data, static_cast<std::size_t>(p_.n > 1 ? o.strides[0] : 0) + (p_.n > 1 ? 0 : size), 0,
                            size, static_cast<std::size_t>(p_.n), stream_),
          "dweight");
  }
  void put_dbias() const {
    with_logits([&]<class E>() {
      launch("sum_columns", sum_columns<E>, {ceil_div(p_.n, 256), 256}, stream_, reinterpret_cast<const E*>(gradients_),
             p_.rows, p_.n, stride_ / bytes_of(p_), p_[LinearSlot::dbias]);
    });
  }

  const LinearProblem& p_;
  const Context& context_;
  Parts parts_;
  cudaStream_t stream_;
  std::int64_t stride_ = 0;
  char *room_ = nullptr, *logits_ = nullptr, *gradients_ = nullptr;
  LossProblem loss_;
  const LossKernel* kernel_ = nullptr;
  Workspace lent_;
};

/// Whether vectors lie one after the other, as a matrix product takes them.
bool is_matrix(const Operand& o, std::int64_t rows, std::int64_t columns) {
  const auto size = static_cast<std::int64_t>(size_of(o.dtype));
  return (columns == 1 || o.axis_stride == size) &&
         (rows <= 1 || (o.strides[0] >= columns * size && o.strides[0] % size == 0));
}

const char* refuses_operands(const LinearProblem& p) {
  const Operand &x = p[LinearSlot::x], &w = p[LinearSlot::weight], &dx = p[LinearSlot::dx],
                &dw = p[LinearSlot::dweight];
  if (p.outer_rank > 1) return "rows do not lie at one stride";
  if (x.dtype != w.dtype) return "x and weight are of two dtypes";
  if (!is_matrix(x, p.rows, p.depth) || !is_matrix(w, p.n, p.depth)) return "x or weight has elements apart";
  const auto fits = [&](const Operand& o, std::int64_t rows) {
    return !o.given ||
           (is_matrix(o, rows, p.depth) && (o.dtype == x.dtype || (o.dtype == DType::float32 && !p.is_double())));
  };
  if (!fits(dx, p.rows) || !fits(dw, p.n))
    return "dx or dweight has elements apart, or is neither of x's dtype nor float32";
  return nullptr;
}

const char* refuses_fast(const LinearProblem& p, const Context& context) {
  if (const char* why = refuses_products()) return why;
  if (const char* why = refuses_operands(p)) return why;
  if (p.mode != LinearMode::fast) return "holds all logits: mode fast";
  (void)context;
  return nullptr;
}

std::size_t workspace_fast(const LinearProblem& p, const Context& context) {
  return FastRun(p, context, nullptr).bytes();
}

void run_fast(const LinearProblem& p, const Context& context) {
  const DeviceOf device(p[LinearSlot::x].data);
  const Scratch scratch(workspace_fast(p, context), context);
  FastRun(p, context, scratch.data()).run();
}

constexpr Kernel<LinearProblem> kLinear[] = {{"linear_cross_entropy_fast", refuses_fast, run_fast, workspace_fast}};

}  // namespace
}  // namespace cuda

std::span<const Kernel<LinearProblem>> cuda_linear_kernels() { return cuda::kLinear; }

}  // namespace v0
}  // namespace softfold
