// Stream: a Partial that grows by SIMD chunks, and whose aligned runs are folded as rows of their own.
#include "softfold/stream.hpp"

#include "cpu/reduce_run.hpp"
#include "front/checks.hpp"
#include "softfold/float_env.hpp"
#include "softfold/fold/float16.hpp"
#include "softfold/softfold.hpp"

#include <algorithm>
#include <bit>
#include <vector>

namespace softfold {
inline namespace v0 {
namespace {

using lift::kChunk;
using Partials = std::variant<Partial<float>, Partial<double>>;

/// Not inlined, so that the scale's product with log2(e) is computed inside the portable environment.
[[gnu::noinline]] Partials make_partial(DType dtype, double scale, std::int64_t offset) {
  if (dtype == DType::float64) return Partial<double>(scale, offset);
  return Partial<float>(scale, offset);
}

Partials checked_partial(DType dtype, double scale, std::int64_t offset) {
  if (!is_floating(dtype))
    throw Error(Code::dtype, "a stream of dtype " + std::string(name_of(dtype)), "float32, float64, float16, bfloat16");
  const FloatEnv environment;
  return make_partial(dtype, scale, offset);
}

template <class T>
constexpr const char* kName = sizeof(T) == 4 ? "float32" : "float64";

Error wrong_precision(const std::string& got, DType stream) {
  const bool wide = stream == DType::float64;
  return Error(Code::dtype, got + " for a stream of " + std::string(name_of(stream)),
               wide ? "float64" : "float32, float16, bfloat16",
               wide ? "make the stream of float32" : "make the stream of float64");
}

/// The stored numbers as they are folded.
template <class T>
void widen(const char* from, DType dtype, std::int64_t stride, std::int64_t n, T* to) {
  const auto all = [&]<class S>(S) {
    if constexpr (std::is_same_v<fold::FoldType<S>, T>)
      for (std::int64_t i = 0; i < n; ++i) to[i] = fold::widen(*reinterpret_cast<const S*>(from + i * stride));
  };
  switch (dtype) {
    case DType::float64: return all(double{});
    case DType::float16: return all(fold::Float16{});
    case DType::bfloat16: return all(fold::BFloat16{});
    default: return all(float{});
  }
}

/// The state of a run that is a node of the tree is that of a row of its own.
template <class T>
typename Partial<T>::State state_of_run(const View& run, double scale, const Context& context) {
  std::array<double, 4> s;
  const std::int64_t shape[] = {4};
  RowOptions options;
  options.scale = scale;
  state(run, View(s.data(), DType::float64, shape), options, context);
  return {s[0], static_cast<T>(s[1])};
}

template <class T>
void push_view(Partial<T>& partial, const View& piece, const Context& context) {
  const std::int64_t element_stride = checks::stride_of(piece, 0);
  const std::int64_t stride = element_stride * static_cast<std::int64_t>(size_of(piece.dtype));
  const char* x = static_cast<const char*>(piece.data);
  std::int64_t n = piece.shape[0];
  T buffer[kChunk];
  while (n > 0) {
    std::int64_t take = std::min(n, kChunk - partial.end() % kChunk);
    if (take < kChunk) {
      widen(x, piece.dtype, stride, take, buffer);
      partial.append({buffer, static_cast<std::size_t>(take)}, cpu::reduce_run<T>);
    } else {
      const auto chunk = static_cast<std::uint64_t>(partial.end() / kChunk);
      int level = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n / kChunk))) - 1;
      if (chunk != 0) level = std::min(level, std::countr_zero(chunk));
      take = std::int64_t{kChunk} << level;
      const std::int64_t shape[] = {take}, strides[] = {element_stride};
      const View run(static_cast<const void*>(x), piece.dtype, shape, strides, piece.device);
      partial.push_node(state_of_run<T>(run, partial.scale(), context), level);
    }
    x += take * stride;
    n -= take;
  }
}

std::string span_of(std::int64_t from, std::int64_t to) {
  return "elements " + std::to_string(from) + " to " + std::to_string(to);
}

template <class T>
Partial<T> join_sorted(std::span<const Partial<T>> parts) {
  if (parts.empty()) throw Error(Code::state, "no partials", "at least one");
  std::vector<const Partial<T>*> order;
  for (const Partial<T>& p : parts) order.push_back(&p);
  std::stable_sort(order.begin(), order.end(), [](const Partial<T>* a, const Partial<T>* b) {
    return a->offset() != b->offset() ? a->offset() < b->offset() : a->end() < b->end();
  });
  const FloatEnv environment;
  Partial<T> all = *order[0];
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Partial<T>& next = *order[i];
    const std::string got = "partials of " + span_of(order[i - 1]->offset(), order[i - 1]->end()) + " and of " +
                            span_of(next.offset(), next.end());
    const char* allowed = "partials that lie end to end";
    if (next.offset() > all.end())
      throw Error(Code::state, got, allowed, "add the partial of " + span_of(all.end(), next.offset()));
    if (next.offset() < all.end())
      throw Error(Code::state, got, allowed,
                  "leave one out: " + span_of(next.offset(), std::min(all.end(), next.end())) + " are held twice");
    all.join(next, cpu::reduce_run<T>);
  }
  return all;
}

}  // namespace

