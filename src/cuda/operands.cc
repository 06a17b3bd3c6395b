// Before a plan's kernels are launched: its operands lie where their views say.
#include "cuda/launch.hpp"
#include "cuda/shards.hpp"
#include "front/kl_problem.hpp"
#include "front/linear_problem.hpp"

#include <string>

namespace softfold {
inline namespace v0 {
namespace {

void check_pointer(Device device, const char* data) {
  if (data == nullptr) return;  // a tensor of no elements
  cudaPointerAttributes a{};
  cuda::check(cudaPointerGetAttributes(&a, data), "looking up a tensor's memory");
  if (a.type == cudaMemoryTypeUnregistered)
    throw Error(Code::device, "a tensor that is said to be on a CUDA device and lies in pageable host memory",
                "memory that the device can read", "copy the tensor to the device, or plan it on the CPU");
  if (a.type == cudaMemoryTypeDevice && device.kind == DeviceKind::cuda && a.device != device.id)
    throw Error(Code::device,
                "memory of CUDA device " + std::to_string(a.device) + " in a tensor that is said to be on device " +
                    std::to_string(device.id),
                "memory of the device that the tensor names",
                "name device " + std::to_string(a.device) + " in all tensors of the call");
}

void check_pointers(Device device, const MergeProblem::Operands& operands, int parts) {
  for (int i = 0; i < parts; ++i) check_pointer(device, operands.data[static_cast<std::size_t>(i)]);
}

}  // namespace

void check_cuda_memory(Device device, const Operand& o) {
  if (o.given) check_pointer(device, o.data);
}

void check_cuda_memory(Device device, const RowProblem& p) {
  for (const Operand& o : p.operands) check_cuda_memory(device, o);
}

void check_cuda_memory(Device device, const LossProblem& p) {
  check_cuda_memory(device, static_cast<const RowProblem&>(p));
  for (const Operand& o : p.more)
    if (o.given) check_pointer(device, o.data);
}

void check_cuda_memory(Device device, const LinearProblem& p) {
  check_cuda_memory(device, static_cast<const LossProblem&>(p));
  for (const Operand& o : p.linear)
    if (o.given) check_pointer(device, o.data);
}

void check_cuda_memory(Device device, const KlProblem& p) {
  check_cuda_memory(device, static_cast<const RowProblem&>(p));
  for (const Operand& o : p.more)
    if (o.given) check_pointer(device, o.data);
}

void check_cuda_memory(Device device, const TopkProblem& p) {
  check_cuda_memory(device, static_cast<const RowProblem&>(p));
  for (const Operand& o : p.more)
    if (o.given) check_pointer(device, o.data);
}

void check_cuda_memory(Device device, const SampleProblem& p) {
  check_cuda_memory(device, static_cast<const RowProblem&>(p));
  for (const Operand& o : p.more)
    if (o.given) check_pointer(device, o.data);
}

void check_cuda_memory(Device device, const MergeProblem& p) {
  if (p.value.view.given) check_pointers(device, p.value, p.parts);
  if (p.statistic.view.given) check_pointers(device, p.statistic, p.parts);
  if (p.out_value.view.given) check_pointers(device, p.out_value, p.op == Op::merge_blocks ? p.parts : 1);
  if (p.out_statistic.view.given) check_pointers(device, p.out_statistic, 1);
}

void check_cuda_memory(Device device, const AttentionProblem& p) {
  const auto check = [device](const auto&... operands) {
    ((operands.given ? check_pointer(device, operands.data) : void()), ...);
  };
  check(p.q, p.k, p.v, p.out, p.lse, p.state);
  check(p.sink, p.slopes, p.q_offsets, p.kv_offsets, p.kv_lengths, p.kv_starts, p.kv_index, p.mask, p.bias);
}

}  // namespace v0
}  // namespace softfold
