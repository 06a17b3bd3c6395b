#include "progress.hpp"

#include "arguments.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>

namespace softfold::cli {
namespace {

constexpr double kPatience = 0.4;  // seconds without a bar
constexpr double kRefresh = 0.1;
constexpr int kWidth = 30;

std::string duration(double seconds) {
  const auto s = static_cast<long>(seconds + 0.5);
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

Progress::Progress(std::uint64_t total) : total_(std::max<std::uint64_t>(1, total)), terminal_(::isatty(2) == 1) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

void Progress::add(std::uint64_t bytes) {
  done_ += bytes;
  const double now = watch_.seconds();
  if (!terminal_ || now < kPatience || now < last_ + kRefresh) return;
  last_ = now;
  shown_ = true;
  const double part = std::min(1., static_cast<double>(done_) / static_cast<double>(total_));
  const double rate = static_cast<double>(done_) / now;
  const int filled = static_cast<int>(part * kWidth);
  fmt::print(stderr, "\r\x1b[K[{:#<{}}{:.<{}}] {:3.0f}%  {}/s  {} left", "", filled, "", kWidth - filled, 100 * part,
             human_bytes(rate), duration(static_cast<double>(total_ - std::min(done_, total_)) / rate));
  std::fflush(stderr);
}

}  // namespace softfold::cli
