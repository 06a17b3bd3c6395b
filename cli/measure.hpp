// Timing, and the ceilings that times are compared with.
#pragma once

#include "softfold/executor.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace softfold::cli {

/// Work that is done so many times; gives the seconds that this took.
using Timed = std::function<double(int calls)>;
/// By this process's clock.
Timed by_the_clock(std::function<void()> work);

/// Runs all of `work` in turn, again and again, for about `seconds` each and at least four times; returns the times of
/// each, in seconds, one a turn. In turn, so that whatever slows the machine slows all of them. What takes less than
/// `shortest` seconds, which the clock cannot tell well, is called several times at once.
std::vector<std::vector<double>> take_turns(std::span<const Timed> work, double seconds, double shortest = 2e-5);

/// Copies with all threads; the stores go past the cache where the processor can do that.
void streaming_copy(Executor& executor, std::byte* to, const std::byte* from, std::size_t bytes);
/// The same with plain stores, which is faster for what fits the cache.
void plain_copy(Executor& executor, std::byte* to, const std::byte* from, std::size_t bytes);
/// Reads with all threads.
void pure_read(Executor& executor, const std::byte* from, std::size_t bytes);

}  // namespace softfold::cli
