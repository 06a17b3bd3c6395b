// softmax_across_short: what it takes, and how it is launched.
#include "cuda/softmax_across_short.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/elements.hpp"
#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr std::int64_t kLongest = 32;

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_across(p)) return why;
  if (p.n > kLongest) return "a row is longer than a thread holds";
  if (inner_of(p) * static_cast<std::int64_t>(size_of(p[Slot::x].dtype)) % kShortBytes != 0)
    return "rows do not fill words of 8 bytes";
  for (const Slot slot : {Slot::x, Slot::y}) {
    const Operand& o = p[slot];
    const std::int64_t outer = outer_of(p) > 1 ? o.strides[0] : 0;
    if (reinterpret_cast<std::uintptr_t>(o.data) % kShortBytes != 0 || o.axis_stride % kShortBytes != 0 ||
        outer % kShortBytes != 0)
      return "x or y is not aligned to 8 bytes";
  }
  return nullptr;
}

template <class E, bool kLog, int kCount>
void launch_short(const AcrossShort& s, Stream stream) {
  launch("softmax_across_short", softmax_across_short<E, kLog, kCount>,
         {(s.words + kShortThreads - 1) / kShortThreads, kShortThreads}, stream, s);
}

template <class E, bool kLog>
void launch_count(const AcrossShort& s, Stream stream) {
  const auto launch_as = s.n <= 16   ? launch_short<E, kLog, 16>
                         : s.n <= 24 ? launch_short<E, kLog, 24>
                                     : launch_short<E, kLog, 32>;
  launch_as(s, stream);
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  const DeviceOf device(x.data);
  const bool single = outer_of(p) == 1;
  const std::int64_t bytes = inner_of(p) * static_cast<std::int64_t>(size_of(x.dtype));
  AcrossShort s{x.data, y.data, x.axis_stride, single ? 0 : x.strides[0], y.axis_stride, single ? 0 : y.strides[0]};
  s.n = static_cast<int>(p.n);
  s.across = static_cast<unsigned>(bytes / kShortBytes);
  s.words = s.across * static_cast<unsigned>(outer_of(p));
  s.empty = p.empty;
  s.scale = fold::make_scale<float>(p.scale);
  s.two_kappa = fold::LogNormaliser<float>::two_kappa_of(s.scale);
  with_element(x.dtype, [&]<class E>() {
    if (p.op == Op::log_softmax) return launch_count<E, true>(s, stream_of(context));
    launch_count<E, false>(s, stream_of(context));
  });
}

}  // namespace

const RowKernel softmax_across_short_kernel{"softmax_across_short", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
