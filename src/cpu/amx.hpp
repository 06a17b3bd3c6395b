// Thin wrappers of AMX (Intel SDM volume 2, "TDPBF16PS" and its neighbours): eight tile registers of 16 rows of 64
// bytes. Only code that runs on the target kAmx (target_choice.hpp) calls them, after AmxTiles has configured the
// registers on its thread. The registers are named by constants.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cpu {

inline constexpr int kAmxRows = 16;  ///< of a tile; of 16 floats, or of 16 pairs of bfloat16
inline constexpr int kAmxTileBytes = kAmxRows * 64;

/// Whether this process may use AMX's bfloat16 products. Asks the kernel for its state the first time.
bool has_amx();

/// All eight registers as full tiles, as long as it lives.
class AmxTiles {
 public:
  AmxTiles() {
    struct alignas(64) Config {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::array<std::uint16_t, 16> row_bytes = {64, 64, 64, 64, 64, 64, 64, 64};
      std::array<std::uint8_t, 16> rows = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static constexpr Config config;
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~AmxTiles() { asm volatile("tilerelease" ::); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
};

/// Tile = 0.
template <int Tile>
inline void amx_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}
/// Tile = 16 rows of 64 bytes, `stride` bytes apart.
template <int Tile>
inline void amx_load(const void* from, std::ptrdiff_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(Tile), "r"(from), "r"(stride) : "memory");
}
template <int Tile>
inline void amx_store(void* to, std::ptrdiff_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(Tile), "r"(to), "r"(stride) : "memory");
}
/// c[i][j] += sum over pairs p of a[i][2p] b[p][2j] + a[i][2p + 1] b[p][2j + 1]: floats of products of bfloat16.
template <int C, int A, int B>
inline void amx_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
