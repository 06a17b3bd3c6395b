// What the tests of the command share: running it, and arrays to run it on.
#pragma once

#include "softfold/fold/float16.hpp"
#include "softfold/io/array_file.hpp"
#include "softfold/io/array_output.hpp"
#include "softfold/softfold.hpp"
#include "support/bits.hpp"
#include "support/files.hpp"
#include "support/sanitized.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace softfold_test {

using softfold::Code;
using softfold::DType;
using Shape = std::vector<std::int64_t>;
using Words = std::vector<std::string>;

// A sanitizer's own memory is not ours to bound.
// And there everything takes five times as long: what only has to be long is shorter by this.
inline constexpr int kShorter = kSanitized ? 5 : 1;

/// An empty folder for one test, and the command run on files in it.
class CommandTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  const std::string& folder() const { return folder_; }
  /// Every file in the folder, hidden ones too.
  std::size_t entries() const { return static_cast<std::size_t>(temporary_.entries()); }

  /// An .npy file of float32 of this shape, as "5, 0", and no data.
  void write_header(const std::string& name, const std::string& shape) const {
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }";
    header.resize(117, ' ');
    std::ofstream(at(name), std::ios::binary) << std::string("\x93NUMPY\x01\x00\x76\x00", 10) << header << '\n';
  }

  struct Result {
    int status;             ///< exit status, or -signal
    std::string out, err;   ///< what it printed
    std::int64_t peak_rss;  ///< bytes
  };

  /// Starts the command; words that begin with '@' are names in the folder. Its standard error is a file that wait_for
  /// reads, or what is given.
  pid_t start(const Words& words, const std::string& standard_error = {}) const {
    std::vector<std::string> all{SOFTFOLD_COMMAND};
    for (const std::string& word : words) all.push_back(word.starts_with('@') ? at(word.substr(1)) : word);
    std::vector<char*> arguments;
    for (std::string& word : all) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string out = folder_ + ".out", err = standard_error.empty() ? folder_ + ".err" : standard_error;
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }

  Result wait_for(pid_t child) const {
    int status = 0;
    struct rusage usage {};
    ::wait4(child, &status, 0, &usage);
    Result result{WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), contents(folder_ + ".out"),
                  contents(folder_ + ".err"), static_cast<std::int64_t>(usage.ru_maxrss) * 1024};
    ::unlink((folder_ + ".out").c_str());
    ::unlink((folder_ + ".err").c_str());
    return result;
  }

  /// Waits until the command has begun to write this many outputs; false if it ended before.
  bool wait_for_temporary(pid_t child, int outputs = 1) const {
    const std::string mark = std::to_string(child) + "-";
    for (;;) {
      int begun = 0;
      for (const auto& entry : std::filesystem::directory_iterator(folder_))
        if (entry.path().filename().string().find(mark) != std::string::npos) ++begun;
      if (begun >= outputs) return true;
      siginfo_t info{};
      if (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0)
        return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  /// Runs it, and does something meanwhile: once it has begun to write, and stands still for that long.
  template <class Meanwhile>
  Result run_while(const Words& words, const Meanwhile& meanwhile, int outputs = 1) const {
    const pid_t child = start(words);
    EXPECT_TRUE(wait_for_temporary(child, outputs));
    ::kill(child, SIGSTOP);
    meanwhile();
    ::kill(child, SIGCONT);
    return wait_for(child);
  }

  Result run(const Words& words) const { return wait_for(start(words)); }

  /// Runs it; it must succeed. Returns what it printed.
  std::string expect_ok(const Words& words) const {
    const Result result = run(words);
    EXPECT_EQ(result.status, 0) << ::testing::PrintToString(words) << "\n" << result.err;
    return result.out;
  }

  /// Runs it; it must refuse with this status and a message that holds `part`.
  void expect_refused(Code code, const std::string& part, const Words& words) const {
    const Result result = run(words);
    EXPECT_EQ(result.status, static_cast<int>(code)) << ::testing::PrintToString(words) << "\n" << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err << "lacks: " << part;
    EXPECT_NE(result.err.find("allowed:"), std::string::npos) << result.err;
  }

 private:
  TemporaryFolder temporary_;
  std::string folder_ = temporary_.path();
};

/// Elements of `dtype`, normally distributed enough: sums of uniforms, times `spread`.
inline std::vector<std::byte> random_elements(DType dtype, std::int64_t count, double spread, std::uint64_t seed = 1) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * softfold::size_of(dtype));
  Random random(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = spread * (random.uniform(-1, 1) + random.uniform(-1, 1) + random.uniform(-1, 1));
    const auto put = [&](auto stored) {
      std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof stored, &stored, sizeof stored);
    };
    switch (dtype) {
      case DType::float32: put(static_cast<float>(value)); break;
      case DType::float64: put(value); break;
      case DType::float16: put(softfold::fold::narrow<softfold::fold::Float16>(value)); break;
      default: put(softfold::fold::narrow<softfold::fold::BFloat16>(value)); break;
    }
  }
  return bytes;
}

inline void write_array(const std::string& path, DType dtype, const Shape& shape, std::span<const std::byte> bytes) {
  auto output = softfold::io::create_array(path, {"x", dtype, shape});
  output.write(0, bytes);
  output.commit();
}

inline std::vector<std::byte> elements_of(const softfold::io::ArrayFile& file) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.bytes()));
  file.read(0, bytes);
  return bytes;
}

inline Shape shape_of(const softfold::io::ArrayFile& file) { return {file.shape().begin(), file.shape().end()}; }

}  // namespace softfold_test
