// cross_entropy, entropy and their backward passes on the CPU.
#include "cpu/entropy_rows.hpp"
#include "cpu/loss_schedule.hpp"
#include "front/kernel.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

template <template <class> class RowOf>
void run(const LossProblem& p, const Context& context) {
  with_fold_type(p, [&]<class T>(T) { LossRun<T, RowOf>(p, context).run(); });
}

const char* refuses(const LossProblem&, const Context&) { return nullptr; }

constexpr Kernel<LossProblem> kCrossEntropy[] = {{"cross_entropy_rows", refuses, run<LossRow>, nullptr}};
constexpr Kernel<LossProblem> kCrossEntropyBackward[] = {
    {"cross_entropy_backward_rows", refuses, run<LossRow>, nullptr}};
constexpr Kernel<LossProblem> kEntropy[] = {{"entropy_rows", refuses, run<EntropyRow>, nullptr}};
constexpr Kernel<LossProblem> kEntropyBackward[] = {{"entropy_backward_rows", refuses, run<EntropyRow>, nullptr}};

}  // namespace
}  // namespace cpu

std::span<const Kernel<LossProblem>> cpu_loss_kernels(Op op) {
  switch (op) {
    case Op::cross_entropy: return cpu::kCrossEntropy;
    case Op::cross_entropy_backward: return cpu::kCrossEntropyBackward;
    case Op::entropy: return cpu::kEntropy;
    default: return cpu::kEntropyBackward;
  }
}

}  // namespace v0
}  // namespace softfold
