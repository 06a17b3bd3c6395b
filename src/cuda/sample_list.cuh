// A few elements of a row that its blocks collect, among which the first of them finds a threshold.
#pragma once

#include "cuda/sample_select.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Elements that a block's threads have, kPer each.
struct FoundElements {
  static constexpr int kPer = 8;
  float v[kPer];

  template <class F>
  __device__ __forceinline__ void for_vectors(bool, const F& f) const {
    f(v);
  }
};

/// A few elements of a row, which all blocks of it put into the first one's shared memory.
class SampleList {
 public:
  struct Shared {
    unsigned found;                  ///< by the block
    unsigned of[kMostSampleBlocks];  ///< by all blocks
    typename SampleSelect<FoundElements>::Shared select;
  };

  /// It lies in the upper words of the bins.
  __device__ __forceinline__ SampleList(SampleTeam& team, SampleBins& bins, SampleTeam::Mail& mail, Shared& shared)
      : team_(team), bins_(bins), mail_(mail), shared_(shared) {
    const int most = min(kBins, FoundElements::kPer * static_cast<int>(blockDim.x));  // which with_all() can take
    room_ = most >> (32 - __clz(team.segments() - 1));
  }
  /// By all blocks together; before a barrier of the block.
  __device__ __forceinline__ void clear() const {
    if (threadIdx.x == 0) shared_.found = 0;
  }
  /// By any thread; what is too much is counted alone.
  __device__ __forceinline__ void add(float x) const {
    const auto at = static_cast<int>(atomicAdd(&shared_.found, 1U));
    if (at < room_) team_.tell_first(bins_.high[team_.segment() * room_ + at], __float_as_uint(x));
  }
  /// By the first block, behind a sync() of all: how many there are, and whether all have found room.
  struct Count {
    int found;
    bool fits;
  };
  __device__ __forceinline__ Count count() const {
    const int segments = team_.segments();
    if (static_cast<int>(threadIdx.x) < segments)
      shared_.of[threadIdx.x] = SampleTeam::of(shared_.found, static_cast<int>(threadIdx.x), segments);
    __syncthreads();
    Count all{0, true};
    for (int s = 0; s < segments; ++s) {
      const auto own = static_cast<int>(shared_.of[s]);
      all.found += own, all.fits = all.fits && own <= room_;
    }
    return all;
  }
  /// Then the i-th of them.
  __device__ __forceinline__ float at(int i) const {
    int block = 0;
    for (; i >= static_cast<int>(shared_.of[block]); ++block) i -= static_cast<int>(shared_.of[block]);
    return __uint_as_float(bins_.high[block * room_ + i]);
  }
  /// Or f(select, elements, a team of the block alone) by the first block, for which the list makes room; absent ones
  /// are -inf.
  template <class F>
  __device__ __forceinline__ float with_all(const F& f) const {
    FoundElements all;
#pragma unroll
    for (int i = 0; i < FoundElements::kPer; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x), block = at / room_;
      const bool is_one = block < team_.segments() && at % room_ < static_cast<int>(shared_.of[block]);
      all.v[i] = is_one ? __uint_as_float(bins_.high[at]) : -__builtin_inff();
    }
    SampleTeam alone(mail_, 1, 0);
    alone.sync();
    SampleSelect<FoundElements> select(alone, all, bins_, shared_.select);
    return f(select, all, alone);
  }

 private:
  SampleTeam& team_;
  SampleBins& bins_;
  SampleTeam::Mail& mail_;
  Shared& shared_;
  int room_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
