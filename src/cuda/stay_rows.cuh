// Which rows clusters that stay take, and the words by which their blocks tell each other.
#pragma once

#include "cuda/softmax_plain.cuh"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// threadIdx.x, read anew: where registers are for elements, what follows from it need not be kept in others.
__device__ __forceinline__ unsigned thread_index() {
  unsigned i;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(i));
  return i;
}
__device__ __forceinline__ int lane_index() { return static_cast<int>(thread_index() % 32); }
__device__ __forceinline__ int warp_index() { return static_cast<int>(thread_index() / 32); }

/// 4, 8 or 16 bytes to another block's shared memory; its barrier counts them.
__device__ __forceinline__ void send_u32(unsigned to, unsigned barrier, unsigned a) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(a),
               "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send_word(unsigned to, unsigned barrier, std::uint64_t a) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to), "l"(a),
               "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send_words(unsigned to, unsigned barrier, std::uint64_t a, std::uint64_t b) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];" ::"r"(to), "l"(a),
               "l"(b), "r"(barrier)
               : "memory");
}
/// Returns once the phase of this parity is complete; what other blocks of the cluster sent is then visible.
__device__ __forceinline__ void wait_for_words(CopyBarrier& barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=;\n"
      "}\n" ::"r"(shared_address(&barrier.word)),
      "r"(parity)
      : "memory");
}

/// Rows of the steps to come, in shared memory; more places than the steps that some warp may be at, and those ahead.
struct RowQueue {
  static constexpr int kPlaces = 8;
  int rows[kPlaces];
  __device__ __forceinline__ int& operator[](int step) { return rows[static_cast<unsigned>(step) % kPlaces]; }
};

/// Which rows a cluster takes: its first ones by a stride, the rest as it comes to them, one by one from a counter that
/// all clusters share, because processors do not all read equally fast; without a counter all by the stride. The
/// cluster's first thread asks for a row while it writes one, and its warp sends it with the mail of the next, long
/// before that row's sums, for which others wait.
class RowSource {
 public:
  static constexpr int kAhead = 3;  ///< a row's mail brings the one that is taken so many steps later

  /// By all threads of the block, before the cluster's barrier. counter: 0 before the kernel; null: none.
  __device__ __forceinline__ RowSource(unsigned* counter, int clusters, RowQueue& queue)
      : counter_(counter),
        clusters_(clusters),
        queue_(queue),
        leads_(counter != nullptr && lift::Cluster::rank() == 0 && threadIdx.x < 32),
        before_(by_stride(-1)) {
    if (threadIdx.x < kAhead) queue[static_cast<int>(threadIdx.x)] = by_stride(static_cast<int>(threadIdx.x));
  }
  /// The row of one of the first steps.
  __device__ __forceinline__ int by_stride(int step) const {
    unsigned cluster;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
    return static_cast<int>(cluster) + step * clusters_;
  }
  /// Bytes of a row's mail.
  __device__ __forceinline__ int bytes() const { return counter_ == nullptr ? 0 : static_cast<int>(sizeof(int)); }
  /// As soon as the mail of kAhead rows before has come.
  __device__ __forceinline__ int row(int step) const { return counter_ == nullptr ? by_stride(step) : queue_[step]; }
  /// (Of an addition ptxas would have a warp's lanes add at once, and wait for what comes back.)
  __device__ __forceinline__ void ask() {
    if (leads_ && lane_index() == 0) before_ = static_cast<int>(atomicInc(counter_, 0x7FFFFFFFU));
  }
  /// The row that was asked for, the first time one by the stride. arrived: the barrier of the step's mail.
  __device__ __forceinline__ void send(int step, CopyBarrier& arrived) const {
    if (!leads_) return;
    const int row = __shfl_sync(lift::kWholeWarp, before_, 0) + (kAhead + 1) * clusters_;
    const unsigned to = lane_index();
    if (to < lift::Cluster::size())
      send_u32(lift::Cluster::map(&queue_[step + kAhead], to), lift::Cluster::map(&arrived, to),
               static_cast<unsigned>(row));
  }

 private:
  unsigned* counter_;
  int clusters_;
  RowQueue& queue_;
  bool leads_;
  int before_;  ///< rows that the counter had given, of the first mail's as if it had been taken from it
};

/// RowSource of a kernel that has no register left: a row that was taken waits in shared memory until it is sent, with
/// the sums, and rows by the stride come by mail, too. What RowSource keeps from row to row would be spilled here, and
/// behind each row's mail spilled registers come from the L2 cache (measured: 0.82 to 0.92 of a copy instead of 0.93
/// to 1.01).
class KeptRowSource {
 public:
  static constexpr int kAhead = RowSource::kAhead;
  static constexpr int kBytes = sizeof(int);  ///< of a row's mail
  struct Queue {
    RowQueue rows;
    int taken;
  };

  /// counter: 0 before the kernel; null: none.
  __device__ __forceinline__ KeptRowSource(unsigned* counter, int clusters, Queue& queue)
      : counter_(counter), clusters_(clusters), queue_(queue) {}
  /// By all threads of the block, before the cluster's barrier.
  __device__ __forceinline__ void init() {
    if (threadIdx.x <= kAhead) queue_.rows.rows[threadIdx.x] = by_stride(static_cast<int>(threadIdx.x));
    if (threadIdx.x == 0) queue_.taken = by_stride(kAhead);
  }
  /// Behind it.
  __device__ __forceinline__ void begin() {
    leads_ = lift::Cluster::rank() == 0 && threadIdx.x < 32;
    last_ = queue_.taken - offset();
  }
  __device__ __forceinline__ int by_stride(int step) const {
    return static_cast<int>(blockIdx.x / lift::Cluster::size()) + step * clusters_;
  }
  __device__ __forceinline__ int row(int step) const { return queue_.rows[step]; }
  __device__ __forceinline__ void ask() {
    if (!leads_) return;
    if (lane_index() == 0)
      last_ = counter_ == nullptr ? last_ + clusters_ : static_cast<int>(atomicInc(counter_, 0x7FFFFFFFU));
  }
  /// The answer to shared memory; before a __syncwarp() and send().
  __device__ __forceinline__ void keep() {
    if (!leads_) return;
    if (lane_index() == 0) queue_.taken = last_ + offset();
  }
  __device__ __forceinline__ void send(int step, CopyBarrier& arrived) const {
    if (!leads_) return;
    const unsigned to = thread_index() % 32;
    if (to < lift::Cluster::size())
      send_u32(lift::Cluster::map(&queue_.rows[step + kAhead], to), lift::Cluster::map(&arrived, to),
               static_cast<unsigned>(queue_.taken));
  }

 private:
  __device__ __forceinline__ int offset() const { return counter_ == nullptr ? 0 : (kAhead + 1) * clusters_; }

  unsigned* counter_;
  int clusters_;
  Queue& queue_;
  bool leads_ = false;
  int last_ = 0;  ///< offset() less than a row
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
