// softmax_hidden_rows of bfloat16.
#include "cuda/softmax_hidden_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

template void launch_softmax_hidden_rows<fold::BFloat16>(const RowProblem&, Stream);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
