// merge_attention and merge_blocks on the CPU: parts of rows that others computed, brought to one normalisation.
#include "cpu/merge_kernels.hpp"
#include "cpu/merge_ops.hpp"
#include "cpu/merge_rows.hpp"

#include <hwy/cache_control.h>
#include <cstring>

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

/// Elements that are gathered at a time where operands are strided.
constexpr std::int64_t kGathered = 256;

double read_float(DType t, const char* at, int i) {
  if (t == DType::float64) return reinterpret_cast<const double*>(at)[i];
  return static_cast<double>(reinterpret_cast<const float*>(at)[i]);
}

void write_float(DType t, char* at, int i, double value) {
  if (t == DType::float64) {
    reinterpret_cast<double*>(at)[i] = fold::canonical(value);
  } else {
    reinterpret_cast<float*>(at)[i] = fold::narrow<float>(value);
  }
}

void fill(char* y, DType t, std::int64_t stride, std::int64_t n, double value) {
  with_dtype(t, [&]<class S>(S) {
    const S v = fold::narrow<S>(value);
    for (std::int64_t i = 0; i < n; ++i) std::memcpy(y + i * stride, &v, sizeof v);
  });
}

void copy_strided(const char* from, std::int64_t from_stride, char* to, std::int64_t to_stride, std::size_t size,
                  std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, size);
}

/// One row: the parts' shares, and its values piece by piece.
class MergedRow {
 public:
  MergedRow(const MergeProblem& p, const MergeOps& ops, const MergeCursor& row, bool stream)
      : p_(p), ops_(ops), stream_(stream) {
    const bool two = p.base == LogBase::two;
    const double least = p.value.view.dtype == DType::float64 ? fold::Real<double>::kSmallest
                                                              : static_cast<double>(fold::Real<float>::kSmallest);
    fold::PartSum sums[MergeProblem::kMaxParts];
    for (int i = 0; i < p.parts; ++i) {
      const DType t = p.statistic.view.dtype;
      const char* at = row.statistic(i);
      sums[i] = {read_float(t, at, 0), p.statistics == Statistics::lse ? 1. : read_float(t, at, 1)};
    }
    joint_ = ops.join(sums, p.parts, two, share_);
    for (int i = 0; i < p.parts; ++i) {
      x_[i] = row.value(i);
      y_[i] = row.out_value(p.op == Op::merge_blocks ? i : 0);
      if (share_[i] < least) share_[i] = 0.;
    }
  }

  void write_statistic(char* to) const {
    const DType t = p_.out_statistic.view.dtype;
    if (p_.statistics == Statistics::lse) {
      write_float(t, to, 0, ops_.log_of(joint_, p_.base == LogBase::two));
    } else {
      const auto joint = t == DType::float64 ? joint_ : fold::for_float32(joint_, p_.base == LogBase::two);
      write_float(t, to, 0, joint.log);
      write_float(t, to, 1, joint.sum);
    }
  }

  /// Elements [from, to) of the row.
  void write_values(std::int64_t from, std::int64_t to) const {
    if (p_.op == Op::merge_blocks) {
      for (int i = 0; i < p_.parts; ++i) write_part(&i, 1, y_[i], from, to);
      return;
    }
    int live[MergeProblem::kMaxParts];
    int count = 0;
    for (int i = 0; i < p_.parts; ++i) {
      if (share_[i] == 0.) continue;
      int at = count++;
      for (; at > 0 && share_[live[at - 1]] < share_[i]; --at) live[at] = live[at - 1];
      live[at] = i;
    }
    write_part(live, count, y_[0], from, to);
  }

