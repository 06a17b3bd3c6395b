// plan(): a problem is built, the backend's table is asked, the first kernel without an objection is bound.
#include "softfold/softfold.hpp"

#include "front/advice.hpp"
#include "front/choice.hpp"
#include "front/kl_problem.hpp"
#include "front/linear_problem.hpp"
#include "front/outside.hpp"
#include "front/plan_build.hpp"
#include "softfold/float_env.hpp"

#include <cstdio>
#include <cstdlib>
#include <new>

namespace softfold {
inline namespace v0 {
namespace {

constexpr bool is_row_op(Op op) { return op <= Op::finish_logsumexp && op != Op::merge_states; }
constexpr bool is_merge_op(Op op) {
  return op == Op::merge_states || op == Op::merge_attention || op == Op::merge_blocks;
}

constexpr bool is_cross_entropy(Op op) { return op == Op::cross_entropy || op == Op::cross_entropy_backward; }
constexpr bool is_entropy(Op op) { return op == Op::entropy || op == Op::entropy_backward; }
constexpr bool is_kl(Op op) { return op == Op::kl_divergence || op == Op::kl_divergence_backward; }

template <class Problem>
std::span<const Kernel<Problem>> cpu_kernels(Op op) {
  if constexpr (std::is_same_v<Problem, RowProblem>) return cpu_row_kernels(op);
  if constexpr (std::is_same_v<Problem, MergeProblem>) return cpu_merge_kernels(op);
  if constexpr (std::is_same_v<Problem, AttentionProblem>) return cpu_attention_kernels();
  if constexpr (std::is_same_v<Problem, LossProblem>) return cpu_loss_kernels(op);
  if constexpr (std::is_same_v<Problem, TopkProblem>) return cpu_topk_kernels();
  if constexpr (std::is_same_v<Problem, SampleProblem>) return cpu_sample_kernels();
  if constexpr (std::is_same_v<Problem, LinearProblem>) return cpu_linear_kernels();
  if constexpr (std::is_same_v<Problem, KlProblem>) return cpu_kl_kernels(op);
}

#if defined(SOFTFOLD_WITH_CUDA)
template <class Problem>
std::span<const Kernel<Problem>> cuda_kernels(Op op) {
  if constexpr (std::is_same_v<Problem, RowProblem>) return cuda_row_kernels(op);
  if constexpr (std::is_same_v<Problem, MergeProblem>) return cuda_merge_kernels(op);
  if constexpr (std::is_same_v<Problem, AttentionProblem>) return cuda_attention_kernels();
  if constexpr (std::is_same_v<Problem, LossProblem>) return cuda_loss_kernels(op);
  if constexpr (std::is_same_v<Problem, TopkProblem>) return cuda_topk_kernels();
  if constexpr (std::is_same_v<Problem, SampleProblem>) return cuda_sample_kernels();
  if constexpr (std::is_same_v<Problem, LinearProblem>) return cuda_linear_kernels();
  if constexpr (std::is_same_v<Problem, KlProblem>) return cuda_kl_kernels(op);
}
#endif

template <class Problem>
std::span<const Kernel<Problem>> kernels_for(Op op, Device device) {
  if (!is_on_cuda(device)) return cpu_kernels<Problem>(op);
#if defined(SOFTFOLD_WITH_CUDA)
  return cuda_kernels<Problem>(op);
#else
  return {};
#endif
}

/// Whether rows are ragged, which need not cover all of x.
template <class Problem>
bool is_ragged(const Problem& p) {
  constexpr bool may_be =
      std::is_same_v<Problem, RowProblem> || std::is_same_v<Problem, LossProblem> || std::is_same_v<Problem, KlProblem>;
  if constexpr (may_be) return p[Slot::offsets].given;
  return false;
}
/// The rest of a result of x's shape, which no kernel of theirs comes to.
void fill_outside(const RowProblem& p, [[maybe_unused]] Device device, [[maybe_unused]] const Context& context) {
  if (!p[Slot::y].given) return;
#if defined(SOFTFOLD_WITH_CUDA)
  if (is_on_cuda(device)) return cuda_fill_outside(p, context);
#endif
  cpu_fill_outside(p);
}
void fill_outside(const KlProblem& p, Device device, const Context& context) {
  fill_outside(static_cast<const RowProblem&>(p), device, context);
  fill_outside(rows_of_q(p), device, context);
}
template <class Problem>
void fill_outside(const Problem&, Device, const Context&) requires(!std::is_base_of_v<RowProblem, Problem>) {}

/// What a Plan holds behind its opaque bytes.
template <class Problem>
struct Bound {
  Op op;
  Device device;
  const Kernel<Problem>* kernel;
  Context context;
  Problem problem;
};

template <class Problem>
Error no_kernel(const Bound<Problem>& b, std::span<const Kernel<Problem>> all) {
  std::string reasons;
  for (const auto& k : all)
    reasons += (reasons.empty() ? "" : "; ") + std::string(k.name) + ": " + why_not(k, b.problem, b.context);
  if (reasons.empty()) reasons = "no kernel of this backend";
  std::string fix;
  if constexpr (requires { b.problem.rung; }) {
    Problem of_any_rung = b.problem;
    of_any_rung.rung = Rung::automatic;
    if (b.problem.rung != Rung::automatic && first_able(of_any_rung, all, b.context) != nullptr)
      fix = leave_at_default("rung");
  }
  return Error(Code::unsupported, std::string(name_of(b.op)) + " as asked", reasons, fix);
}

template <class Problem>
void choose(Bound<Problem>& b) {
  const auto all = kernels_for<Problem>(b.op, b.device);
  b.kernel = first_able(b.problem, all, b.context);
  if (b.kernel == nullptr) throw no_kernel(b, all);
  static const bool verbose = [] {
    const char* v = std::getenv("SOFTFOLD_VERBOSE");
    return v != nullptr && std::string_view(v) == "dispatch";
  }();
  if (!verbose) return;
  for (const auto& k : all) {
    if (&k == b.kernel) break;
    std::fprintf(stderr, "softfold: %s: not %s: %s\n", name_of(b.op).data(), k.name, why_not(k, b.problem, b.context));
  }
  std::fprintf(stderr, "softfold: %s: %s\n", name_of(b.op).data(), b.kernel->name);
}

[[noreturn]] void refuse_op(Op op, const char* options) {
  if (op > kLastOp)
    throw Error(Code::unsupported, "operation number " + std::to_string(static_cast<int>(op)), "the values of Op");
  throw Error(Code::unsupported, std::string(name_of(op)) + " with " + options,
              "operations that take them: softfold.hpp says which");
}

/// Operations on states and on parts have nothing to apply row options to; what would be ignored is refused by name.
/// (What an empty row becomes asks for nothing there.) A rung that an operation does not have is unsupported, as
/// elsewhere.
void refuse_row_options(Op op, const RowOptions& o) {
  const std::pair<bool, const char*> given[] = {{o.axis != -1, "axis"},         {o.scale != 1, "scale"},
                                                {o.scales.given(), "scales"},   {o.length.given(), "lengths"},
                                                {o.offsets.given(), "offsets"}, {o.mask.given(), "mask"},
                                                {o.causal, "causal"},           {o.rung != Rung::automatic, "rung"}};
  for (const auto& [is_given, name] : given)
    if (is_given)
      throw Error(name == std::string_view("rung") ? Code::unsupported : Code::option,
                  std::string(name) + " for " + std::string(name_of(op)),
                  "none of the row options: states carry their scale, and what did not exist is not in them",
                  leave_at_default(name));
}

/// Work is divided by what an executor of the caller's says of itself.
void check_executor(const Context& context) {
  if (context.cpu == nullptr || context.cpu->concurrency() >= 1) return;
  throw Error(Code::option, "an executor of concurrency " + std::to_string(context.cpu->concurrency()),
              "1 or more: how many tasks can run at once", "serial_executor()");
}

}  // namespace

bool is_left_out(const char* kernel) {
  static const bool asked = std::getenv("SOFTFOLD_WITHOUT") != nullptr;
  const char* v = asked ? std::getenv("SOFTFOLD_WITHOUT") : nullptr;
  if (v == nullptr || *v == '\0') return false;
  return ("," + std::string(v) + ",").find("," + std::string(kernel) + ",") != std::string::npos;
}

bool is_on_cuda(Device device) {
  if (device.kind == DeviceKind::cpu) return false;
#if defined(SOFTFOLD_WITH_CUDA)
  if (device.kind == DeviceKind::cuda || device.kind == DeviceKind::cuda_managed) return true;
  constexpr const char *allowed = "CPU (1) and CUDA (2, managed 13) tensors", *fix = "copy the data to one of them";
#else
  constexpr const char *allowed = "CPU tensors: this build has no CUDA backend",
                       *fix = "build with nvcc, or copy the data to the host";
#endif
  throw Error(Code::unsupported, "tensors on device kind " + std::to_string(static_cast<int>(device.kind)), allowed,
              fix);
}

/// Reads and writes a Plan's storage. The families of plans differ by their op alone.
class PlanAccess {
 public:
  template <class Problem>
  static Bound<Problem>& emplace(Plan& plan) {
    static_assert(sizeof(Bound<Problem>) <= sizeof(plan.storage_) && std::is_trivially_copyable_v<Bound<Problem>>);
    return *new (plan.storage_) Bound<Problem>;  // default-initialised: only what an operation uses is written
  }
  template <class Problem>
  static const Bound<Problem>& get(const Plan& plan) {
    return *std::launder(reinterpret_cast<const Bound<Problem>*>(plan.storage_));
  }
  template <class Visit>
  static auto visit(const Plan& plan, Visit&& f) {
    const Op op = *std::launder(reinterpret_cast<const Op*>(plan.storage_));
    if (op == Op::attention) return f(get<AttentionProblem>(plan));
    if (is_cross_entropy(op) || is_entropy(op)) return f(get<LossProblem>(plan));
    if (op == Op::topk) return f(get<TopkProblem>(plan));
    if (op == Op::sample) return f(get<SampleProblem>(plan));
    if (op == Op::linear_cross_entropy) return f(get<LinearProblem>(plan));
    if (is_kl(op)) return f(get<KlProblem>(plan));
    return is_merge_op(op) ? f(get<MergeProblem>(plan)) : f(get<RowProblem>(plan));
  }

  /// The one way to make a Plan: it is filled where the caller receives it.
  template <class Problem, class Build>
  static Plan make(Op op, const View& first, const Context& context, Build&& build) {
    check_executor(context);
    Plan result;
    auto& b = emplace<Problem>(result);
    b.op = op;
    b.context = context;
    build(b.problem);
    b.device = first.device;
    choose(b);
    return result;
  }
};

Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const RowOptions& options,
          const Context& context) {
  if (is_merge_op(op) || op == Op::finish_logsumexp) refuse_row_options(op, options);
  if (is_merge_op(op)) return plan(op, inputs, outputs, MergeOptions{}, context);
  const auto with_rows = [&](auto own) {
    own.rows = options;
    return plan(op, inputs, outputs, own, context);
  };
  if (is_cross_entropy(op)) return with_rows(CrossEntropyOptions{});
  if (is_entropy(op)) return with_rows(EntropyOptions{});
  if (is_kl(op)) return with_rows(KlDivergenceOptions{});
  if (op == Op::topk) return with_rows(TopkOptions{});
  if (op == Op::sample) return with_rows(SampleOptions{});
  if (op == Op::linear_cross_entropy) {
    LinearCrossEntropyOptions own;
    own.loss.rows = options;
    return plan(op, inputs, outputs, own, context);
  }
  if (!is_row_op(op)) refuse_op(op, "row options");
  if (inputs.empty()) throw Error(Code::shape, "no inputs", "the inputs of " + std::string(name_of(op)));
  return PlanAccess::make<RowProblem>(op, inputs[0], context,
                                      [&](RowProblem& p) { build_rows(p, op, inputs, outputs, options); });
}

Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const MergeOptions& options,
          const Context& context) {
  if (!is_merge_op(op)) refuse_op(op, "merge options");
  if (inputs.empty()) throw Error(Code::shape, "no inputs", "the inputs of " + std::string(name_of(op)));
  return PlanAccess::make<MergeProblem>(op, inputs[0], context,
                                        [&](MergeProblem& p) { build_merge(p, op, inputs, outputs, options); });
}

Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const CrossEntropyOptions& options,
          const Context& context) {
  if (!is_cross_entropy(op)) refuse_op(op, "cross-entropy options");
  if (inputs.empty()) throw Error(Code::shape, "no inputs", "the inputs of " + std::string(name_of(op)));
  return PlanAccess::make<LossProblem>(op, inputs[0], context,
                                       [&](LossProblem& p) { build_loss(p, op, inputs, outputs, options); });
}

Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const EntropyOptions& options,
          const Context& context) {
  if (!is_entropy(op)) refuse_op(op, "entropy options");
  if (inputs.empty()) throw Error(Code::shape, "no inputs", "the inputs of " + std::string(name_of(op)));
  return PlanAccess::make<LossProblem>(op, inputs[0], context,
                                       [&](LossProblem& p) { build_entropy(p, op, inputs, outputs, options); });
}

Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const KlDivergenceOptions& options,
          const Context& context) {
  if (!is_kl(op)) refuse_op(op, "divergence options");
  if (inputs.empty()) throw Error(Code::shape, "no inputs", "the inputs of " + std::string(name_of(op)));
  return PlanAccess::make<KlProblem>(op, inputs[0], context,
                                     [&](KlProblem& p) { build_kl(p, op, inputs, outputs, options); });
}

Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const TopkOptions& options,
          const Context& context) {
  if (op != Op::topk) refuse_op(op, "topk options");
  if (inputs.empty()) throw Error(Code::shape, "no inputs", "the inputs of topk");
  return PlanAccess::make<TopkProblem>(op, inputs[0], context,
                                       [&](TopkProblem& p) { build_topk(p, inputs, outputs, options); });
}

Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const SampleOptions& options,
          const Context& context) {
  if (op != Op::sample) refuse_op(op, "sample options");
  if (inputs.empty()) throw Error(Code::shape, "no inputs", "the inputs of sample");
  return PlanAccess::make<SampleProblem>(op, inputs[0], context,
                                         [&](SampleProblem& p) { build_sample(p, inputs, outputs, options); });
}

Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const LinearCrossEntropyOptions& options,
          const Context& context) {
  if (op != Op::linear_cross_entropy) refuse_op(op, "linear cross-entropy options");
  if (inputs.empty()) throw Error(Code::shape, "no inputs", "the inputs of linear_cross_entropy");
  return PlanAccess::make<LinearProblem>(op, inputs[0], context,
                                         [&](LinearProblem& p) { build_linear(p, inputs, outputs, options); });
}

