// Which problems Hopper's kernel takes, and how it cuts them.
#include "cuda/attention_sm90_launch.cuh"
#include "cuda/kernels.hpp"

#include <algorithm>
#include <cmath>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 29;  ///< sums of three fit into an int
constexpr int kMaxBlocks = 1 << 29;

const char* refuses_problem(const AttentionProblem& p) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  if (p.q.dtype != DType::bfloat16 && p.q.dtype != DType::float16) return "q, k and v are not of 16 bits";
  if (p.out.dtype != p.q.dtype) return "out has another dtype than q";
  if (p.d > 256 || p.dv > 256) return "D is over 256";
  if (p.dv % 8 != 0) return "v's D is not a multiple of 8";
  if (p.bias.given || p.mask.given || p.slopes.given) return "bias, mask or slopes";
  if (p.state.given) return "a state is wanted";
  if (!(p.scale > 0)) return "scale is not positive";
  return nullptr;
}

const char* refuses_memory(const AttentionProblem& p) {
  if (p.q_tokens >= kMaxTokens || p.kv_tokens >= kMaxTokens) return "2^29 queries or keys or more";
  const std::int64_t batches = p.packed ? 1 : p.sequences;
  if (const char* why = refuses_tiles(p.q, batches, p.q_heads, p.q_tokens)) return why;
  if (p.kv_tokens > 0) {
    const std::int64_t kv_batches = p.packed ? 1 : p.kv_sequences;
    if (const char* why = refuses_tiles(p.k, kv_batches, p.kv_heads, p.kv_tokens)) return why;
    if (const char* why = refuses_tiles(p.v, kv_batches, p.kv_heads, p.kv_tokens)) return why;
  }
  if (reinterpret_cast<std::uintptr_t>(p.out.data) % 16 != 0 || (p.out.token | p.out.head | p.out.batch) % 8 != 0)
    return "out's rows are not aligned to 16 bytes";
  if (p.sequences * p.q_heads * (p.tq / 64 + 1) > INT32_MAX) return "2^31 tiles or more";
  return nullptr;
}

const char* refuses(const AttentionProblem& p, const Context&) {
#if defined(SOFTFOLD_SM90A)
  const DeviceOf device(p.out.data);
  if (!traits_of(device.device()).is_hopper) return "not a Hopper device";
  if (const char* why = refuses_problem(p)) return why;
  return refuses_memory(p);
#else
  static_cast<void>(p);
  return "this build has no code for sm_90a";
#endif
}

/// Whether tiles differ in length; then blocks take the next tile when they are done with one, counted in an int.
bool is_uneven(const AttentionProblem& p) {
  return p.windowed() || p.packed || p.kv_lengths.given || p.kv_starts.given;
}

/// The polynomial's relative error is least where it is largest, 2^-24.7 up to 0.35. Of a scale that its coefficients
/// cannot hold no score is near.
SoftCap soft_cap_of(double scale) {
  const auto power = [&](double c, int n) { return static_cast<float>(c * std::pow(scale, n)); };
  const SoftCap cap{power(0.35, -1), power(1, 1), power(-0.333326632, 3), power(0.132998253, 5),
                    power(-0.0491484974, 7)};
  return scale < 1e5 ? cap : SoftCap{-1, cap.c1, 0, 0, 0};
}

std::size_t workspace(const AttentionProblem& p, const Context&) { return is_uneven(p) ? sizeof(int) : 0; }

template <class E>
void run_of(const AttentionProblem& p, const Context& context) {
  p.softcap != 0.F ? run_attention_sm90<E, true>(p, context) : run_attention_sm90<E, false>(p, context);
}

void run(const AttentionProblem& p, const Context& context) {
  p.q.dtype == DType::bfloat16 ? run_of<fold::BFloat16>(p, context) : run_of<fold::Float16>(p, context);
}

}  // namespace

/// In a section are as many heads as have their keys and values in L2 together; without a mask the tiles of one head
/// are neighbours.
AttentionCut cut_of(const AttentionProblem& p, int rows, int processors) {
  AttentionCut cut{};
  cut.q_tiles = static_cast<int>((p.tq + rows - 1) / rows);
  cut.heads = static_cast<int>(p.sequences * p.q_heads);
  cut.tiles = cut.heads * cut.q_tiles;
  constexpr std::int64_t kCache = std::int64_t{32} << 20;
  const std::int64_t bytes = p.sequences * p.kv_heads * p.tk * 2 * (p.d + p.dv);
  const std::int64_t sections = std::max<std::int64_t>((bytes + kCache - 1) / kCache, 1);
  cut.section = is_uneven(p) ? std::max(static_cast<int>((cut.heads + sections - 1) / sections), 1) : 1;
  // A block that takes one of few uneven tiles a whole tile ahead comes to it when others have nothing left. Of many
  // the last ones are short beside the whole, and looking costs least while a tile begins.
  cut.look = is_uneven(p) && cut.tiles <= 16 * processors ? 4 : kMaxBlocks;
  const auto bound = [](std::int64_t x) {
    return x < 0 || x > kMaxTokens ? AttentionCut::kNoBound : static_cast<int>(x);
  };
  cut.left = bound(p.left), cut.right = bound(p.right);
  const double cap = static_cast<double>(p.softcap);
  cut.scale_log2 = static_cast<float>((cap != 0 ? cap : p.scale) * kLog2E);
  if (cap != 0) cut.cap = soft_cap_of(p.scale / cap);
  return cut;
}

const AttentionKernel attention_sm90_kernel{"attention_forward_sm90", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
