// The C ABI of Stream.
#include "cpu/reduce_run.hpp"
#include "front/c_bridge.hpp"
#include "softfold/float_env.hpp"
#include "softfold/shown.hpp"
#include "softfold/stream.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

struct softfold_stream {
  softfold::Stream impl;
};

using namespace softfold;
using namespace softfold::c_abi;

namespace {

/// The numbers before the elements and nodes of a partial, in the C ABI's order.
enum Field : std::size_t { kBits, kDigits, kScale, kOffset, kHead, kNodes, kTail, kFields };
constexpr std::size_t kNodeFields = 3;  // level, m, d
constexpr int kMostLevel = 43;          // of a node: 2^43 chunks are the 2^53 elements of the longest row
// The nodes of any cut: one of each level on the way up, and one on the way down.
static_assert(SOFTFOLD_PARTIAL_DOUBLES == kFields + 2 * (lift::kChunk - 1) + 2 * kMostLevel * kNodeFields);

[[noreturn]] void refuse_partial(const std::string& got) {
  throw Error(Code::state, got, "the numbers that softfold_stream_get_partial wrote", "send all of them, unchanged");
}

template <class T>
std::size_t size_of_partial(const Partial<T>& p) {
  return kFields + p.head().size() + kNodeFields * p.nodes().size() + p.tail().size();
}

template <class T>
void write_partial(const Partial<T>& p, double* to) {
  const double fields[kFields] = {static_cast<double>(bits_version()),
                                  static_cast<double>(fold::Real<T>::kDigits),
                                  p.scale(),
                                  static_cast<double>(p.offset()),
                                  static_cast<double>(p.head().size()),
                                  static_cast<double>(p.nodes().size()),
                                  static_cast<double>(p.tail().size())};
  to = std::copy(std::begin(fields), std::end(fields), to);
  to = std::copy(p.head().begin(), p.head().end(), to);
  for (const auto& node : p.nodes()) {
    *to++ = node.level;
    *to++ = node.state.m;
    *to++ = static_cast<double>(node.state.d);
  }
  std::copy(p.tail().begin(), p.tail().end(), to);
}

/// A field that counts something.
std::int64_t whole(double value, std::int64_t most, const char* what) {
  if (!(value >= 0) || !(value <= static_cast<double>(most)) || value != std::floor(value))
    refuse_partial("a partial with " + detail::shown(value) + " as its " + what);
  return static_cast<std::int64_t>(value);
}

/// A number that was a T.
template <class T>
T exactly(double value) {
  if (std::isfinite(value) && std::abs(value) > static_cast<double>(fold::largest<T>()))
    refuse_partial("a partial with a number beyond its precision");
  const T narrow = static_cast<T>(value);
  if (static_cast<double>(narrow) != value && !std::isnan(value))
    refuse_partial("a partial with a number beyond its precision");
  return narrow;
}

template <class T>
Partial<T> read_partial(std::span<const double> from) {
  const auto head = static_cast<std::size_t>(whole(from[kHead], lift::kChunk - 1, "number of head elements"));
  const auto nodes = static_cast<std::size_t>(whole(from[kNodes], 2 * kMostLevel, "number of nodes"));
  const auto tail = static_cast<std::size_t>(whole(from[kTail], lift::kChunk - 1, "number of tail elements"));
  const std::int64_t offset = whole(from[kOffset], Partial<T>::kLargestOffset, "offset");
  if (from.size() != kFields + head + kNodeFields * nodes + tail)
    refuse_partial("a partial of " + std::to_string(from.size()) + " numbers, which its head contradicts");
  std::vector<T> raw;
  const auto take_raw = [&](std::size_t begin, std::size_t count) {
    for (const double value : from.subspan(begin, count)) raw.push_back(exactly<T>(value));
  };
  take_raw(kFields, head);
  take_raw(from.size() - tail, tail);
  std::vector<typename Partial<T>::Node> list;
  std::int64_t begin = (offset + static_cast<std::int64_t>(head)) / lift::kChunk;
  for (std::size_t i = 0; i < nodes; ++i) {
    const double* node = from.data() + kFields + head + kNodeFields * i;
    const auto level = static_cast<int>(whole(node[0], kMostLevel, "node's level"));
    list.push_back({begin, level, {node[1], exactly<T>(node[2])}});
    begin += std::int64_t{1} << level;
  }
  const auto all = std::span<const T>(raw);
  return Partial<T>(from[kScale], offset, all.first(head), list, all.last(tail), cpu::reduce_run<T>);
}

}  // namespace