Plan plan(Op op, std::span<const View> inputs, std::span<const View> outputs, const AttentionOptions& options,
          const Context& context) {
  if (op != Op::attention) refuse_op(op, "attention options");
  if (inputs.empty()) throw Error(Code::shape, "no inputs", "the inputs of attention");
  return PlanAccess::make<AttentionProblem>(op, inputs[0], context,
                                            [&](AttentionProblem& p) { build_attention(p, inputs, outputs, options); });
}

void Plan::run() const {
  PlanAccess::visit(*this, [](const auto& b) {
    // Of no rows there is still a sum, and a status.
    const bool has_work = b.problem.rows > 0 || is_cross_entropy(b.op) || b.op == Op::linear_cross_entropy;
    const bool ragged = is_ragged(b.problem);
    if (!has_work && !ragged) return;
    const FloatEnv exact;  // of CUDA, too, scales and their like are found on the host
#if defined(SOFTFOLD_WITH_CUDA)
    if (b.device.kind != DeviceKind::cpu) check_cuda_memory(b.device, b.problem);
#endif
    const bool fills = ragged && !(has_work && b.kernel->fills_outside), on_cpu = b.device.kind == DeviceKind::cpu;
    if (fills && !on_cpu) fill_outside(b.problem, b.device, b.context);
    if (has_work) b.kernel->run(b.problem, b.context);
    if (fills && on_cpu) fill_outside(b.problem, b.device, b.context);  // of data that the kernel has refused nothing
  });
}

std::string_view Plan::kernel() const {
  return PlanAccess::visit(*this, [](const auto& b) { return std::string_view(b.kernel->name); });
}

std::vector<std::pair<std::string, std::string>> Plan::rejected() const {
  const FloatEnv environment;
  return PlanAccess::visit(*this, [](const auto& b) {
    std::vector<std::pair<std::string, std::string>> out;
    for (const auto& k : kernels_for<std::remove_cvref_t<decltype(b.problem)>>(b.op, b.device)) {
      if (&k == b.kernel) continue;
      const char* reason = why_not(k, b.problem, b.context);
      out.emplace_back(k.name,
                       reason != nullptr ? reason : "able, but " + std::string(b.kernel->name) + " is preferred");
    }
    return out;
  });
}

std::size_t Plan::workspace_bytes() const {
  const FloatEnv environment;  // as run() asks
  return PlanAccess::visit(*this, [](const auto& b) {
    return b.kernel->workspace != nullptr ? b.kernel->workspace(b.problem, b.context) : std::size_t{0};
  });
}

}  // namespace v0
}  // namespace softfold
