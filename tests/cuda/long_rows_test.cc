// cpu == cuda, bit for bit: softmax and log_softmax of rows that are read twice, at the edges of their tiles and of
// what a warp and a block merge.
#include "cuda/row_case.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Empty;
using softfold::Op;

class CudaLongRows : public Cuda {};

struct Shape {
  DType dtype;
  std::int64_t rows, n;
};
struct Kind {
  Values values;
  double scale;
  std::int64_t apart, offset;  ///< elements between rows, and before the first
  bool in_place;
  Empty empty;
};

void expect_by_long_rows(Op op, const Shape& s, const Kind& kind) {
  CudaCase c{op, s.dtype, s.dtype};
  c.rows = s.rows;
  c.n = s.n;
  c.row_stride = s.n + kind.apart;
  c.x_offset = c.y_offset = kind.offset;
  c.values = kind.values;
  c.scale = kind.scale;
  c.in_place = kind.in_place;
  c.empty = kind.empty;
  std::string by;
  expect_same(c, &by);
  EXPECT_EQ(by, "softmax_long_rows") << describe(c);
}

constexpr std::int64_t kChunk = 1024;

TEST_F(CudaLongRows, EveryKindOfValue) {
  const Kind kinds[] = {
      {Values::normal, 1., 0, 0, false, Empty::zero},    {Values::specials, 1., 5, 3, true, Empty::nan},
      {Values::bits, -5e-8, 1, 1, false, Empty::zero},   {Values::huge, 0.3, 0, 2, true, Empty::zero},
      {Values::specials, -2., 8, 0, false, Empty::zero}, {Values::masked_tail, 1., 7, 1, false, Empty::zero},
      {Values::wide, 1., 3, 0, false, Empty::zero},      {Values::apart, 1., 8, 8, true, Empty::zero},
      {Values::ramp, 0., 0, 0, false, Empty::zero},      {Values::drift, 1., 0, 5, false, Empty::zero}};
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (const Op op : {Op::softmax, Op::log_softmax})
      for (const Kind& kind : kinds) {
        expect_by_long_rows(op, {t, 7, 1500003}, kind);
        if (HasFatalFailure()) return;
      }
}

/// A warp merges 256 nodes, a block 4096, and nodes are of a chunk, in 16 bit of four.
TEST_F(CudaLongRows, EdgesOfLevels) {
  const Kind kinds[] = {{Values::specials, 1., 8, 0, false, Empty::zero},
                        {Values::normal, 1., 0, 0, false, Empty::zero},
                        {Values::wide, 1., 1, 1, true, Empty::zero}};
  std::size_t at = 0;
  for (const Shape& s : {Shape{DType::float32, 3, 4096 * kChunk},
                         {DType::float32, 3, 4096 * kChunk + 1},
                         {DType::float32, 3, 4096 * kChunk - 1},
                         {DType::float32, 1, 65536 * kChunk},
                         {DType::float32, 1, 65536 * kChunk + 1},
                         {DType::bfloat16, 3, 4096 * kChunk},
                         {DType::bfloat16, 2, 4096 * kChunk + 1},
                         {DType::float16, 2, 4098 * kChunk},
                         {DType::bfloat16, 2, 16384 * kChunk},
                         {DType::bfloat16, 2, 16384 * kChunk + 1},
                         {DType::float16, 1, 65537 * kChunk}}) {
    expect_by_long_rows(at % 2 == 0 ? Op::softmax : Op::log_softmax, s, kinds[at % std::size(kinds)]);
    ++at;
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace softfold_test
