// Calls captured in a graph.
#pragma once

#include "cuda/both.hpp"

namespace softfold_test {

/// What call() puts on a stream, to be put there again and again.
class Replay {
 public:
  template <class Call>
  Replay(cudaStream_t stream, const Call& call) : stream_(stream) {
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    call();
    cuda_check(cudaStreamEndCapture(stream, &graph_));
    cuda_check(cudaGraphInstantiate(&ready_, graph_, 0));
  }
  ~Replay() {
    cudaGraphExecDestroy(ready_);
    cudaGraphDestroy(graph_);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  void operator()() const { cuda_check(cudaGraphLaunch(ready_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

}  // namespace softfold_test
