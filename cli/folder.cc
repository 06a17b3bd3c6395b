#include "folder.hpp"

#include "elements.hpp"

#include <algorithm>
#include <bit>

namespace softfold::cli {
namespace {

constexpr std::int64_t kChunk = lift::kChunk;

/// Appends the elements one by one to each row's partial: they do not fill a chunk.
template <class T>
void take_raw(std::vector<Partial<T>>& partials, DType dtype, const std::byte* block, std::int64_t columns,
              std::int64_t pitch) {
  with_floating(dtype, [&]<class S>(S) {
    T wide[kChunk];
    for (std::size_t r = 0; r < partials.size(); ++r) {
      const S* const from = reinterpret_cast<const S*>(block) + static_cast<std::int64_t>(r) * pitch;
      for (std::int64_t i = 0; i < columns; ++i) wide[i] = static_cast<T>(fold::widen(from[i]));
      partials[r].append({wide, static_cast<std::size_t>(columns)});
    }
  });
}

template <class T>
void append_states(std::vector<double>& into, const std::vector<Partial<T>>& partials) {
  for (const Partial<T>& p : partials) {
    const auto s = p.state();
    into.insert(into.end(), {s.m, static_cast<double>(s.d), p.scale(), static_cast<double>(fold::Real<T>::kDigits)});
  }
}

}  // namespace

Folder::Folder(DType dtype, double scale, std::int64_t offset, std::int64_t rows, const Compute& compute)
    : dtype_(dtype), scale_(scale), rows_(rows), compute_(compute) {
  const auto count = static_cast<std::size_t>(rows);
  with_floating(dtype, [&]<class S>(S) {
    using T = fold::FoldType<S>;
    partials_ = std::vector<Partial<T>>(count, Partial<T>(scale, offset));
  });
}

std::int64_t Folder::end() const {
  return std::visit([](const auto& p) { return p.empty() ? 0 : p[0].end(); }, partials_);
}

void Folder::take(const std::byte* block, std::int64_t columns, std::int64_t pitch) {
  const auto size = static_cast<std::int64_t>(size_of(dtype_));
  std::visit(
      [&](auto& partials) {
        const std::int64_t head = std::min(columns, (kChunk - end() % kChunk) % kChunk);
        if (head > 0) take_raw(partials, dtype_, block, head, pitch);
        const std::int64_t whole = (columns - head) / kChunk * kChunk;
        take_nodes(partials, block + head * size, whole, pitch);
        const std::int64_t tail = columns - head - whole;
        if (tail > 0) take_raw(partials, dtype_, block + (head + whole) * size, tail, pitch);
      },
      partials_);
}

/// Whole chunks: the state of 2^level aligned chunks is the tree's node, so the library's kernels compute it.
template <class T>
void Folder::take_nodes(std::vector<Partial<T>>& partials, const std::byte* block, std::int64_t columns,
                        std::int64_t pitch) {
  std::vector<double> states(4 * partials.size());
  const std::int64_t states_shape[] = {rows_, 4}, strides[] = {pitch, 1};
  RowOptions options;
  options.scale = scale_;
  for (std::int64_t done = 0; done < columns;) {
    int level = 63 - std::countl_zero(static_cast<std::uint64_t>((columns - done) / kChunk));
    const std::int64_t chunk = end() / kChunk;
    if (chunk != 0) level = std::min(level, std::countr_zero(static_cast<std::uint64_t>(chunk)));
    const std::int64_t shape[] = {rows_, kChunk << level};
    const void* const from = block + done * static_cast<std::int64_t>(size_of(dtype_));
    const View x(from, dtype_, shape, strides), y(states.data(), DType::float64, states_shape);
    compute_.run(Op::state, {&x, 1}, {&y, 1}, options);
    for (std::size_t r = 0; r < partials.size(); ++r)
      partials[r].push_node({states[4 * r], static_cast<T>(states[4 * r + 1])}, level);
    done += shape[1];
  }
}

std::vector<double> Folder::states() const { return states_of(partials_); }

std::vector<double> states_of(const io::PartialRows& rows) {
  std::vector<double> all;
  std::visit([&](const auto& partials) { append_states(all, partials); }, rows);
  return all;
}

}  // namespace softfold::cli
