// The largest elements of the rows that are sampled from, and their log-probabilities: the draw, then topk of the raw
// rows or of what the filters left.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/sample_row.cuh"
#include "cuda/states.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// What the logits of each row that is drawn from are multiplied by.
static __global__ void __launch_bounds__(128) put_scales(const __grid_constant__ SampleProblem p, double* scales) {
  begin_in_order();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.rows) return;
  const Draw draw(SampleRow(p, index), index);
  scales[index] = draw.sound() ? draw.scaled().value : fold::canonical_nan<double>();
}

/// After topk, a thread a row: an element of -inf has no place among the largest, and of a row without a distribution
/// none has; at temperature 0 what is drawn from is one element. values: those of the entries.
static __global__ void __launch_bounds__(128) finish_top(const __grid_constant__ SampleProblem p, const float* values) {
  begin_in_order();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.rows) return;
  const SampleRow row(p, index);
  const Draw draw(row, index);
  const bool sampled = p.of == Distribution::sampled, lost = sampled && !draw.sound();
  const std::int64_t token = row.integer(SampleSlot::tokens, -1);
  const bool point = sampled && !lost && draw.greedy() && token >= 0;
  const Operand &tokens = p[SampleSlot::top_tokens], &lps = p[SampleSlot::top_log_probabilities];
  for (std::int64_t j = 0; j < p.top; ++j) {
    const bool none = lost || (point ? j > 0 : values[index * p.top + j] == -fold::infinity<float>());
    if (none) put_integer(tokens.dtype, tokens.data + row.place.offset(tokens) + j * tokens.axis_stride, -1);
    if (none || point)
      put(lps.dtype, lps.data + row.place.offset(lps) + j * lps.axis_stride,
          lost   ? fold::canonical_nan<float>()
          : none ? -fold::infinity<float>()
                 : 0.F);
  }
}

/// A problem of each step. Where elements were taken away the steps meet in a tensor of x's shape, and where rows have
/// temperatures of their own in one of their scales.
class SampleTop {
 public:
  SampleTop(const SampleProblem& p, const Context& context) : p_(p), draw_(p), context_(context) {
    for (const SampleSlot s : {SampleSlot::top_tokens, SampleSlot::top_log_probabilities}) draw_[s].given = false;
    draw_.top = 0;
    static_cast<RowProblem&>(topk_) = p;
    topk_.op = Op::topk;
    topk_.k = p.top;
    topk_.sorted = true;
    for (const Slot s : {Slot::y, Slot::dy, Slot::row, Slot::states}) topk_[s].given = false;
    for (Operand& o : topk_.more) o.given = false;
    topk_[TopkSlot::values] = a_row(DType::float32, p.top);
    topk_[TopkSlot::indices] = p[SampleSlot::top_tokens];
    topk_[TopkSlot::log_probabilities] = p[SampleSlot::top_log_probabilities];
    if (p.of == Distribution::sampled) take_of_filtered();
    draws_ = kernel_for(draw_, cuda_sample_kernels());
    takes_ = kernel_for(topk_, cuda_topk_kernels());
  }
  bool is_possible() const { return draws_ != nullptr && takes_ != nullptr; }

  void lay_out(Parts& parts) {
    values_ = parts.take<float>(p_.rows * p_.top);
    topk_[TopkSlot::values].data = reinterpret_cast<char*>(values_);
    if (own_scales_) {
      scales_ = parts.take<double>(p_.rows);
      topk_[Slot::scales].data = reinterpret_cast<char*>(scales_);
    }
    if (own_filtered_) {
      Operand& filtered = draws_again_ ? draw_again_[SampleSlot::masked] : draw_[SampleSlot::masked];
      filtered.data = topk_[Slot::x].data = parts.bytes_for<char>(static_cast<std::size_t>(p_.rows * p_.n) * 4);
    }
    // One after the other the steps may have the same memory.
    const auto size = [&](const auto& p, const auto* k) {
      return k->workspace == nullptr ? 0 : k->workspace(p, context_);
    };
    lent_.bytes = std::max(size(draw_, draws_), size(topk_, takes_));
    if (draws_again_) lent_.bytes = std::max(lent_.bytes, size(draw_again_, draws_));
    lent_.data = parts.bytes_for<char>(lent_.bytes);
  }

