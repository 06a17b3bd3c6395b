// linear_cross_entropy: matrix products by cuBLASLt, the loss and its gradient by cross_entropy's own kernels. Mode
// fast: all logits at once, and their gradient in their place.
#include "cuda/linear.cuh"

#include "cuda/linear_lean.hpp"
#include "cuda/states.hpp"
#include "front/choice.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const LossKernel* loss_kernel(const LossProblem& p, const Context& context) {
  return first_able(p, cuda_loss_kernels(Op::cross_entropy), context);
}

class FastRun {
 public:
  FastRun(const LinearProblem& p, const Context& context, char* workspace)
      : p_(p),
        context_(context),
        parts_(workspace),
        all_{.p = p,
             .x = placed(parts_, p[LinearSlot::x], p.rows, p.depth),
             .classes = p.n,
             .stream = stream_of(context)},
        dx_(placed(parts_, p[LinearSlot::dx], p.rows, p.depth)) {
    all_.stride = LogitsBlock::stride_of(p, p.n);
    all_.room = parts_.bytes_for<char>(kProductRoom);
    const auto bytes = static_cast<std::size_t>(p.rows * all_.stride);
    all_.logits = parts_.bytes_for<char>(bytes);
    all_.gradients = p.softcap > 0 && p.has_gradient() ? parts_.bytes_for<char>(bytes) : all_.logits;
    loss_ = loss_problem();
    kernel_ = loss_kernel(loss_, context);
    const std::size_t own = kernel_->workspace(loss_, context);
    lent_ = {parts_.bytes_for<char>(own), own};
  }
  std::size_t bytes() const { return parts_.used(); }

  const char* refuses() {
    const char* why = all_.choose(dx_);
    return why != nullptr ? why : all_.refuses(dx_);
  }

  void run() {
    const Operand &x = p_[LinearSlot::x], &dx = p_[LinearSlot::dx];
    require(all_.choose(dx_));
    copy_rows(matrix_of(x, 0, p_.rows, p_.depth), all_.x, all_.stream);
    all_.fill();
    Context own = context_;
    own.workspace = &lent_;
    kernel_->run(loss_, own);
    if (!p_.has_gradient()) return;
    all_.remove_cap();
    if (dx.given && p_.rows > 0) {
      multiply(all_.dx(dx_, false), all_.with.dx, all_.room, all_.stream);
      copy_rows(dx_, matrix_of(dx, 0, p_.rows, p_.depth), all_.stream);
    }
    all_.put_class_gradients();
  }

 private:
  LossProblem loss_problem() const {
    LossProblem q = p_;
    q.op = Op::cross_entropy;
    q.outer_rank = 1;
    q.outer[0] = p_.rows;
    q[Slot::x] = all_.operand(all_.logits);
    if (p_.has_gradient()) q[Slot::y] = all_.operand(all_.gradients);
    return q;
  }

  const LinearProblem& p_;
  const Context& context_;
  Parts parts_;
  LogitsBlock all_;
  Matrix dx_;
  LossProblem loss_;
  const LossKernel* kernel_ = nullptr;
  Workspace lent_;
};

const char* refuses_operands(const LinearProblem& p) {
  const Operand &x = p[LinearSlot::x], &w = p[LinearSlot::weight];
  if (p.outer_rank > 1) return "rows do not lie at one stride";
  if (x.dtype != w.dtype) return "x and weight are of two dtypes";
  if (!is_matrix(x, p.rows, p.depth) || !is_matrix(w, p.n, p.depth)) return "x or weight has elements apart";
  const auto fits = [&](const Operand& o, std::int64_t rows) {
    const bool stored = o.dtype == x.dtype || (o.dtype == DType::float32 && !p.is_double());
    return !o.given || (stored && is_matrix(o, rows, p.depth));
  };
  if (!fits(p[LinearSlot::dx], p.rows) || !fits(p[LinearSlot::dweight], p.n))
    return "dx or dweight has elements apart, or another dtype than x and float32";
  return nullptr;
}

const char* refuses(const LinearProblem& p) {
  if (const char* why = refuses_products()) return why;
  if (const char* why = refuses_operands(p)) return why;
  return refuses_chunks(p);
}

const char* refuses_fast(const LinearProblem& p, const Context& context) {
  if (const char* why = refuses(p)) return why;
  if (p.mode != LinearMode::fast) return "holds all logits: mode fast";
  if (!has_device()) return nullptr;
  const DeviceOf device(p[LinearSlot::x].data);
  return FastRun(p, context, nullptr).refuses();
}

const char* refuses_lean(const LinearProblem& p, const Context& context) {
  if (const char* why = refuses(p)) return why;
  if (p.mode != LinearMode::lean) return "holds a block of logits at a time: mode lean";
  return lean_refuses(p, context);
}

std::size_t workspace_fast(const LinearProblem& p, const Context& context) {
  return FastRun(p, context, nullptr).bytes();
}

void run_fast(const LinearProblem& p, const Context& context) {
  const DeviceOf device(p[LinearSlot::x].data);
  const Scratch scratch(workspace_fast(p, context), context);
  FastRun(p, context, scratch.data()).run();
}

constexpr Kernel<LinearProblem> kLinear[] = {{"linear_cross_entropy_fast", refuses_fast, run_fast, workspace_fast},
                                             {"linear_cross_entropy_lean", refuses_lean, lean_run, lean_workspace}};

}  // namespace
}  // namespace cuda

std::span<const Kernel<LinearProblem>> cuda_linear_kernels() { return cuda::kLinear; }

}  // namespace v0
}  // namespace softfold
