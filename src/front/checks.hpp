// The checks that every plan shares, and the words in which they refuse.
#pragma once

#include "front/problem.hpp"
#include "softfold/error.hpp"

#include <cstdint>
#include <span>
#include <string>

namespace softfold {
inline namespace v0 {
namespace checks {

/// "float32 [4096, 128256]", for messages.
std::string describe(const View& v);
std::string describe(std::span<const std::int64_t> shape);

/// Rank, sizes, strides, pointer, alignment; `what` names the operand.
void check_view(const View& v, const char* what);
void check_floating(const View& v, const char* what);
void check_integer(const View& v, const char* what);
/// The words for offsets: their name, what stands before and behind the largest that they may be, and what lies between
/// two of them.
struct OffsetWords {
  const char *what, *before, *behind, *parts;
};
/// Refuses (Code::data) the i-th offset, `at`, unless last <= at <= most.
void check_offset(const OffsetWords& words, std::int64_t i, std::int64_t at, std::int64_t last, std::int64_t most);
/// All given operands on one device that this build can reach.
void check_device(const View& reference, const View& v, const char* what);

/// The stride of axis i in elements.
std::int64_t stride_of(const View& v, int i);
/// The same in bytes, 0 where there is no step to take: such a stride may be any number.
std::int64_t byte_stride(const View& v, int i);
std::int64_t element_count(const View& v);

/// Refuses an output whose elements share memory with each other, or with an input that is not the very same view.
void check_output(const View& out, const char* what);
void check_overlap(const View& out, const char* out_name, const View& in, const char* in_name, bool in_place_allowed);

/// Refuses what lift::checked_scale does, whatever the caller's floating-point environment.
void check_scale(double scale, bool is_double);
/// Refuses (Code::shape) a shard of n elements that does not lie in its rows.
void check_shard(const Shard& shard, std::int64_t n);
/// Refuses (Code::option) what is neither 0 nor within 2^-60 .. 2^60: beyond that a score over it may leave float32's
/// range.
void check_softcap(double softcap);
void check_softcap(float softcap);

}  // namespace checks
}  // namespace v0
}  // namespace softfold
