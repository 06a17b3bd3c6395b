// CUDA as the command uses it. cuda.cc does it; cuda_absent.cc refuses it in a build without CUDA. The driver is not
// touched before one of these is called.
#pragma once

#include "measure.hpp"

#include "softfold/linear_options.hpp"
#include "softfold/options.hpp"
#include "softfold/plan.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace softfold::cli {

/// Options of an operation that a verb runs.
using OpOptions = std::variant<RowOptions, AttentionOptions, CrossEntropyOptions, LinearCrossEntropyOptions,
                               EntropyOptions, KlDivergenceOptions, TopkOptions, SampleOptions>;

/// What of CUDA this build and this machine have.
struct CudaFound {
  struct Device {
    std::string name, architecture;  ///< "NVIDIA H200", "sm_90"
    int processors;
    std::uint64_t memory, free_memory;  ///< bytes
  };
  std::string targets;          ///< architectures that the kernels are compiled for; empty in a build without CUDA
  std::string runtime, driver;  ///< versions, as "13.0"; empty: none
  std::vector<Device> devices;
  std::string why_not;  ///< empty if there is a device to use
};
CudaFound find_cuda();
/// Throws Error{Code::unsupported} in a build without CUDA.
void require_cuda_build();

/// The first device, a stream on it, and memory that is kept from call to call.
class CudaDevice {
 public:
  /// Throws Error: Code::unsupported in a build without CUDA, Code::device without a driver or a device.
  CudaDevice();
  ~CudaDevice();

  std::uint64_t free_bytes() const;
  /// Copies the inputs to the device, runs the operation there, copies the outputs back and waits; with both go what
  /// verbs give among the options. All lie in host memory, contiguous, or in rows that are one stride apart. Gives the
  /// kernel's name.
  std::string run(Op op, std::span<const View> inputs, std::span<const View> outputs, OpOptions options);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Rows on the first device and room for their results, where plans are timed in turn with a copy: CUDA events around
/// replays of graphs, in which no launch waits for the host.
class CudaTrack {
 public:
  /// Throws as CudaDevice does.
  CudaTrack(std::span<const std::byte> x, std::size_t y_bytes);
  ~CudaTrack();

  /// The first's bytes and the second's, on the device.
  const void* x() const;
  void* y() const;
  /// make(context) plans on the track's stream; the plan has a workspace of its own there.
  Plan plan(const std::function<Plan(const Context&)>& make);
  /// Runs a plan once and brings what lies at y() here.
  void run(const Plan& plan, std::span<std::byte> y);
  Timed timed(const Plan& plan);
  /// `bytes` from x() to y().
  Timed timed_copy(std::size_t bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace softfold::cli
