#include "measure.hpp"

#include "interrupt.hpp"
#include "progress.hpp"
#include "tasks.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace softfold::cli {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 18;  // bytes a task moves; a multiple of a cache line

template <class Move>
void for_pieces(Executor& executor, std::size_t bytes, const Move& move) {
  run_tasks(executor, static_cast<std::int64_t>((bytes + kPiece - 1) / kPiece), [&](std::int64_t i) {
    const std::size_t first = static_cast<std::size_t>(i) * kPiece;
    move(first, std::min(kPiece, bytes - first));
  });
}

/// `to` and `from` lie at multiples of 64 bytes.
void stream(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  std::size_t i = 0;
  for (; i + 64 <= bytes; i += 64) {
    const auto* const s = reinterpret_cast<const __m128i*>(from + i);
    auto* const d = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_load_si128(s), b = _mm_load_si128(s + 1), c = _mm_load_si128(s + 2),
                  e = _mm_load_si128(s + 3);
    _mm_stream_si128(d, a);
    _mm_stream_si128(d + 1, b);
    _mm_stream_si128(d + 2, c);
    _mm_stream_si128(d + 3, e);
  }
  _mm_sfence();
  std::memcpy(to + i, from + i, bytes - i);
#else
  std::memcpy(to, from, bytes);
#endif
}

/// `from` lies at a multiple of 64 bytes. A line at a time, asked for twice ahead, as the library's kernels do: what is
/// to be a ceiling waits for memory no longer than they.
std::uint64_t folded(const std::byte* from, std::size_t bytes) {
  using Words [[gnu::vector_size(16), gnu::may_alias]] = std::uint64_t;
  constexpr std::size_t line = 64, near = 1024, far = 8192;
  Words a{}, b{}, c{}, d{};
  for (std::size_t i = 0; i + line <= bytes; i += line) {
    __builtin_prefetch(from + i + far, 0, 2);
    __builtin_prefetch(from + i + near, 0, 3);
    const auto* const x = reinterpret_cast<const Words*>(from + i);
    a ^= x[0], b ^= x[1], c ^= x[2], d ^= x[3];
  }
  a ^= b ^ c ^ d;
  return a[0] ^ a[1];
}

}  // namespace

Timed by_the_clock(std::function<void()> work) {
  return [work = std::move(work)](int calls) {
    const Stopwatch watch;
    for (int call = 0; call < calls; ++call) work();
    return watch.seconds();
  };
}

std::vector<std::vector<double>> take_turns(std::span<const Timed> work, double seconds, double shortest) {
  std::vector<std::vector<double>> times(work.size());
  std::vector<int> calls(work.size(), 1);
  const Stopwatch all;
  for (int round = 0; round < 4 || all.seconds() < seconds * static_cast<double>(work.size()); ++round) {
    for (std::size_t i = 0; i < work.size(); ++i) {
      check_interrupt();
      const double taken = work[i](calls[i]) / calls[i];
      if (round > 0) {
        times[i].push_back(taken);
      } else {
        calls[i] = static_cast<int>(std::clamp(shortest / taken, 1., 1000.));
      }
    }
  }
  return times;
}

void streaming_copy(Executor& executor, std::byte* to, const std::byte* from, std::size_t bytes) {
  for_pieces(executor, bytes, [=](std::size_t first, std::size_t count) { stream(to + first, from + first, count); });
}

void plain_copy(Executor& executor, std::byte* to, const std::byte* from, std::size_t bytes) {
  for_pieces(executor, bytes,
             [=](std::size_t first, std::size_t count) { std::memcpy(to + first, from + first, count); });
}

void pure_read(Executor& executor, const std::byte* from, std::size_t bytes) {
  std::atomic<std::uint64_t> all{0};  // used, so that the reads are not optimised away
  for_pieces(executor, bytes, [&](std::size_t first, std::size_t count) { all ^= folded(from + first, count); });
  static std::atomic<std::uint64_t> sink;
  sink = all.load();
}

}  // namespace softfold::cli
