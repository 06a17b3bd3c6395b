// softmax and log_softmax along an outer axis: rows lie side by side in memory, so a tile of neighbouring rows is read
// with neighbouring lanes, each row by as many threads of a block as it has residue classes.
#pragma once

#include "cuda/across_share.cuh"
#include "cuda/across_words.cuh"
#include "cuda/softmax_rows.cuh"
#include "cuda/tree_nodes.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A thread's part of a tile: kCount elements of each of kRows rows at a time. Several rows are whole and alike.
template <class E, bool kLog, int kRows>
struct AcrossRows {
  static constexpr int kCount = kAcrossCount;
  using Lse = fold::LogSumExp<float>;
  using S = fold::Scalar<float>;
  using State = typename Lse::State;
  using Words = AcrossWord<E, kRows>;
  using Word = typename Words::Word;
  using Storage = AcrossStorage<kRows>;
  static constexpr int kWarps = kAcrossThreads / 32, kOfThread = kRows;
  static constexpr bool kLogarithms = kLog;
  static constexpr int kSize = static_cast<int>(sizeof(E));

  struct Chunk {
    float v[kRows][kCount];  ///< elements, then terms (log_softmax: elements)
    State states[kRows];     ///< of the whole chunk
    float units[kRows];      ///< terms times unit are in the frame state.m
    bool dense;              ///< every term of every row is at least 2^-62
  };

  const RowProblem& p;
  const AcrossShare& share;
  Storage& storage;
  const Row& r;       ///< the first of the thread's rows
  int column, first;  ///< in the tile; first: the thread's residue class
  fold::Scale<float> scale;
  lift::Factor factor;

  __device__ __forceinline__ AcrossRows(const RowProblem& p_, const AcrossShare& share_, Storage& storage_,
                                        const Row& r_)
      : p(p_), share(share_), storage(storage_), r(r_), scale(fold::make_scale<float>(r_.scale)), factor(scale.c) {
    const int thread = static_cast<int>(threadIdx.x) % (share.columns * share.classes);
    column = thread % share.columns;
    first = thread / share.columns;
  }

  /// How many of the thread's elements of a chunk are among the first `length`.
  __device__ __forceinline__ int count_of(std::int64_t length) const {
    const int rest = static_cast<int>(clamp(length, lift::kChunk)) - first;
    return rest <= 0 ? 0 : min((rest + share.classes - 1) >> share.shift, kCount);
  }
  template <class Visit>
  __device__ __forceinline__ void for_each_place(const char* first_place, std::int64_t axis_stride,
                                                 const Visit& visit) const {
    const std::int64_t step = axis_stride * share.classes;
    auto at = static_cast<std::int64_t>(__cvta_generic_to_global(first_place));
#pragma unroll
    for (int j = 0; j < kCount; ++j, at += step) {
      asm volatile("" : "+l"(at));  // one address at a time: all of them together would fill the registers
      visit(j, static_cast<char*>(__cvta_global_to_generic(static_cast<std::size_t>(at))));
    }
  }

  /// A chunk's words of this thread, of plain rows whose elements lie as x's or elsewhere in memory; returns how many
  /// there are. All loads before any use: they are on their way together.
  __device__ __forceinline__ int load_words(Word (&raw)[kCount], const char* x, std::int64_t axis_stride,
                                            std::int64_t begin) const {
    const int there = count_of(p.n - begin);
    const char* at_first = x + (begin + first) * axis_stride;
    const auto look = [&](int j, const char* at) { raw[j] = *reinterpret_cast<const Word*>(at); };
    if (there == kCount) {
      for_each_place(at_first, axis_stride, look);
    } else {
      for_each_place(at_first, axis_stride, [&](int j, const char* at) {
        if (j < there) look(j, at);
      });
    }
    return there;
  }
  /// A chunk's elements of this thread from memory, lift::absent where none is; returns how many there are.
  __device__ __forceinline__ int load(float (&v)[kRows][kCount], lift::Extremes (&own)[kRows],
                                      std::int64_t begin) const {
    const int there = count_of(r.length - begin);
    Word raw[kCount];
    // All loads before any use: they are on their way together.
    for_each_place(r.x + (begin + first) * p[Slot::x].axis_stride, p[Slot::x].axis_stride,
                   [&](int j, const char* place) {
                     raw[j] = Word{};
                     if (j < there) raw[j] = *reinterpret_cast<const Word*>(place);
                   });
#pragma unroll
    for (int j = 0; j < kCount; ++j) v[0][j] = fold::widen(raw[j]);
    hide(v[0], begin, there);
    own[0] = lift::extremes_of(v[0]);
    return there;
  }

