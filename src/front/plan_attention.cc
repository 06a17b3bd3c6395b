// attention: q, k, v and out brought to (sequence, head, token) whatever their layout; every option checked.
#include "front/checks.hpp"
#include "front/plan_build.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

namespace softfold {
inline namespace v0 {
namespace {

using checks::describe;

std::int64_t size(const View& v, int i) { return v.shape[static_cast<std::size_t>(i)]; }

/// 0 where there is no step to take: such a stride may be any number.
std::int64_t step(const View& v, int i) { return i < 0 || size(v, i) <= 1 ? 0 : checks::stride_of(v, i); }

/// Which axis of a view is the batch, the head, the token; -1 for one that it does not have (of size 1 then).
struct Axes {
  int batch, head, token;
};

Axes axes_of(int rank, Layout layout, bool packed) {
  const bool heads_first = layout == Layout::bhtd;
  if (rank == 2) return {-1, -1, 0};
  const int first = rank - 3;
  return {packed || rank == 3 ? -1 : 0, heads_first ? first : first + 1, heads_first ? first + 1 : first};
}

struct Sizes {
  std::int64_t batch, heads, tokens;
};

Sizes sizes_of(const View& v, Axes a) {
  const auto along = [&v](int i) { return i < 0 ? 1 : size(v, i); };
  return {along(a.batch), along(a.head), along(a.token)};
}

const char* axes_text(Layout layout, bool packed) {
  const bool heads_first = layout == Layout::bhtd;
  if (packed) return heads_first ? "(H, total T, D)" : "(total T, H, D)";
  return heads_first ? "(B, H, T, D), (H, T, D) or (T, D)" : "(B, T, H, D), (T, H, D) or (T, D)";
}

/// One of q, k, v, out.
Sizes set_tensor(AttentionTensor& to, const View& v, const char* what, Layout layout, bool packed) {
  checks::check_view(v, what);
  checks::check_floating(v, what);
  if (packed ? v.rank() != 3 : v.rank() < 2 || v.rank() > 4)
    throw Error(Code::shape, std::string(what) + " of shape " + describe(v.shape), axes_text(layout, packed));
  if (v.shape.back() > 1 && checks::stride_of(v, v.rank() - 1) != 1)
    throw Error(Code::strides,
                std::string(what) + " with a stride of " + std::to_string(checks::stride_of(v, v.rank() - 1)) +
                    " along its last axis",
                "a contiguous last axis (stride 1)", "transpose the other axes alone, or copy it");
  const Axes a = axes_of(v.rank(), layout, packed);
  to = {static_cast<char*>(v.data), v.dtype, true, step(v, a.batch), step(v, a.head), step(v, a.token)};
  return sizes_of(v, a);
}

void check_integer(const View& v, const char* what, std::int64_t count) {
  checks::check_view(v, what);
  checks::check_integer(v, what);
  if (v.rank() != 1 || (count >= 0 && size(v, 0) != count))
    throw Error(Code::shape, std::string(what) + " of shape " + describe(v.shape),
                count >= 0 ? "[" + std::to_string(count) + "]" : std::string("[B + 1]"));
}

std::int64_t integer_at(const VectorOperand& v, std::int64_t i) {
  const std::int64_t at = i * v.stride;
  return v.dtype == DType::int32 ? reinterpret_cast<const std::int32_t*>(v.data)[at]
                                 : reinterpret_cast<const std::int64_t*>(v.data)[at];
}

VectorOperand vector_of(const View& v, int axis) {
  const bool batched = axis > 0 && size(v, 0) > 1;
  return {static_cast<char*>(v.data), v.dtype, true, step(v, axis), batched ? checks::stride_of(v, 0) : 0};
}

struct Read {
  const View* view;  ///< null, or perhaps not given
  const char* name;
};

/// Everything that an attention reads.
std::array<Read, 12> reads(std::span<const View> inputs, const AttentionOptions& o) {
  const auto* varlen = std::get_if<Varlen>(&o.kv);
  return {{{&inputs[0], "q"},
           {&inputs[1], "k"},
           {&inputs[2], "v"},
           {varlen != nullptr ? &varlen->q_offsets : nullptr, "q_offsets"},
           {varlen != nullptr ? &varlen->kv_offsets : nullptr, "kv_offsets"},
           {&o.sink, "sink"},
           {&o.slopes, "slopes"},
           {&o.bias, "bias"},
           {&o.mask, "mask"},
           {&o.kv_lengths, "kv_lengths"},
           {&o.kv_starts, "kv_starts"},
           {&o.kv_index, "kv_index"}}};
}

/// Fills an AttentionProblem from checked views, in the order in which one thing needs another.
class Builder {
 public:
  Builder(AttentionProblem& p, const AttentionOptions& o, bool on_host) : p_(p), o_(o), on_host_(on_host) {}

  void tensors(std::span<const View> inputs, const View& out);
  void packed_sizes();
  void scores();
  void sequences();
  void results(std::span<const View> inputs, const View& out);

 private:
  void offsets(VectorOperand& to, const View& v, const char* what, std::int64_t tokens, std::int64_t given,
               const char* given_name, std::int64_t* most);
  void heads_vector(VectorOperand& to, const View& v, const char* what, bool batched);
  void score_operand(ScoreOperand& to, const View& v, const char* what);
  void per_sequence(VectorOperand& to, const View& v, const char* what);
  std::int64_t keys_of(std::int64_t b) const;
  void row_result(AttentionTensor& to, const View& v, const char* what, std::int64_t vector);

  AttentionProblem& p_;
  const AttentionOptions& o_;
  bool on_host_;
};

void Builder::tensors(std::span<const View> inputs, const View& out) {
  const View &q = inputs[0], &k = inputs[1], &v = inputs[2];
  const Sizes sq = set_tensor(p_.q, q, "q", o_.layout, p_.packed), sk = set_tensor(p_.k, k, "k", o_.layout, p_.packed),
              sv = set_tensor(p_.v, v, "v", o_.layout, p_.packed),
              so = set_tensor(p_.out, out, "out", o_.layout, p_.packed);
  if (k.dtype != q.dtype || v.dtype != q.dtype)
    throw Error(Code::dtype, "q " + describe(q) + ", k " + describe(k) + ", v " + describe(v),
                "one dtype for q, k and v", "convert them to the widest of the three");
  if (out.dtype != q.dtype && (p_.is_double() || out.dtype != DType::float32))
    throw Error(Code::dtype,
                "out of dtype " + std::string(name_of(out.dtype)) + " for q of dtype " + std::string(name_of(q.dtype)),
                p_.is_double() ? "float64" : "q's dtype, or float32");
  const auto together = [&](bool fits, const std::string& got, const char* allowed, const char* fix) {
    if (!fits) throw Error(Code::shape, got, allowed, fix);
  };
  const std::int64_t d = q.shape.back(), dv = v.shape.back();
  const std::string qk = "q " + describe(q.shape) + " and k " + describe(k.shape),
                    kv = "k " + describe(k.shape) + " and v " + describe(v.shape);
  together(k.shape.back() == d, qk, "one D for q and k", "is one of them transposed?");
  together(d >= 1 && d <= p_.kMaxHeadDim, "q and k of D = " + std::to_string(d), "1 .. 512", "");
  together(dv >= 1 && dv <= p_.kMaxHeadDim, "v of Dv = " + std::to_string(dv), "1 .. 512",
           dv > p_.kMaxHeadDim ? "split v's last axis over several calls" : "");
  together(sk.heads == sv.heads && sk.tokens == sv.tokens && sk.batch == sv.batch, kv, "k and v of one B, H and T",
           "is the layout right? AttentionOptions::layout says which axis is which");
  together(sk.batch == sq.batch || o_.kv_index.given(), qk, "one B for q and k",
           "give kv_index if k and v are a cache");
  together(sk.heads > 0 && sq.heads % sk.heads == 0, qk, "q's heads a multiple of k's",
           "is the layout right? AttentionOptions::layout says which axis is which");
  together(so.batch == sq.batch && so.heads == sq.heads && so.tokens == sq.tokens && out.shape.back() == dv,
           "out " + describe(out.shape) + " for q " + describe(q.shape) + " and v " + describe(v.shape),
           "q's shape with v's D", "give out that shape");
  p_.d = static_cast<int>(d);
  p_.dv = static_cast<int>(dv);
  p_.sequences = sq.batch;
  p_.kv_sequences = sk.batch;
  p_.q_heads = sq.heads;
  p_.kv_heads = sk.heads;
  p_.tq = p_.q_tokens = sq.tokens;
  p_.tk = p_.kv_tokens = sk.tokens;
  p_.rows = sq.batch * sq.heads * sq.tokens;
}

/// One of Varlen's offsets; `most` becomes the longest sequence that may come.
void Builder::offsets(VectorOperand& to, const View& v, const char* what, std::int64_t tokens, std::int64_t given,
                      const char* given_name, std::int64_t* most) {
  if (v.rank() == 1 && size(v, 0) < 1)
    throw Error(Code::shape, std::string(what) + " of shape [0]", "[B + 1]", "give [0] for no sequence");
  check_integer(v, what, -1);
  to = vector_of(v, 0);
  if (given < 0)
    throw Error(Code::option, std::string(given_name) + " = " + std::to_string(given), "0 (not known) or more",
                std::string(given_name) + " = 0");
  *most = given > 0 ? std::min(given, tokens) : tokens;
  if (!on_host_) return;
  std::int64_t longest = 0;
  for (std::int64_t i = 0, last = 0; i < size(v, 0); ++i) {
    const std::int64_t at = integer_at(to, i);
    checks::check_offset({what, "the ", " tokens that there are", "sequences"}, i, at, last, tokens);
    if (i > 0) longest = std::max(longest, at - last);
    last = at;
  }
  if (given > 0 && longest > given)
    throw Error(Code::data, "a sequence of " + std::to_string(longest) + " tokens in " + what,
                "no more than " + std::string(given_name) + " = " + std::to_string(given),
                "give 0: it is then looked up");
  if (given == 0) *most = longest;
}

void Builder::packed_sizes() {
  if (!p_.packed) return;
  const auto& varlen = std::get<Varlen>(o_.kv);
  offsets(p_.q_offsets, varlen.q_offsets, "q_offsets", p_.q_tokens, varlen.max_q, "max_q", &p_.tq);
  offsets(p_.kv_offsets, varlen.kv_offsets, "kv_offsets", p_.kv_tokens, varlen.max_kv, "max_kv", &p_.tk);
  if (size(varlen.q_offsets, 0) != size(varlen.kv_offsets, 0))
    throw Error(
        Code::shape,
        "q_offsets " + describe(varlen.q_offsets.shape) + " and kv_offsets " + describe(varlen.kv_offsets.shape),
        "one length, B + 1, for both");
  p_.sequences = p_.kv_sequences = size(varlen.q_offsets, 0) - 1;
  if (p_.sequences == 0) p_.rows = 0;
}

/// Something a head, or with `batched` a sequence and head.
void Builder::heads_vector(VectorOperand& to, const View& v, const char* what, bool batched) {
  checks::check_view(v, what);
  const bool fits = (v.rank() == 1 || (batched && v.rank() == 2 && (size(v, 0) == p_.sequences || size(v, 0) == 1))) &&
                    v.shape.back() == p_.q_heads;
  if (!fits)
    throw Error(Code::shape, std::string(what) + " of shape " + describe(v.shape),
                "one number a query head: [" + std::to_string(p_.q_heads) + "]" + (batched ? ", or [B, H]" : ""));
  to = vector_of(v, v.rank() - 1);
}

void Builder::score_operand(ScoreOperand& to, const View& v, const char* what) {
  checks::check_view(v, what);
  const std::array<std::int64_t, 4> full{p_.sequences, p_.q_heads, p_.tq, p_.tk};
  const int lead = 4 - v.rank();
  bool fits = lead >= 0;
  to = {static_cast<char*>(v.data), v.dtype, true, {}};
  for (int i = 0; fits && i < v.rank(); ++i) {
    const int axis = i + lead;
    fits = size(v, i) == 1 || size(v, i) == full[static_cast<std::size_t>(axis)];
    to.strides[static_cast<std::size_t>(axis)] = step(v, i);
  }
  if (!fits)
    throw Error(Code::shape, std::string(what) + " of shape " + describe(v.shape),
                "a shape that broadcasts to (B, H, T, S) = " + describe(full),
                p_.packed ? "of Varlen T and S are max_q and max_kv" : "");
}

/// What makes a score of a product.
void Builder::scores() {
  p_.scale = std::isnan(o_.scale) ? 1 / std::sqrt(static_cast<double>(p_.d)) : o_.scale;
  checks::check_scale(p_.scale, p_.is_double());
  checks::check_softcap(o_.softcap);
  p_.softcap = o_.softcap;
  const auto [left, right] = o_.window;
  if (left < -1 || right < -1)
    throw Error(Code::option, "a window of " + std::to_string(left) + ", " + std::to_string(right),
                "numbers of keys, or -1 for no limit", "a window of -1, -1: none");
  if (o_.causal && right > 0)
    throw Error(Code::option, "causal with window.right = " + std::to_string(right), "window.right = 0 or -1",
                "leave causal off, or window.right at -1");
  const auto limit = [&](std::int64_t reach) { return reach >= p_.tq + p_.tk ? -1 : reach; };
  p_.left = limit(left);
  p_.right = o_.causal ? 0 : limit(right);
  if (o_.sink.given()) {
    checks::check_floating(o_.sink, "sink");
    heads_vector(p_.sink, o_.sink, "sink", false);
  }
  if (o_.slopes.given()) {
    if (o_.slopes.dtype != DType::float32)
      throw Error(Code::dtype, "slopes of dtype " + std::string(name_of(o_.slopes.dtype)), "float32",
                  "convert them to float32");
    heads_vector(p_.slopes, o_.slopes, "slopes", true);
  }
  if (o_.bias.given()) {
    checks::check_floating(o_.bias, "bias");
    score_operand(p_.bias, o_.bias, "bias");
  }
  if (o_.mask.given()) {
    if (o_.mask.dtype != DType::boolean)
      throw Error(Code::dtype, "mask of dtype " + std::string(name_of(o_.mask.dtype)), "bool",
                  "a bool mask, true where a key exists; or give it as bias");
    score_operand(p_.mask, o_.mask, "mask");
  }
}

void Builder::per_sequence(VectorOperand& to, const View& v, const char* what) {
  if (!v.given()) return;
  check_integer(v, what, p_.sequences);
  to = vector_of(v, 0);
}

std::int64_t Builder::keys_of(std::int64_t b) const {
  return p_.packed ? integer_at(p_.kv_offsets, b + 1) - integer_at(p_.kv_offsets, b) : p_.tk;
}

/// Which keys each sequence has; what the host can read is checked here, and clamped by other devices' kernels.
void Builder::sequences() {
  per_sequence(p_.kv_lengths, o_.kv_lengths, "kv_lengths");
  per_sequence(p_.kv_starts, o_.kv_starts, "kv_starts");
  per_sequence(p_.kv_index, o_.kv_index, "kv_index");
  if (p_.packed && p_.kv_index.given)
    throw Error(Code::option, "kv_index with Varlen", "kv_index with Dense", "put the sequence into kv_offsets");
  if (!on_host_) return;
  const auto check = [](const VectorOperand& v, const char* what, std::int64_t b, std::int64_t most) {
    if (!v.given) return;
    const std::int64_t n = integer_at(v, b);
    if (n < 0 || n > most)
      throw Error(Code::data, std::string(what) + "[" + std::to_string(b) + "] = " + std::to_string(n),
                  "0 .. " + std::to_string(most));
  };
  for (std::int64_t b = 0; b < p_.sequences; ++b) {
    check(p_.kv_lengths, "kv_lengths", b, keys_of(b));
    check(p_.kv_starts, "kv_starts", b, p_.kv_lengths.given ? integer_at(p_.kv_lengths, b) : keys_of(b));
    check(p_.kv_index, "kv_index", b, p_.kv_sequences - 1);
  }
}

/// lse or state: (B, H, T), with as many axes as q less one, and with `vector` that many numbers in one axis more.
void Builder::row_result(AttentionTensor& to, const View& v, const char* what, std::int64_t vector) {
  checks::check_view(v, what);
  const int rank = v.rank() - (vector != 0 ? 1 : 0);
  const std::array<std::int64_t, 3> full{p_.packed ? 1 : p_.sequences, p_.q_heads, p_.q_tokens};
  const int lead = 3 - rank;
  bool fits = lead >= (p_.packed ? 1 : 0) && rank >= 1;
  std::array<std::int64_t, 3> strides{};
  for (int i = 0; fits && i < 3; ++i) {
    const auto at = static_cast<std::size_t>(i);
    fits = full[at] == (i < lead ? 1 : size(v, i - lead));
    strides[at] = i < lead ? 0 : step(v, i - lead);
  }
  if (vector != 0) fits = fits && v.shape.back() == vector && checks::stride_of(v, v.rank() - 1) == 1;
  if (!fits)
    throw Error(
        Code::shape, std::string(what) + " of shape " + describe(v.shape),
        (p_.packed ? "(H, total T) = " + describe(std::span(full).subspan(1)) : "(B, H, T) = " + describe(full)) +
            (vector != 0 ? " + [" + std::to_string(vector) + "], contiguous" : ""));
  to = {static_cast<char*>(v.data), v.dtype, true, strides[0], strides[1], strides[2]};
}

void Builder::results(std::span<const View> inputs, const View& out) {
  if (o_.lse.given()) {
    if (o_.lse.dtype != DType::float32 && o_.lse.dtype != DType::float64)
      throw Error(Code::dtype, "lse of dtype " + std::string(name_of(o_.lse.dtype)), "float32, float64");
    row_result(p_.lse, o_.lse, "lse", 0);
  }
  if (o_.state.given()) {
    const DType t = p_.is_double() ? DType::float64 : DType::float32;
    if (o_.state.dtype != t)
      throw Error(Code::dtype, "state of dtype " + std::string(name_of(o_.state.dtype)), std::string(name_of(t)));
    row_result(p_.state, o_.state, "state", 2 + p_.dv);
  }
  const std::pair<const View*, const char*> writes[] = {{&out, "out"}, {&o_.lse, "lse"}, {&o_.state, "state"}};
  for (std::size_t i = 0; i < std::size(writes); ++i) {
    const auto& [write, name] = writes[i];
    if (!write->given()) continue;
    checks::check_output(*write, name);
    checks::check_device(inputs[0], *write, name);
    for (const Read& r : reads(inputs, o_))
      if (r.view != nullptr && r.view->given()) checks::check_overlap(*write, name, *r.view, r.name, false);
    for (std::size_t j = 0; j < i; ++j)
      if (writes[j].first->given()) checks::check_overlap(*write, name, *writes[j].first, writes[j].second, false);
  }
}

}  // namespace

void build_attention(AttentionProblem& p, std::span<const View> inputs, std::span<const View> outputs,
                     const AttentionOptions& o) {
  if (inputs.size() != 3 || outputs.size() != 1)
    throw Error(
        Code::shape,
        std::to_string(inputs.size()) + " inputs and " + std::to_string(outputs.size()) + " outputs for attention",
        "3 inputs (q, k, v) and 1 output", "lse and state are options");
  const char* later = "what this version has: whole sequences, dense or packed, whose positions are their places";
  if (std::holds_alternative<Paged>(o.kv)) throw Error(Code::unsupported, "attention over pages (Paged)", later);
  if (o.q_positions.given() || o.kv_positions.given())
    throw Error(Code::unsupported, "attention with q_positions or kv_positions", later);
  for (const Read& r : reads(inputs, o))  // before the host reads any of them
    if (r.view != nullptr && r.view->given()) checks::check_device(inputs[0], *r.view, r.name);
  if (o.layout != Layout::bhtd && o.layout != Layout::bthd)
    throw Error(Code::option, "layout " + std::to_string(static_cast<int>(o.layout)), "Layout::bhtd or Layout::bthd");
  if (o.rung > Rung::merged)
    throw Error(Code::option, "rung " + std::to_string(static_cast<int>(o.rung)), "the values of Rung");
  p = AttentionProblem{};
  p.op = Op::attention;
  p.rung = o.rung;
  p.packed = std::holds_alternative<Varlen>(o.kv);
  Builder b(p, o, inputs[0].device.kind == DeviceKind::cpu);
  b.tensors(inputs, outputs[0]);
  b.packed_sizes();
  b.scores();
  b.sequences();
  b.results(inputs, outputs[0]);
}

}  // namespace v0
}  // namespace softfold