  void run() {
    const Stream stream = stream_of(context_);
    const Grid a_thread_a_row{ceil_div(p_.rows, kThreads), kThreads};
    Context own = context_;
    own.workspace = &lent_;
    draws_->run(draw_, own);
    if (draws_again_) draws_->run(draw_again_, own);
    if (own_scales_) launch("put_scales", put_scales, a_thread_a_row, stream, p_, scales_);
    takes_->run(topk_, own);
    launch("finish_top", finish_top, a_thread_a_row, stream, p_, values_);
  }

 private:
  template <class Problem>
  const Kernel<Problem>* kernel_for(const Problem& p, std::span<const Kernel<Problem>> kernels) const {
    for (const auto& k : kernels)
      if (k.refuses(p, context_) == nullptr) return &k;
    return nullptr;
  }

  /// `count` numbers a row, side by side, rows one after the other.
  Operand a_row(DType t, std::int64_t count) const {
    const auto size = static_cast<std::int64_t>(size_of(t));
    Operand o{nullptr, t, true, size, {}};
    std::int64_t stride = count * size;
    for (int d = p_.outer_rank - 1; d >= 0; --d) {
      const auto at = static_cast<std::size_t>(d);
      o.strides[at] = stride;
      stride *= p_.outer[at];
    }
    return o;
  }

  void take_of_filtered() {
    const Operand& masked = p_[SampleSlot::masked];
    Operand& x = topk_[Slot::x];
    x = masked;
    own_filtered_ = !masked.given || masked.dtype != DType::float32;
    if (own_filtered_) {
      x = a_row(DType::float32, p_.n);
      draws_again_ = masked.given;
      if (draws_again_) {  // the same draw, for what the filters left in float32
        draw_again_ = draw_;
        for (const SampleSlot s : {SampleSlot::log_probability, SampleSlot::rank}) draw_again_[s].given = false;
        draw_again_[Slot::y].given = false;
        draw_again_[SampleSlot::masked] = x;
      } else {
        draw_[SampleSlot::masked] = x;
      }
    }
    topk_.causal = false;
    for (const Slot s : {Slot::mask, Slot::length, Slot::scales}) topk_[s].given = false;
    own_scales_ = p_[SampleSlot::temperatures].given || p_[Slot::scales].given;
    topk_.scale = own_scales_ || p_.temperature == 0. ? 1. : p_.scale / p_.temperature;
    if (own_scales_) topk_[Slot::scales] = a_row(DType::float64, 1);
  }

  const SampleProblem& p_;
  SampleProblem draw_, draw_again_;
  TopkProblem topk_;
  const Context& context_;
  const Kernel<SampleProblem>* draws_ = nullptr;
  const Kernel<TopkProblem>* takes_ = nullptr;
  bool draws_again_ = false, own_filtered_ = false, own_scales_ = false;
  float* values_ = nullptr;
  double* scales_ = nullptr;
  Workspace lent_{};
};

inline const char* refuses_top(const SampleProblem& p, const Context& context) {
  if (!p[SampleSlot::top_tokens].given) return "no top_tokens are asked for";
  return SampleTop(p, context).is_possible() ? nullptr : "no kernel draws from rows like these, or takes of them";
}
inline std::size_t top_workspace(const SampleProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  Parts parts(nullptr);
  SampleTop(p, context).lay_out(parts);
  return parts.used();
}
inline void run_top(const SampleProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(top_workspace(p, context), context);
  Parts parts(scratch.data());
  SampleTop steps(p, context);
  steps.lay_out(parts);
  steps.run();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
