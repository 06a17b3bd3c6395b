// Ragged rows with masks, scales of their own, results of another dtype, or that lie as no vectors do: softmax,
// log_softmax, logsumexp and state.
#include "cuda/ragged_mixed.cuh"

#include "cuda/choose.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using State = fold::LogSumExp<float>::State;

template <int kLanes, int kCount>
using Softmax = SoftmaxPart<RaggedElements<kLanes, kCount>, RaggedLeaves::softmax>;
template <int kLanes, int kCount>
using LogSoftmax = SoftmaxPart<RaggedElements<kLanes, kCount>, RaggedLeaves::log_softmax>;
template <int kLanes, int kCount>
using OfRow = SoftmaxPart<RaggedElements<kLanes, kCount>, RaggedLeaves::row>;

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_single_mixed(p)) return why;
  if (p[Slot::mask].given || p[Slot::scales].given || refuses_vectors(p) != nullptr) return nullptr;
  return "plain rows are faster by vectors";
}

constexpr auto run = run_mixed<Softmax, LogSoftmax, OfRow>;
constexpr auto workspace = mixed_workspace<State>;

}  // namespace

const RowKernel softmax_ragged_mixed_kernel{"softmax_ragged_mixed", refuses, run, workspace, true};
const RowKernel fold_ragged_mixed_kernel{"fold_ragged_mixed", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