 private:
  /// y[from, to) of `count` parts, whose values are not read if the whole row is empty or special.
  void write_part(const int* parts, int count, char* y, std::int64_t from, std::int64_t to) const {
    const Operand& out = p_.out_value.view;
    const std::int64_t stride = out.axis_stride;
    y += from * stride;
    if (count == 0 || share_[parts[0]] == 0.) return fill(y, out.dtype, stride, to - from, 0.);
    if (fold::is_nan(share_[parts[0]])) return fill(y, out.dtype, stride, to - from, fold::canonical_nan<double>());
    const auto in_size = size_of(p_.value.view.dtype), out_size = size_of(out.dtype);
    const bool gather = p_.value.view.axis_stride != static_cast<std::int64_t>(in_size) && to - from > 1;
    const bool scatter = stride != static_cast<std::int64_t>(out_size) && to - from > 1;
    alignas(64) char gathered[MergeProblem::kMaxParts][kGathered * 8];
    alignas(64) char scattered[kGathered * 8];
    const std::int64_t step = gather || scatter ? kGathered : to - from;
    for (; from < to; from += step, y += step * stride) {
      const std::int64_t n = std::min(step, to - from);
      LiveParts live;
      for (; live.count < count; ++live.count) {
        const int part = parts[live.count];
        const char* x = x_[part] + from * p_.value.view.axis_stride;
        if (gather)
          copy_strided(x, p_.value.view.axis_stride, gathered[live.count], static_cast<std::int64_t>(in_size), in_size,
                       n);
        live.x[static_cast<std::size_t>(live.count)] = gather ? gathered[live.count] : x;
        live.share[static_cast<std::size_t>(live.count)] = share_[part];
      }
      compute(live, n, scatter ? scattered : y);
      if (scatter) copy_strided(scattered, static_cast<std::int64_t>(out_size), y, stride, out_size, n);
    }
  }

  void compute(const LiveParts& live, std::int64_t n, char* y) const {
    const std::size_t in = index(p_.value.view.dtype), out = index(p_.out_value.view.dtype);
    if (p_.op == Op::merge_blocks) {
      ops_.rescale[in][out](live.x[0], live.share[0], n, y, stream_);
    } else {
      ops_.combine[in][out](live, n, y, stream_);
    }
  }

  const MergeProblem& p_;
  const MergeOps& ops_;
  bool stream_;
  fold::PartSum joint_;
  double share_[MergeProblem::kMaxParts];
  const char* x_[MergeProblem::kMaxParts];
  char* y_[MergeProblem::kMaxParts];
};

/// Whether results leave past the cache: they are many, and lie where no part does.
bool streams_results(const MergeProblem& p) {
  const std::int64_t results = p.op == Op::merge_blocks ? p.parts : 1;
  const std::int64_t bytes_each = results * static_cast<std::int64_t>(size_of(p.out_value.view.dtype));
  if (p.rows * p.n <= tuning().result_stream_bytes / bytes_each) return false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(p.parts); ++i)
    for (std::size_t j = 0; j < static_cast<std::size_t>(results); ++j)
      if (p.value.data[i] == p.out_value.data[j]) return false;
  return true;
}

void run(const MergeProblem& p, const Context& context) {
  const MergeOps& ops = merge_ops();
  const bool stream = streams_results(p);
  const std::int64_t piece = tuning().merge_piece_elements;
  if (p.n <= piece) {
    const auto sizes = size_of(p.value.view.dtype) + size_of(p.out_value.view.dtype);
    const std::int64_t bytes = static_cast<std::int64_t>(sizes) * p.parts * p.n + 64 * p.parts;
    return for_merge_rows(p, context, bytes, [&](const MergeCursor& row) {
      const MergedRow merged(p, ops, row, stream);
      merged.write_statistic(row.out_statistic());
      merged.write_values(0, p.n);
    });
  }
  MergeCursor row(p, 0);
  for (std::int64_t r = 0; r < p.rows; ++r, row.next()) {
    const MergedRow merged(p, ops, row, stream);
    merged.write_statistic(row.out_statistic());
    parallel_for(executor_of(context), (p.n + piece - 1) / piece, [&](std::int64_t i) {
      merged.write_values(i * piece, std::min(p.n, (i + 1) * piece));
      hwy::FlushStream();
    });
  }
}

/// A block's result may lie where that block does, but not where another does, which is read later.
const char* blocks_refuse(const MergeProblem& p, const Context&) {
  for (int i = 0; i < p.parts; ++i)
    for (int j = 0; j < p.parts; ++j)
      if (i != j && p.out_value.data[static_cast<std::size_t>(i)] == p.value.data[static_cast<std::size_t>(j)] &&
          p.rows * p.n > 0)
        return "a block's result would overwrite another block";
  return nullptr;
}

constexpr Kernel<MergeProblem> kAttention[] = {{"merge_attention_rows", never_refuses, run, nullptr}};
constexpr Kernel<MergeProblem> kBlocks[] = {{"merge_blocks_rows", blocks_refuse, run, nullptr}};

}  // namespace
}  // namespace cpu

std::span<const Kernel<MergeProblem>> cpu_merge_kernels(Op op) {
  switch (op) {
    case Op::merge_states: return cpu::merge_states_kernels();
    case Op::merge_attention: return cpu::kAttention;
    case Op::merge_blocks: return cpu::kBlocks;
    default: return {};
  }
}

}  // namespace v0
}  // namespace softfold
