#include "front/checks.hpp"

#include "softfold/float_env.hpp"
#include "softfold/lift/stream.hpp"
#include "softfold/shown.hpp"

#include <cmath>

namespace softfold {
inline namespace v0 {
namespace checks {
namespace {

/// The bytes that a view reaches: [low, high), relative to nothing.
struct Extent {
  std::uintptr_t low, high;
};

Extent extent_of(const View& v) {
  const auto size = static_cast<std::int64_t>(size_of(v.dtype));
  const auto base = reinterpret_cast<std::uintptr_t>(v.data);
  if (v.strides.empty()) return {base, base + static_cast<std::uintptr_t>(element_count(v) * size)};
  std::int64_t low = 0, high = size;
  for (int i = 0; i < v.rank(); ++i) {
    const auto n = v.shape[static_cast<std::size_t>(i)];
    if (n == 0) return {0, 0};
    const std::int64_t reach = (n - 1) * stride_of(v, i) * size;
    (reach < 0 ? low : high) += reach;
  }
  return {base + static_cast<std::uintptr_t>(low), base + static_cast<std::uintptr_t>(high)};
}

bool same_view(const View& a, const View& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank() != b.rank()) return false;
  for (int i = 0; i < a.rank(); ++i) {
    const auto n = a.shape[static_cast<std::size_t>(i)];
    if (n != b.shape[static_cast<std::size_t>(i)]) return false;
    if (n > 1 && stride_of(a, i) != stride_of(b, i)) return false;
  }
  return true;
}

/// Whether two views of the same shape and byte strides, `delta` bytes apart, share a byte: whether delta can be
/// written as sum k_i s_i plus less than an element, |k_i| < n_i. Exact for nested strides, else it errs on "yes".
bool boxes_meet(const View& v, std::int64_t delta, std::uint32_t used) {
  const auto size = static_cast<std::int64_t>(size_of(v.dtype));
  int widest = -1;
  for (int i = 0; i < v.rank(); ++i) {
    if ((used >> i & 1U) != 0 || v.shape[static_cast<std::size_t>(i)] <= 1) continue;
    if (widest < 0 || std::abs(stride_of(v, i)) > std::abs(stride_of(v, widest))) widest = i;
  }
  if (widest < 0) return std::abs(delta) < size;
  const std::int64_t step = std::abs(stride_of(v, widest)) * size;
  if (step == 0) return boxes_meet(v, delta, used | 1U << widest);
  const std::int64_t limit = v.shape[static_cast<std::size_t>(widest)] - 1;
  const std::int64_t floor = delta / step - (delta % step < 0 ? 1 : 0);
  for (const std::int64_t k : {floor, floor + 1})
    if (std::abs(k) <= limit && boxes_meet(v, delta - k * step, used | 1U << widest)) return true;
  return false;
}

bool same_strides(const View& a, const View& b) {
  if (a.rank() != b.rank() || size_of(a.dtype) != size_of(b.dtype)) return false;
  for (int i = 0; i < a.rank(); ++i)
    if (a.shape[static_cast<std::size_t>(i)] != b.shape[static_cast<std::size_t>(i)] ||
        stride_of(a, i) != stride_of(b, i))
      return false;
  return true;
}

}  // namespace

std::string describe(std::span<const std::int64_t> shape) {
  std::string s = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) s += (i != 0 ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

std::string describe(const View& v) { return std::string(name_of(v.dtype)) + " " + describe(v.shape); }

std::int64_t stride_of(const View& v, int i) {
  if (!v.strides.empty()) return v.strides[static_cast<std::size_t>(i)];
  std::int64_t s = 1;
  for (int j = v.rank() - 1; j > i; --j) s *= v.shape[static_cast<std::size_t>(j)];
  return s;
}

std::int64_t byte_stride(const View& v, int i) {
  if (v.shape[static_cast<std::size_t>(i)] <= 1) return 0;
  return stride_of(v, i) * static_cast<std::int64_t>(size_of(v.dtype));
}

std::int64_t element_count(const View& v) {
  std::int64_t n = 1;
  for (const auto s : v.shape) n *= s;
  return n;
}

void check_view(const View& v, const char* what) {
  if (!v.given()) throw Error(Code::shape, std::string("no ") + what, std::string("a view for ") + what);
  if (v.dtype > DType::int64)
    throw Error(Code::dtype, std::string(what) + " of dtype number " + std::to_string(static_cast<int>(v.dtype)),
                "float32, float64, float16, bfloat16, bool, int32, int64");
  if (v.rank() > kMaxRank)
    throw Error(Code::shape, std::string(what) + " of rank " + std::to_string(v.rank()),
                "rank up to " + std::to_string(kMaxRank), "merge axes that lie next to each other in memory");
  if (!v.strides.empty() && v.strides.size() != v.shape.size())
    throw Error(Code::strides,
                std::string(what) + " with " + std::to_string(v.strides.size()) + " strides for rank " +
                    std::to_string(v.rank()),
                "one stride per axis, or none for a contiguous view");
  std::int64_t count = 1;
  bool zero = false;
  for (const auto n : v.shape) {
    if (n < 0) throw Error(Code::shape, std::string(what) + " of shape " + describe(v.shape), "sizes >= 0");
    zero |= n == 0;
    if (n != 0 && __builtin_mul_overflow(count, n, &count))
      throw Error(Code::shape, std::string(what) + " of shape " + describe(v.shape), "fewer than 2^63 elements");
  }
  const auto size = static_cast<std::int64_t>(size_of(v.dtype));
  std::int64_t reach = 0;
  bool beyond = __builtin_mul_overflow(count, size, &reach);
  for (int i = 0; i < static_cast<int>(v.strides.size()) && !zero; ++i) {
    std::int64_t r = 0;
    beyond |= __builtin_mul_overflow(v.shape[static_cast<std::size_t>(i)] - 1, stride_of(v, i), &r) ||
              __builtin_mul_overflow(r, size, &r) || r == INT64_MIN ||
              __builtin_add_overflow(reach, std::abs(r), &reach);
  }
  if (beyond && !zero)
    throw Error(Code::strides, std::string(what) + " that reaches beyond 2^63 bytes", "a view within memory");
  if (zero) return;
  if (v.data == nullptr)
    throw Error(Code::shape, std::string(what) + " at a null pointer",
                "a pointer to " + std::to_string(count) + " elements");
  if ((reinterpret_cast<std::uintptr_t>(v.data) & (size_of(v.dtype) - 1)) != 0)
    throw Error(Code::strides, std::string(what) + " at an address that is not a multiple of its element's size",
                "addresses aligned to " + std::to_string(size) + " bytes", "copy the data to an aligned buffer");
}

void check_floating(const View& v, const char* what) {
  if (!is_floating(v.dtype))
    throw Error(Code::dtype, std::string(what) + " of dtype " + std::string(name_of(v.dtype)),
                "float32, float64, float16, bfloat16", "convert it to float32");
}

void check_integer(const View& v, const char* what) {
  if (v.dtype != DType::int32 && v.dtype != DType::int64)
    throw Error(Code::dtype, std::string(what) + " of dtype " + std::string(name_of(v.dtype)), "int32, int64",
                "convert it to int64");
}

void check_offset(const OffsetWords& words, std::int64_t i, std::int64_t at, std::int64_t last, std::int64_t most) {
  if (at >= last && at <= most) return;
  throw Error(Code::data,
              std::string(words.what) + "[" + std::to_string(i) + "] = " + std::to_string(at) +
                  (at < last && i > 0 ? " behind " + std::to_string(last) : ""),
              std::string("ascending offsets from 0 to ") + words.before + std::to_string(most) + words.behind,
              "the running sum of the " + std::string(words.parts) + "' lengths");
}

void check_device(const View& reference, const View& v, const char* what) {
  if (!(v.device == reference.device))
    throw Error(Code::device, std::string(what) + " on another device than the first operand",
                "all operands on one device", "copy it over");
}

void check_output(const View& out, const char* what) {
  // Each axis, from the narrowest stride up, must step over everything that the narrower ones reach.
  const std::int64_t count = element_count(out);
  if (count <= 1 || out.strides.empty()) return;
  std::uint32_t used = 0;
  std::int64_t reach = 1;
  for (int step = 0; step < out.rank(); ++step) {
    int narrowest = -1;
    for (int i = 0; i < out.rank(); ++i) {
      if ((used >> i & 1U) != 0) continue;
      if (narrowest < 0 || std::abs(stride_of(out, i)) < std::abs(stride_of(out, narrowest))) narrowest = i;
    }
    used |= 1U << narrowest;
    const std::int64_t n = out.shape[static_cast<std::size_t>(narrowest)];
    if (n <= 1) continue;
    const std::int64_t stride = std::abs(stride_of(out, narrowest));
    if (stride < reach)
      throw Error(Code::strides, std::string(what) + " with strides that make its elements share memory",
                  "an output whose elements are distinct", "give a contiguous output");
    reach = (n - 1) * stride + reach;
  }
}

void check_overlap(const View& out, const char* out_name, const View& in, const char* in_name, bool in_place_allowed) {
  const Extent a = extent_of(out), b = extent_of(in);
  if (a.low == a.high || b.low == b.high) return;
  if (a.low >= b.high || b.low >= a.high) return;
  if (in_place_allowed && same_view(out, in)) return;
  if (same_strides(out, in) && !boxes_meet(out, static_cast<char*>(out.data) - static_cast<char*>(in.data), 0)) return;
  throw Error(Code::strides, std::string(out_name) + " overlaps " + in_name,
              in_place_allowed ? "memory of its own, or exactly the view of the input (in place)" : "memory of its own",
              std::string("give ") + out_name + " a buffer of its own");
}

/// Not inlined, so that the product with log2(e) is computed inside the portable environment.
template <class T>
[[gnu::noinline]] void check_scale_of(double scale) {
  (void)lift::checked_scale<T>(scale);
}

void check_scale(double scale, bool is_double) {
  const FloatEnv environment;
  if (is_double) {
    check_scale_of<double>(scale);
  } else {
    check_scale_of<float>(scale);
  }
}

void check_shard(const Shard& shard, std::int64_t n) {
  constexpr std::int64_t most = std::int64_t{1} << 53;
  if (n >= 0 && shard.size >= 0 && shard.size <= most && shard.offset >= 0 && shard.offset <= shard.size - n) return;
  throw Error(Code::shape,
              "a shard of " + std::to_string(n) + " elements at " + std::to_string(shard.offset) + " of rows of " +
                  std::to_string(shard.size),
              "0 or more elements, 0 <= offset <= size - elements, and a size of at most 2^53",
              "size is that of the whole rows, offset where the shard begins in them");
}

namespace {

template <class T>
void check_softcap_of(T softcap) {
  if (softcap == 0 || (softcap >= T(0x1p-60) && softcap <= T(0x1p60))) return;
  throw Error(Code::option, "softcap " + detail::shown(softcap), "0 (none), or 8.67e-19 (2^-60) to 1.15e18 (2^60)",
              "softcap 30");
}

}  // namespace

void check_softcap(double softcap) { check_softcap_of(softcap); }
void check_softcap(float softcap) { check_softcap_of(softcap); }

}  // namespace checks
}  // namespace v0
}  // namespace softfold
