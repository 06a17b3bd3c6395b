// The C ABI of Stream.
#include "front/c_bridge.hpp"
#include "softfold/stream.hpp"

#include <algorithm>

struct softfold_stream {
  softfold::Stream impl;
};

using namespace softfold;
using namespace softfold::c_abi;

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
