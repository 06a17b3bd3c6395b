#include "partial_bytes.hpp"

#include "softfold/config.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace softfold::python {
namespace {

constexpr std::string_view kMagic = "SFPY";

class Writer {
 public:
  template <class T>
  void put(const T& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <class T>
  void put(std::span<const T> values) {
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  std::string bytes;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    T value;
    take(&value, 1);
    return value;
  }
  template <class T>
  std::vector<T> get(std::int64_t count) {
    if (count < 0 || count > static_cast<std::int64_t>(bytes_.size() / sizeof(T))) refuse();
    std::vector<T> values(static_cast<std::size_t>(count));
    if (count > 0) take(values.data(), values.size());
    return values;
  }
  void end() const {
    if (!bytes_.empty()) refuse();
  }
  [[noreturn]] static void refuse() {
    throw Error(Code::state, "bytes that are no partial of a row", "what Partial.to_bytes() gave");
  }

 private:
  template <class T>
  void take(T* to, std::size_t count) {
    if (bytes_.size() < count * sizeof(T)) refuse();
    std::memcpy(to, bytes_.data(), count * sizeof(T));
    bytes_.remove_prefix(count * sizeof(T));
  }
  std::string_view bytes_;
};

template <class T>
std::string write(const Partial<T>& p) {
  Writer w;
  w.bytes = kMagic;
  w.put(std::int32_t{SOFTFOLD_BITS_VERSION});
  w.put(std::int32_t{sizeof(T) == 4 ? 24 : 53});
  w.put(p.scale());
  w.put(p.offset());
  for (const std::size_t n : {p.head().size(), p.nodes().size(), p.tail().size()}) w.put(static_cast<std::int64_t>(n));
  w.put(p.head());
  for (const auto& node : p.nodes()) {
    w.put(node.begin);
    w.put(std::int64_t{node.level});
    w.put(static_cast<double>(node.state.m));
    w.put(static_cast<double>(node.state.d));
  }
  w.put(p.tail());
  return w.bytes;
}

template <class T>
AnyPartial read(Reader& r) {
  const auto scale = r.get<double>();
  const auto offset = r.get<std::int64_t>();
  const auto heads = r.get<std::int64_t>(), nodes = r.get<std::int64_t>(), tails = r.get<std::int64_t>();
  const std::vector<T> head = r.get<T>(heads);
  std::vector<typename Partial<T>::Node> tree;
  for (std::int64_t i = 0; i < nodes; ++i) {
    const auto begin = r.get<std::int64_t>(), level = r.get<std::int64_t>();
    const auto m = r.get<double>(), d = r.get<double>();
    if (level < 0 || level >= lift::kMaxLevels) Reader::refuse();
    tree.push_back({begin, static_cast<int>(level), {m, static_cast<T>(d)}});
  }
  const std::vector<T> tail = r.get<T>(tails);
  r.end();
  return Partial<T>(scale, offset, head, tree, tail);
}

}  // namespace

std::string to_bytes(const AnyPartial& partial) {
  return std::visit([](const auto& p) { return write(p); }, partial);
}

AnyPartial from_bytes(std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) Reader::refuse();
  Reader r(bytes.substr(kMagic.size()));
  const auto version = r.get<std::int32_t>();
  if (version != SOFTFOLD_BITS_VERSION)
    throw Error(Code::state, "a partial of bits version " + std::to_string(version),
                "bits version " + std::to_string(SOFTFOLD_BITS_VERSION), "fold every shard with one version");
  const auto digits = r.get<std::int32_t>();
  if (digits == 24) return read<float>(r);
  if (digits != 53) Reader::refuse();
  return read<double>(r);
}

}  // namespace softfold::python