softfold_status softfold_stream_create(int dtype_code, int dtype_bits, double scale, int64_t offset,
                                       const softfold_context* context, softfold_stream** stream) {
  return guarded([&] {
    require(stream, "place for the stream");
    ContextStorage c;
    read_context(c, context);
    c.context.workspace = nullptr;  // a stream outlives this call and needs none
    *stream = new softfold_stream{Stream(dtype_from(dtype_code, dtype_bits, 1), scale, offset, c.context)};
  });
}

void softfold_stream_destroy(softfold_stream* stream) { delete stream; }

softfold_status softfold_stream_push(softfold_stream* stream, const softfold_tensor* piece) {
  return guarded([&] {
    require(stream, "stream");
    require(piece, "piece");
    stream->impl.push(view_from(piece));
  });
}

softfold_status softfold_stream_get_partial(const softfold_stream* stream, double* partial, size_t capacity,
                                            size_t* count) {
  return guarded([&] {
    require(stream, "stream");
    require(count, "place for the count");
    const auto write = [&](const auto& p) {
      *count = size_of_partial(p);
      if (*count > capacity)
        throw Error(Code::shape, "room for " + std::to_string(capacity) + " numbers of a partial",
                    std::to_string(*count) + " or more", "SOFTFOLD_PARTIAL_DOUBLES, which is always enough");
      require(partial, "place for the partial");
      write_partial(p, partial);
    };
    if (stream->impl.dtype() == DType::float64) {
      write(stream->impl.partial<double>());
    } else {
      write(stream->impl.partial<float>());
    }
  });
}

softfold_status softfold_stream_push_partial(softfold_stream* stream, const double* partial, size_t count) {
  return guarded([&] {
    require(stream, "stream");
    require(partial, "partial");
    const std::span<const double> from(partial, count);
    if (count < kFields) refuse_partial("a partial of " + std::to_string(count) + " numbers");
    if (from[kBits] != bits_version()) refuse_partial("a partial of bits version " + detail::shown(from[kBits]));
    const FloatEnv environment;
    if (from[kDigits] == fold::Real<double>::kDigits) return stream->impl.push(read_partial<double>(from));
    if (from[kDigits] == fold::Real<float>::kDigits) return stream->impl.push(read_partial<float>(from));
    refuse_partial("a partial of " + detail::shown(from[kDigits]) + " digits");
  });
}

softfold_status softfold_stream_state(const softfold_stream* stream, double state[4]) {
  return guarded([&] {
    require(stream, "stream");
    require(state, "place for the state");
    std::ranges::copy(stream->impl.state(), state);
  });
}

softfold_status softfold_stream_logsumexp(const softfold_stream* stream, double* lse) {
  return guarded([&] {
    require(stream, "stream");
    require(lse, "place for the lse");
    *lse = stream->impl.logsumexp();
  });
}

namespace {

template <class Write>
softfold_status second_pass(const softfold_stream* stream, const softfold_tensor* x, const softfold_tensor* y,
                            int empty, const Write& write) {
  return guarded([&] {
    require(stream, "stream");
    require(x, "x");
    require(y, "y");
    write(stream->impl, view_from(x), view_from(y), enum_from(empty, Empty::nan, "empty"));
  });
}

}  // namespace

softfold_status softfold_stream_softmax(const softfold_stream* stream, const softfold_tensor* x,
                                        const softfold_tensor* y, int empty) {
  return second_pass(stream, x, y, empty,
                     [](const Stream& s, const View& from, const View& to, Empty e) { s.softmax(from, to, e); });
}

softfold_status softfold_stream_log_softmax(const softfold_stream* stream, const softfold_tensor* x,
                                            const softfold_tensor* y, int empty) {
  return second_pass(stream, x, y, empty,
                     [](const Stream& s, const View& from, const View& to, Empty e) { s.log_softmax(from, to, e); });
}