Stream::Stream(DType dtype, double scale, std::int64_t offset, const Context& context)
    : dtype_(dtype), context_(context), partial_(checked_partial(dtype, scale, offset)) {}

template <class F>
void Stream::with_partial(F&& f) {
  const FloatEnv environment;
  std::visit(std::forward<F>(f), partial_);
}

void Stream::push(float element) {
  with_partial([&]<class T>(Partial<T>& partial) {
    if constexpr (std::is_same_v<T, float>) return partial.append({&element, 1}, cpu::reduce_run<T>);
    throw wrong_precision("a float", dtype_);
  });
}
void Stream::push(double element) {
  with_partial([&]<class T>(Partial<T>& partial) {
    if constexpr (std::is_same_v<T, double>) return partial.append({&element, 1}, cpu::reduce_run<T>);
    throw wrong_precision("a double", dtype_);
  });
}

void Stream::push(std::span<const float> elements) {
  const std::int64_t shape[] = {std::ssize(elements)};
  push(View(static_cast<const void*>(elements.data()), DType::float32, shape));
}
void Stream::push(std::span<const double> elements) {
  const std::int64_t shape[] = {std::ssize(elements)};
  push(View(static_cast<const void*>(elements.data()), DType::float64, shape));
}

void Stream::push(const View& piece) {
  checks::check_view(piece, "a piece");
  checks::check_floating(piece, "a piece");
  if (piece.rank() != 1)
    throw Error(Code::shape, "a piece of shape " + checks::describe(piece.shape), "one axis",
                "a Stream is one row: flatten the piece, or keep a Stream per row");
  if (piece.device.kind != DeviceKind::cpu)
    throw Error(Code::unsupported, "a piece on another device", "a piece in the host's memory", "copy it to the host");
  if ((piece.dtype == DType::float64) != (dtype_ == DType::float64))
    throw wrong_precision("a piece of " + std::string(name_of(piece.dtype)), dtype_);
  with_partial([&](auto& partial) {
    partial.check_room(piece.shape[0]);
    if (piece.shape[0] < kChunk) return push_view(partial, piece, context_);
    auto grown = partial;  // the stream stays as it is if a run of chunks cannot be folded
    push_view(grown, piece, context_);
    partial = std::move(grown);
  });
}

void Stream::push(const Partial<float>& piece) {
  with_partial([&]<class T>(Partial<T>& partial) {
    if constexpr (std::is_same_v<T, float>) return partial.join(piece, cpu::reduce_run<T>);
    throw wrong_precision("a partial of float32", dtype_);
  });
}
void Stream::push(const Partial<double>& piece) {
  with_partial([&]<class T>(Partial<T>& partial) {
    if constexpr (std::is_same_v<T, double>) return partial.join(piece, cpu::reduce_run<T>);
    throw wrong_precision("a partial of float64", dtype_);
  });
}

double Stream::scale() const {
  return std::visit([](const auto& p) { return p.scale(); }, partial_);
}
std::int64_t Stream::length() const {
  return std::visit([](const auto& p) { return p.length(); }, partial_);
}
std::int64_t Stream::end() const {
  return std::visit([](const auto& p) { return p.end(); }, partial_);
}

std::array<double, 4> Stream::state() const {
  const FloatEnv environment;
  return std::visit(
      []<class T>(const Partial<T>& p) {
        const auto s = p.state(cpu::reduce_run<T>);
        return std::array<double, 4>{s.m, static_cast<double>(s.d), p.scale(),
                                     static_cast<double>(fold::Real<T>::kDigits)};
      },
      partial_);
}

double Stream::logsumexp() const {
  const FloatEnv environment;
  return std::visit([]<class T>(const Partial<T>& p) { return static_cast<double>(p.logsumexp(cpu::reduce_run<T>)); },
                    partial_);
}

template <class T>
const Partial<T>& Stream::partial() const {
  if (const auto* p = std::get_if<Partial<T>>(&partial_)) return *p;
  throw Error(Code::dtype, std::string("a partial of ") + kName<T> + " of a stream of " + std::string(name_of(dtype_)),
              dtype_ == DType::float64 ? "partial<double>()" : "partial<float>()");
}
template SOFTFOLD_API const Partial<float>& Stream::partial<float>() const;
template SOFTFOLD_API const Partial<double>& Stream::partial<double>() const;

void Stream::finish(bool log, const View& x, const View& y, Empty empty) const {
  if (x.given() && x.rank() != 1) throw Error(Code::shape, "a piece of shape " + checks::describe(x.shape), "one axis");
  const auto s = state();
  const std::int64_t shape[] = {4};
  const View states(static_cast<const void*>(s.data()), DType::float64, shape);
  RowOptions options;
  options.scale = s[2];
  options.empty = empty;
  if (log) {
    finish_log_softmax(x, states, y, options, context_);
  } else {
    finish_softmax(x, states, y, options, context_);
  }
}

void Stream::softmax(const View& x, const View& y, Empty empty) const { finish(false, x, y, empty); }
void Stream::log_softmax(const View& x, const View& y, Empty empty) const { finish(true, x, y, empty); }

Partial<float> join(std::span<const Partial<float>> parts) { return join_sorted(parts); }
Partial<double> join(std::span<const Partial<double>> parts) { return join_sorted(parts); }

}  // namespace v0
}  // namespace softfold
