// Which rows clusters that stay take, and the words by which blocks of any cluster tell each other.
#pragma once

#include "cuda/softmax_plain.cuh"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// How parts of rows land: anywhere, if rows may begin and end inside vectors; else on vectors, to sectors as they lie
/// in x, or in one place whatever the row, if all begin on sectors or it is faster nevertheless.
enum class Lands { anywhere, on_vectors, in_one_place };

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
/// The larger of a and what is there, which others may send to at the same time.
__device__ __forceinline__ void send_largest(unsigned to, unsigned barrier, int a) {
  asm volatile(
      "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.s32 [%0], %1, [%2];" ::"r"(to),
      "r"(a), "r"(barrier)
      : "memory");
}
/// Returns once the phase of this parity is complete; what other blocks of the cluster sent is then visible. By an
/// order of all memory the L1 cache forgets what it holds; kKeepsCache: by one of shared memory alone. Measured: to
/// forget is faster for most kernels, by up to a sixth.
template <bool kKeepsCache = false>
__device__ __forceinline__ void wait_for_words(CopyBarrier& barrier, unsigned parity) {
  const unsigned word = shared_address(&barrier.word);
  if constexpr (kKeepsCache) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again_%=:\n"
        "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again_%=;\n"
        "}\n"
        "fence.acquire.sync_restrict::shared::cluster.cluster;\n" ::"r"(word),
        "r"(parity)
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again_%=:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again_%=;\n"
        "}\n" ::"r"(word),
        "r"(parity)
        : "memory");
  }
}

/// Counts 0, 1, 2, … for all clusters, or blocks, of a launch, in a word that may hold anything before, so that no
/// launch has to clear it. Its upper half is a mark, its lower half counts. Who finds anything else than the mark and a
/// count below `all` sets it to the mark and 0. What is taken comes to `all` exactly, which makes the count 0 again;
/// then the mark goes, too, so that a word of which others write over a part is not taken for a count. That happens
/// only if another launch works with it at the same time, or with a chance of all / 2^64. (All accesses are atomic, as
/// they must be for words of two sizes.)
struct RowCounter {
  using Word = CounterWord;
  static constexpr Word kMark = 0xB5E1'A6C4'0000'0000ULL;

  Word* word;
  unsigned all;

  __device__ __forceinline__ Word seen() const { return atomicCAS(word, kMark, kMark); }
  /// By a thread of each cluster that takes, before its first. If the word is not what was seen, another has set it.
  __device__ __forceinline__ void begin(Word seen) const {
    if (seen - kMark >= all) atomicCAS(word, seen, kMark);
  }
  /// (Of an addition ptxas would have a warp's lanes add at once, and wait for what comes back.)
  __device__ __forceinline__ unsigned take() const { return atomicInc(reinterpret_cast<unsigned*>(word), all - 1); }
  /// By each thread that has taken, after its last, or by the one that took the last.
  __device__ __forceinline__ void end() const { atomicCAS(word, kMark, 0ULL); }
};

/// Which rows a cluster takes: its first ones by a stride, the rest as it comes to them, one by one from a counter that
/// all clusters share, because processors do not all read equally fast. The cluster's first thread asks for a row once
/// the mail of one has come, and its warp sends it with the mail of the next, before that row's sums, for which others
/// wait. It looks at the answer, which takes 2 us, only then (at once: 5 percent slower). What can wait in
/// shared memory does: registers are for elements, and spilled ones come from the L2 cache behind each row's mail
/// (measured, for one: 0.82 to 0.92 of a copy instead of 0.93 to 1.01).
///
/// A row's mail brings the one that is taken kAhead steps later. Two is the least: at a step the next row has to be
/// known, when the mail of the step before has come, or of rows that are written behind, of which it is three, of the
/// one before that. The more, the more rows are left when the counter has come to the end, and some clusters are ready
/// before others.
template <int kAhead = 2>
class RowSource {
 public:
  static constexpr int kPlaces = 8;           ///< more than the steps that some warp may be at, and those ahead
  static constexpr int kBytes = sizeof(int);  ///< of a row's mail

  /// In shared memory.
  struct Queue {
    int rows[kPlaces];  ///< of the steps to come
    int taken;          ///< the row that is sent next
  };

  __device__ __forceinline__ RowSource(const RowCounter& counter, int clusters, Queue& queue)
      : counter_(counter), clusters_(clusters), queue_(queue) {}
  /// By all threads of the block, before the cluster's barrier. What begin() is called with is on its way then.
  __device__ __forceinline__ RowCounter::Word init() const {
    if (threadIdx.x < kAhead) queue_.rows[threadIdx.x] = by_stride(static_cast<int>(threadIdx.x));
    if (threadIdx.x == 0) queue_.taken = by_stride(kAhead);
    return threadIdx.x == 0 && lift::Cluster::rank() == 0 ? counter_.seen() : 0;
  }
  __device__ __forceinline__ void begin(RowCounter::Word seen) const {
    if (threadIdx.x == 0 && lift::Cluster::rank() == 0) counter_.begin(seen);
  }
  /// Before the first row, and again behind a call, across which nothing lives in registers that are for elements.
  __device__ __forceinline__ void resume() {
    leads_ = lift::Cluster::rank() == 0 && threadIdx.x < 32;
    before_ = queue_.taken - (kAhead + 1) * clusters_;
  }
  /// The row of one of the first steps.
  __device__ __forceinline__ int by_stride(int step) const {
    unsigned cluster;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
    return static_cast<int>(cluster) + step * clusters_;
  }
  /// As soon as the mail of kAhead rows before has come.
  __device__ __forceinline__ int row(int step) const { return queue_.rows[static_cast<unsigned>(step) % kPlaces]; }
  /// Once for every row that the cluster takes. (Who does not ask gets 0, or the number before would live on.)
  __device__ __forceinline__ void ask() {
    before_ = 0;
    if (leads_ && lane_index() == 0) before_ = static_cast<int>(counter_.take());
  }
  /// The row that was asked for, the first time one by the stride; before a __syncwarp() and send(), or resume().
  __device__ __forceinline__ void keep() const {
    if (leads_ && lane_index() == 0) queue_.taken = before_ + (kAhead + 1) * clusters_;
  }
  /// Behind the cluster's last row.
  __device__ __forceinline__ void end() const {
    if (lift::Cluster::rank() == 0 && thread_index() == 0) counter_.end();
  }
  /// arrived: the barrier of the step's mail.
  __device__ __forceinline__ void send(int step, CopyBarrier& arrived) const {
    if (!leads_) return;
    const unsigned to = thread_index() % 32;
    if (to >= lift::Cluster::size()) return;
    send_u32(lift::Cluster::map(&queue_.rows[static_cast<unsigned>(step + kAhead) % kPlaces], to),
             lift::Cluster::map(&arrived, to), static_cast<unsigned>(queue_.taken));
  }

 private:
  RowCounter counter_;
  int clusters_;
  Queue& queue_;
  bool leads_ = false;
  int before_ = 0;  ///< rows that the counter had given, of the first mail's as if it had been taken from it
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