  /// Elements that are not there, or masked, become lift::absent; the others are multiplied by what the factor asks
  /// for.
  __device__ __forceinline__ void hide(float (&v)[kCount], std::int64_t begin, int there) const {
    const float missing = lift::absent(factor.c);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (!factor.plain) v[j] *= factor.times;
      if (j >= there) v[j] = missing;
    }
    if (r.mask == nullptr) return;
    const char* mask = r.mask + (begin + first) * p[Slot::mask].axis_stride;
    for_each_place(mask, p[Slot::mask].axis_stride, [&](int j, const char* place) {
      if (j < there && *place == 0) v[j] = missing;
    });
  }

  /// Over the threads of a row: every thread brings a value and gets the merge of all, the tree's last strides: those
  /// between warps, then those between lanes. `at` is scratch that nobody reads any more.
  template <class T, class Shuffle, class Merge>
  __device__ __forceinline__ T over_classes(T* at, const T& own, const Shuffle& shuffle, const Merge& merge) const {
    const int warps = share.columns * share.classes / 32, lane = static_cast<int>(threadIdx.x) % 32;
    T all[kWarps];
    all[0] = own;
    if (warps > 1) {
      at[threadIdx.x] = own;
      __syncthreads();
      const int tile = static_cast<int>(threadIdx.x) / 32 / warps * warps;
#pragma unroll
      for (int w = 0; w < kWarps; ++w)
        if (w < warps) all[w] = at[(tile + w) * 32 + lane];
#pragma unroll
      for (int stride = kWarps / 2; stride > 0; stride /= 2) {
        if (stride >= warps) continue;
#pragma unroll
        for (int w = 0; w < stride; ++w) all[w] = merge(all[w], all[w + stride]);
      }
    }
    for (int distance = 16; distance >= share.columns; distance /= 2) all[0] = merge(all[0], shuffle(all[0], distance));
    return all[0];
  }
  __device__ __forceinline__ void extremes_over_classes(lift::Extremes (&e)[kRows]) const {
    using T = typename Storage::Extremes;
    T own;
#pragma unroll
    for (int row = 0; row < kRows; ++row) own.of[row] = e[row];
    const auto shuffle = [](const T& a, int distance) {
      T b;
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        b.of[row] = {__shfl_xor_sync(lift::kWholeWarp, a.of[row].low, distance),
                     __shfl_xor_sync(lift::kWholeWarp, a.of[row].high, distance)};
      return b;
    };
    const auto merge = [](const T& a, const T& b) {
      T r;
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        r.of[row] = {lift::least(a.of[row].low, b.of[row].low), lift::most(a.of[row].high, b.of[row].high)};
      return r;
    };
    own = over_classes(storage.extremes, own, shuffle, merge);
#pragma unroll
    for (int row = 0; row < kRows; ++row) e[row] = own.of[row];
  }
  __device__ __forceinline__ void sums_over_classes(float (&sums)[kRows]) const {
    using T = typename Storage::Sums;
    T own;
#pragma unroll
    for (int row = 0; row < kRows; ++row) own.of[row] = sums[row];
    const auto shuffle = [](const T& a, int distance) {
      T b;
#pragma unroll
      for (int row = 0; row < kRows; ++row) b.of[row] = __shfl_xor_sync(lift::kWholeWarp, a.of[row], distance);
      return b;
    };
    const auto merge = [](const T& a, const T& b) {
      T r;
#pragma unroll
      for (int row = 0; row < kRows; ++row) r.of[row] = S::add(a.of[row], b.of[row]);
      return r;
    };
    own = over_classes(storage.sums, own, shuffle, merge);
#pragma unroll
    for (int row = 0; row < kRows; ++row) sums[row] = own.of[row];
  }

  /// The tree over the thread's own values.
  template <class At>
  static __device__ __forceinline__ float add_own(const At& at) {
    float half[kCount / 2];
#pragma unroll
    for (int j = 0; j < kCount / 2; ++j) half[j] = S::add(at(j), at(j + kCount / 2));
#pragma unroll
    for (int stride = kCount / 4; stride > 0; stride /= 2) {
#pragma unroll
      for (int j = 0; j < stride; ++j) half[j] = S::add(half[j], half[j + stride]);
    }
    return half[0];
  }

  /// Terms that all lie within the range of a frame; `there` of them exist.
  template <bool kWhole>
  __device__ __forceinline__ float fold_dense(float (&v)[kCount], int there, const lift::FrameTerms& terms) const {
    return add_own([&](int j) {
      float t = terms.term<false>(v[j]);
      if (!kWhole && j >= there) t = 0.F;
      if constexpr (!kLog) v[j] = t;
      return t;
    });
  }
  /// Any terms.
  __device__ __forceinline__ float fold_any(float (&v)[kCount], const typename Lse::Frame& frame, float& unit) const {
    float terms[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) terms[j] = v[j];
    unit = terms_in_frame(terms, factor.c, frame.m);
#pragma unroll
    for (int j = 0; j < kCount && !kLog; ++j) v[j] = terms[j];
    return add_own([&](int j) { return terms[j]; });
  }

  /// The states of a chunk of the thread's rows.
  __device__ __forceinline__ void fold_chunk(Chunk& chunk, std::int64_t begin) const {
    lift::Extremes e[kRows];
    const int there = load(chunk.v, e, begin);
    constexpr float kMagic = fold::Real<float>::kMagic;
    extremes_over_classes(e);
    const float c = factor.c;
    float top[kRows], sums[kRows];
    typename Lse::Frame frames[kRows];
    bool dense = true;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      top[row] = c > 0.F ? e[row].high : e[row].low;
      const bool finite = fabsf(top[row]) < fold::infinity<float>();
      frames[row] = finite ? Lse::frame(top[row], c) : typename Lse::Frame{0., true};
      const float bottom = S::fma(c > 0.F ? e[row].low : e[row].high, c, kMagic);
      dense = dense && finite && frames[row].fast && bottom >= S::fma(top[row], c, kMagic) - 60.F;
    }
    chunk.dense = __all_sync(lift::kWholeWarp, dense);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (chunk.dense) {
        const lift::FrameTerms terms(c, Lse::narrow(frames[row].m));
        chunk.units[row] = terms.unit;
        sums[row] = __all_sync(lift::kWholeWarp, there == kCount) ? fold_dense<true>(chunk.v[row], there, terms)
                                                                  : fold_dense<false>(chunk.v[row], there, terms);
      } else {
        sums[row] = fold_any(chunk.v[row], frames[row], chunk.units[row]);
      }
    }
    sums_over_classes(sums);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      State& state = chunk.states[row];
      state = {frames[row].m, S::mul(sums[row], chunk.units[row])};
      if (fabsf(top[row]) < fold::infinity<float>()) continue;
      state = fold::is_nan(top[row])          ? Lse::not_a_number()
              : (top[row] > 0.F) == (c > 0.F) ? Lse::plus_infinity()
                                              : Lse::identity();
    }
  }

  /// Results of a chunk. rows: the states of the thread's rows.
  __device__ __forceinline__ void write(Chunk& chunk, std::int64_t begin, const State (&rows)[kRows]) const {
    bool regular = true;
#pragma unroll
    for (int row = 0; row < kRows; ++row) regular = regular && fold::Normaliser<float>(rows[row]).regular;
    char* y = r.y + (begin + first) * p[Slot::y].axis_stride;
    const int mine = count_of(r.n - begin);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const fold::Normaliser<float> norm(rows[row]);
      if (norm.regular) {
        const float multiplier = S::mul(norm.multiplier(chunk.states[row].m), chunk.units[row]);
        finish<kLog>(chunk.v[row], chunk.dense, factor, multiplier, rows[row], scale);
      }
    }
    if (regular) {
      const auto put = [&](int j, char* place) {
        float word[kRows];
#pragma unroll
        for (int row = 0; row < kRows; ++row) word[row] = chunk.v[row][j];
        *reinterpret_cast<Word*>(place) = Words::pack(word);
      };
      if (mine == kCount) return for_each_place(y, p[Slot::y].axis_stride, put);
      for_each_place(y, p[Slot::y].axis_stride, [&](int j, char* place) {
        if (j < mine) put(j, place);
      });
      return;
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (fold::Normaliser<float>(rows[row]).regular) {
        for_each_place(y + row * kSize, p[Slot::y].axis_stride, [&](int j, char* place) {
          if (j < mine) *reinterpret_cast<E*>(place) = Packed<E>::narrow(chunk.v[row][j]);
        });
      } else {
        write_constant(y + row * kSize, begin, mine, constant_of<kLog>(rows[row], p.empty));
      }
    }
  }
  __device__ __forceinline__ void write_constant(char* y, std::int64_t begin, int mine, Constant constant) const {
    const int there = count_of(r.length - begin);
#pragma unroll 1
    for (int j = 0; j < mine; ++j, y += p[Slot::y].axis_stride * share.classes) {
      const std::int64_t i = begin + first + share.classes * j;
      const bool present = j < there && (r.mask == nullptr || r.mask[i * p[Slot::mask].axis_stride] != 0);
      *reinterpret_cast<E*>(y) = fold::narrow<E>(constant.everywhere || present ? constant.value : nothing<kLog>());
    }
  }

  /// From the state of each block's share of the rows to the rows', in all blocks. F: whose states they are, at most
  /// of the size of Lse's.
  template <class F>
  __device__ __forceinline__ void over_blocks(typename F::State (&states)[kRows]) const {
    using Cluster = lift::Cluster;
    using Own = typename F::State;
    static_assert(sizeof(Own) <= sizeof(State) && sizeof(Own) % 8 == 0 && alignof(State) >= 8);
    constexpr int rows = Storage::kLongColumns;
    auto* shares = reinterpret_cast<Own*>(storage.shares);  // [block][row]
    auto* roots = reinterpret_cast<Own*>(storage.rows);
    const unsigned rank = Cluster::rank(), blocks = Cluster::size();
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      // The residue classes of a row send to one block each.
      if (static_cast<unsigned>(first) >= blocks) continue;
      const int at = static_cast<int>(rank) * rows + column * kRows + row;
      send(Cluster::map(shares + at, static_cast<unsigned>(first)), states[row]);
    }
    Cluster::arrive();
    Cluster::wait();
    // kAcrossBlocks lanes a row: one merge a level of the tree.
    for (int at = static_cast<int>(threadIdx.x); at < rows * kAcrossBlocks; at += kAcrossThreads) {
      const int row = at / kAcrossBlocks, block = at % kAcrossBlocks;
      Own state = static_cast<unsigned>(block) < blocks ? shares[block * rows + row] : F::identity();
#pragma unroll 1
      for (int distance = 1; distance < kAcrossBlocks; distance *= 2) state = F::merge(state, shuffle(state, distance));
      if (block == 0) roots[row] = state;
    }
    __syncthreads();
#pragma unroll
    for (int row = 0; row < kRows; ++row) states[row] = roots[column * kRows + row];
  }

 private:
  static __device__ __forceinline__ void send(unsigned to, const State& state) {
    lift::Cluster::store(to, fold::bits_as<std::uint64_t>(state.m));
    lift::Cluster::store(to + 8, std::uint64_t{fold::bits_as<std::uint32_t>(state.d)});
  }
  static __device__ __forceinline__ void send(unsigned to, const GradientState<float>& state) {
    lift::Cluster::store(to, fold::bits_as<std::uint64_t>(state));
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
