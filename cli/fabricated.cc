#include "fabricated.hpp"

#include "arguments.hpp"

#include "softfold/error.hpp"

#include <algorithm>

namespace softfold::cli {

Fabricated::Fabricated(Op op, const std::vector<std::int64_t>& full, int axis, DType in, DType out, Device device,
                       std::optional<std::int64_t> k)
    : device_(device) {
  const int rank = static_cast<int>(full.size()), at = axis < 0 ? axis + rank : axis;
  std::vector<std::int64_t> rows = full;
  if (at >= 0 && at < rank) rows.erase(rows.begin() + at);
  std::vector<std::int64_t> four = rows;
  four.push_back(4);
  const std::vector<std::int64_t> without_last(full.begin(), full.end() - (full.empty() ? 0 : 1));
  const auto x = [&] { return add(in, full); };
  const auto y = [&] { return add(out, full); };
  const auto states = [&] { return add(DType::float64, four); };
  const auto lse = [&] { return add(in == DType::float64 ? in : DType::float32, without_last); };
  // In the order beside each value of Op.
  switch (op) {
    case Op::logsumexp: inputs_ = {x()}, outputs_ = {add(out, rows)}; break;
    case Op::state: inputs_ = {x()}, outputs_ = {states()}; break;
    case Op::softmax_backward:
    case Op::log_softmax_backward: inputs_ = {x(), x()}, outputs_ = {y()}; break;
    case Op::logsumexp_backward: inputs_ = {x(), states(), add(in, rows)}, outputs_ = {y()}; break;
    case Op::merge_states: inputs_ = {states(), states()}, outputs_ = {states()}; break;
    case Op::finish_softmax:
    case Op::finish_log_softmax: inputs_ = {x(), states()}, outputs_ = {y()}; break;
    case Op::finish_logsumexp: inputs_ = {states()}, outputs_ = {add(out, rows)}; break;
    case Op::merge_attention: inputs_ = {x(), lse(), x(), lse()}, outputs_ = {y(), lse()}; break;
    case Op::merge_blocks: inputs_ = {x(), lse(), x(), lse()}, outputs_ = {y(), y(), lse()}; break;
    case Op::attention: inputs_ = {x(), x(), x()}, outputs_ = {y()}; break;
    case Op::topk: {
      std::vector<std::int64_t> few = full;
      if (at >= 0 && at < rank) {
        std::int64_t& n = few[static_cast<std::size_t>(at)];
        n = k.value_or(std::min(kBest, n));
      }
      inputs_ = {x()}, outputs_ = {add(out, few), add(DType::int64, few)};
      break;
    }
    case Op::sample: inputs_ = {x()}, outputs_ = {add(DType::int64, rows)}; break;
    case Op::entropy: inputs_ = {x()}, outputs_ = {add(out, rows)}; break;
    case Op::entropy_backward: inputs_ = {x(), states(), add(out, rows)}, outputs_ = {y()}; break;
    case Op::kl_divergence: inputs_ = {x(), x()}, outputs_ = {add(out, rows)}; break;
    case Op::kl_divergence_backward:
      inputs_ = {x(), x(), states(), states(), add(out, rows)}, outputs_ = {y(), y()};
      break;
    case Op::cross_entropy: inputs_ = {x(), add(DType::int64, rows)}, outputs_ = {add(out, {})}; break;
    case Op::cross_entropy_backward:
      inputs_ = {x(), add(DType::int64, rows), states(), add(out, {})}, outputs_ = {y()};
      break;
    case Op::linear_cross_entropy: {
      const std::int64_t depth = full.empty() ? 0 : full.back();
      inputs_ = {x(), add(in, {kClasses, depth}), add(DType::int64, without_last)}, outputs_ = {add(out, {})};
      break;
    }
    default: inputs_ = {x()}, outputs_ = {y()}; break;
  }
}

View Fabricated::add(DType dtype, std::vector<std::int64_t> shape) {
  std::uint64_t bytes = size_of(dtype);
  for (const std::int64_t n : shape)
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(n), &bytes) || bytes > (std::uint64_t{1} << 58))
      throw Error(Code::shape, "the shape " + text_of(shape), "tensors of at most 2^58 bytes", "smaller sizes");
  shapes_.push_back(std::make_unique<std::vector<std::int64_t>>(std::move(shape)));
  const View view(reinterpret_cast<void*>(next_), dtype, *shapes_.back(), {}, device_);
  next_ += (bytes + 4095) / 4096 * 4096 + 4096;
  return view;
}

}  // namespace softfold::cli
