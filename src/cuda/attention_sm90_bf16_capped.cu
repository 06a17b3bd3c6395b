// Hopper's attention of bfloat16 with a soft cap.
#include "cuda/attention_sm90_launch.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

template void run_attention_sm90<fold::BFloat16, true>(const AttentionProblem&, const Context&);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
