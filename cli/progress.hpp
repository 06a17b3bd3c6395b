// A line on the terminal: how far, how fast, how long still.
#pragma once

#include <chrono>
#include <cstdint>

namespace softfold::cli {

/// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Shown on standard error if that is a terminal and the work takes longer than a moment; gone when the work is done.
/// Used from one thread.
class Progress {
 public:
  /// `total`: bytes that will be read and written in all.
  explicit Progress(std::uint64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::uint64_t bytes);

 private:
  std::uint64_t total_, done_ = 0;
  bool terminal_, shown_ = false;
  double last_ = 0;
  Stopwatch watch_;
};

}  // namespace softfold::cli
