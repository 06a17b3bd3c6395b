// cpu == cuda, bit for bit: row operations over regime edges, dtypes, layouts, masks, lengths and special values.
#include "cuda/row_case.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Empty;
using softfold::Op;

constexpr DType kNarrow[] = {DType::float32, DType::bfloat16, DType::float16};

/// Edges of regimes (lanes a row, chunks, warps a block, blocks a cluster), odd lengths and vocabularies.
const std::vector<std::int64_t>& lengths() {
  static const std::vector<std::int64_t> n{
      1,    2,    3,     7,     8,     31,    32,    33,    64,    127,    128,    129,    255,   256,
      257,  384,  511,   512,   513,   777,   1023,  1024,  1025,  2047,   2048,   2049,   3000,  4096,
      5119, 8191, 16383, 16384, 16385, 17408, 32769, 50257, 65536, 128256, 151936, 262143, 262144};
  return n;
}

class CudaRows : public Cuda {};

TEST_F(CudaRows, EveryOperationEveryDtypePair) {
  constexpr DType all[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16};
  for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp, Op::state})
    for (const DType t : all)
      for (const DType out : all)
        for (const std::int64_t n : {1, 33, 1023, 1024, 1025, 5000, 70000})
          for (int v = 0; v<static_cast<int>(Values::count); v += n> 5000 ? 3 : 1) {
            CudaCase c{op, t, out};
            c.rows = n > 5000 ? 2 : 14;
            c.n = n;
            c.values = static_cast<Values>(v);
            c.scale = v % 2 == 0 ? 1. : -0.3;
            expect_same(c);
            if (HasFatalFailure()) return;
          }
}

TEST_F(CudaRows, ManyLongRows) {
  for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp})
    for (const DType t : {DType::float32, DType::bfloat16})
      for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{400, 17000},
                                    {300, 16385},
                                    {300, 32768},
                                    {140, 50257},
                                    {100, 65536},
                                    {70, 128256},
                                    {80, 200000},
                                    {7, 1000001},
                                    {3, 1048576},
                                    {2, 4325376},
                                    {1, 9000000}}) {
        for (const Values v : {Values::normal, Values::specials}) {
          if (v == Values::specials && n > 60000) continue;
          CudaCase c{op, t, t};
          c.rows = rows;
          c.n = n;
          c.values = v;
          expect_same(c);
          if (HasFatalFailure()) return;
        }
      }
}

/// All on the device at a time, by blocks of 8 or 16 chunks.
TEST_F(CudaRows, FewLongRows) {
  for (const Op op : {Op::softmax, Op::log_softmax})
    for (const DType t : kNarrow)
      for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{32, 128256},
                                    {28, 128256},
                                    {57, 73000},
                                    {9, 99999},
                                    {40, 65537},
                                    {4, 1000000},
                                    {2, 262144},
                                    {1, 140000},
                                    {1, 600000},
                                    {1, 4194304}})
        for (int variant = 0; variant < 4; ++variant) {
          if (rows * n > 3000000 && variant % 2 != (op == Op::softmax ? 0 : 1)) continue;
          CudaCase c{op, t, t};
          c.rows = rows;
          c.n = n;
          c.row_stride = variant == 1 ? n + 5 : n;
          c.x_offset = c.y_offset = variant == 1 ? 3 : 0;
          c.in_place = variant == 1;
          c.values = variant == 0 ? Values::normal : variant == 3 ? Values::huge : Values::specials;
          c.scale = variant == 3 ? -0.5 : 1.;
          c.empty = variant == 2 ? Empty::nan : Empty::zero;
          expect_same(c);
          if (HasFatalFailure()) return;
        }
}

TEST_F(CudaRows, ManyRowsOfABlock) {
  for (const Op op : {Op::softmax, Op::log_softmax})
    for (const DType t : kNarrow)
      for (const std::int64_t n : {1025, 2048, 5000, 9001, 12288, 16384})
        for (int variant = 0; variant < 4; ++variant) {
          CudaCase c{op, t, t};
          c.n = n;
          // In 16 bit a block takes two rows of 12288 elements, for log_softmax, if they begin at vectors and are many
          // (8 for each of 132 processors); the last one has none beside it.
          c.rows = n >= 12288 && variant != 1 ? 1057 : n > 8192 ? 500 : 4096 / ((n + 1023) / 1024) + 1;
          c.row_stride = variant == 1 ? n + 5 : variant == 2 ? n + 7 - (n + 7) % 8 : n;
          c.x_offset = c.y_offset = variant == 1 ? 3 : 0;
          c.in_place = variant == 1 || variant == 2;
          c.values = variant == 0 ? Values::normal : variant == 3 ? Values::huge : Values::specials;
          c.scale = variant == 3 ? -0.5 : 1.;
          c.empty = variant == 2 ? Empty::nan : Empty::zero;
          expect_same(c);
          if (HasFatalFailure()) return;
        }
}

TEST_F(CudaRows, ManyLongUnalignedRows) {
  for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp})
    for (const DType t : kNarrow)
      for (const std::int64_t n : {5000, 17001, 34000})
        for (int variant = 0; variant < 4; ++variant) {
          CudaCase c{op, t, t};
          c.n = n;
          c.rows = n > 30000 ? 200 : n > 10000 ? 530 : 900;
          c.row_stride = n + (variant % 2 == 0 ? 1 : 8);
          c.x_offset = c.y_offset = variant;
          c.in_place = variant == 1 && op != Op::logsumexp;
          c.values = variant == 3 ? Values::specials : variant == 2 ? Values::wide : Values::normal;
          c.scale = variant == 2 ? 0. : 1.;
          expect_same(c);
          if (HasFatalFailure()) return;
        }
}

/// What rings take: hundreds of megabytes. By the grid's beyond what a cluster holds well.
struct RingShape {
  Op op;
  DType dtype;
  std::int64_t n;
};
struct RingKind {
  Values values;
  double scale;
  std::int64_t apart, offset;  ///< elements between rows, and before the first
  bool in_place;
  Empty empty;
};
void expect_same_by_ring(const RingShape& s, const RingKind& kind) {
  const bool by_grid = s.op == Op::softmax || s.n > 256 * 1024;
  CudaCase c{s.op, s.dtype, s.dtype};
  c.n = s.n;
  const std::int64_t megabytes = by_grid || s.dtype == DType::float32 ? 128 : 256;
  c.rows = (megabytes << 20) / (s.n * static_cast<std::int64_t>(softfold::size_of(s.dtype))) + 1;
  c.row_stride = s.n + kind.apart;
  c.x_offset = c.y_offset = kind.offset;
  c.values = kind.values, c.scale = kind.scale, c.in_place = kind.in_place, c.empty = kind.empty;
  std::string by;
  expect_same(c, &by);
  EXPECT_EQ(by, by_grid ? "softmax_grid_ring" : "softmax_ring") << describe(c);
}

/// Rows that begin anywhere and end inside a chunk, of every kind of value, written over themselves or beside.
TEST_F(CudaRows, RingsOfLongRows) {
  const RingKind kinds[] = {
      {Values::specials, 1., 5, 3, true, Empty::nan},  {Values::normal, 1., 0, 0, false, Empty::zero},
      {Values::bits, -5e-8, 1, 1, false, Empty::zero}, {Values::specials, -2., 8, 0, false, Empty::zero},
      {Values::huge, 0.3, 0, 2, true, Empty::zero},    {Values::masked_tail, 1., 7, 1, false, Empty::zero}};
  std::size_t at = 0;
  for (const RingShape& s : {RingShape{Op::log_softmax, DType::float32, 110001},
                             {Op::log_softmax, DType::bfloat16, 180000},
                             {Op::log_softmax, DType::bfloat16, 102400},
                             {Op::log_softmax, DType::float32, 245759},
                             {Op::log_softmax, DType::bfloat16, 229376},
                             {Op::log_softmax, DType::float16, 87001},
                             {Op::softmax, DType::float32, 530001},
                             {Op::softmax, DType::float32, 1000003},
                             {Op::log_softmax, DType::bfloat16, 300001},
                             {Op::softmax, DType::bfloat16, 600001},
                             {Op::log_softmax, DType::float32, 2999999},
                             {Op::softmax, DType::float16, 1400000}}) {
    expect_same_by_ring(s, kinds[at++ % std::size(kinds)]);
    if (HasFatalFailure()) return;
  }
}

/// A cut tile of two chunks whose second lies far below the first, or is absent.
TEST_F(CudaRows, RingsWhoseLastChunkLiesFarBelow) {
  double scale = 1.;
  for (const RingShape& s : {RingShape{Op::log_softmax, DType::bfloat16, 200065},
                             {Op::log_softmax, DType::float16, 300900},
                             {Op::softmax, DType::bfloat16, 601000},
                             {Op::log_softmax, DType::float32, 145500}}) {
    expect_same_by_ring(s, {Values::apart, scale, 3, 1, false, Empty::zero});
    if (HasFatalFailure()) return;
    scale = -0.5 / scale;
  }
}

TEST_F(CudaRows, OtherAxesMasksLengthsScales) {
  for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp, Op::state})
    for (const DType t : {DType::float32, DType::float64, DType::bfloat16})
      for (const std::int64_t n : {1, 100, 1025, 3000})
        for (int variant = 0; variant < 16; ++variant) {
          CudaCase c{op, t, t};
          c.rows = 35;
          c.n = n;
          c.transposed = (variant & 8) != 0;
          c.mask = (variant & 1) != 0;
          c.length = (variant & 2) != 0;
          c.scales = (variant & 4) != 0;
          c.values = variant % 3 == 0 ? Values::specials : Values::normal;
          c.empty = variant % 5 == 0 ? Empty::nan : Empty::zero;
          expect_same(c);
          if (HasFatalFailure()) return;
        }
}

TEST_F(CudaRows, EveryLengthEveryDtype) {
  for (const Op op : {Op::softmax, Op::log_softmax})
    for (const DType t : kNarrow)
      for (const std::int64_t n : lengths()) {
        CudaCase c{op, t, t};
        c.rows = n <= 1024 ? 37 : n <= 20000 ? 5 : 2;
        c.n = n;
        expect_same(c);
        if (HasFatalFailure()) return;
      }
}

TEST_F(CudaRows, OneResultARow) {
  for (const Op op : {Op::logsumexp, Op::state})
    for (const DType t : kNarrow)
      for (const std::int64_t n : lengths())
        for (int variant = 0; variant < 5; ++variant) {
          CudaCase c{op, t, DType::float32};
          c.n = n;
          c.rows = n <= 1024 ? 75 : n <= 20000 ? 9 : 2;
          c.row_stride = variant < 2 ? n : n + (variant == 2 ? 8 : 5);
          c.x_offset = variant % 2 == 0 ? 0 : variant;
          c.values = variant == 4 ? Values::specials : variant == 1 ? Values::wide : Values::normal;
          c.scale = variant == 2 ? -0.7 : variant == 3 ? 0. : 1.;
          expect_same(c);
          if (HasFatalFailure()) return;
        }
}

TEST_F(CudaRows, OneResultAShortRowOfMany) {
  for (const DType t : kNarrow)
    for (const std::int64_t n : {3, 128, 200, 256, 512, 1024})
      for (const Values v : {Values::normal, Values::specials}) {
        CudaCase c{Op::logsumexp, t, DType::float32};
        c.n = n;
        c.rows = n <= 128 ? 90003 : 11001;  // more tiles than warps
        c.values = v;
        expect_same(c);
        c.rows = 4100;  // blocks of few warps
        expect_same(c);
        if (HasFatalFailure()) return;
      }
}

/// Enough of them for warps that stay: elements of every size, beyond the table of terms, and far below its first
/// binade; rows that begin and end anywhere.
TEST_F(CudaRows, OneResultARowOfVeryMany) {
  struct Shape {
    std::int64_t rows, n, stride, offset;
  };
  struct Kind {
    Values values;
    double scale;
  };
  const Kind kinds[] = {{Values::normal, 1.}, {Values::bits, 5e-8}, {Values::bits, -5e-8}, {Values::specials, -2.},
                        {Values::tiny, 1.},   {Values::wide, 0.3},  {Values::ramp, 1.}};
  std::size_t at = 0;
  for (const Shape s : {Shape{105001, 128, 0, 0},
                        {52003, 256, 0, 0},
                        {26003, 512, 0, 1},
                        {13501, 1024, 0, 0},
                        {13501, 1024, 1031, 0},
                        {6703, 2500, 0, 0},
                        {3501, 4099, 0, 3},
                        {1103, 4096, 0, 0},
                        {603, 7168, 0, 0},
                        {22, 204000, 204001, 0},  // 199 chunks and a rest: 196 merged, 4 left
                        {270, 50257, 50264, 0},
                        {41, 128256, 0, 0},
                        {4200, 4096, 0, 0},  // merged nodes by a thread a row
                        {4, 1049600, 0, 0}})
    for (int turn = 0; turn < 3; ++turn) {
      const Kind kind = kinds[at++ * 3 % std::size(kinds)];
      CudaCase c{turn == 1 ? Op::state : Op::logsumexp, turn == 2 ? DType::float16 : DType::bfloat16, DType::float32};
      c.rows = s.rows, c.n = s.n, c.row_stride = s.stride, c.x_offset = s.offset;
      c.values = kind.values, c.scale = kind.scale;
      expect_same(c);
      if (HasFatalFailure()) return;
    }
}

TEST_F(CudaRows, EveryKindOfValue) {
  for (const Op op : {Op::softmax, Op::log_softmax})
    for (const DType t : kNarrow)
      for (int v = 0; v < static_cast<int>(Values::count); ++v)
        for (const std::int64_t n : {5, 100, 300, 1000, 5000, 40000})
          for (const double scale : {1., -0.5, 0., 1e-3, 1e30}) {
            CudaCase c{op, t, t};
            c.rows = 14;
            c.n = n;
            if (n == 40000) c.rows = 7;
            c.values = static_cast<Values>(v);
            c.scale = scale;
            c.empty = v % 2 == 0 ? Empty::zero : Empty::nan;
            expect_same(c);
            if (HasFatalFailure()) return;
          }
}

TEST_F(CudaRows, UnalignedStridedMaskedInPlace) {
  for (const Op op : {Op::softmax, Op::log_softmax})
    for (const DType t : kNarrow)
      for (const std::int64_t n : {1, 13, 100, 129, 1000, 1024, 1025, 4099, 33000})
        for (const std::int64_t offset : {0, 1, 3, 6})
          for (int variant = 0; variant < 8; ++variant) {
            CudaCase c{op, t, t};
            c.rows = 11;
            c.n = n;
            c.row_stride = n + 5;
            c.x_offset = c.y_offset = offset;
            c.mask = (variant & 1) != 0;
            c.length = (variant & 2) != 0;
            c.scales = (variant & 4) != 0;
            c.in_place = variant % 3 == 1;
            c.values = variant % 2 == 0 ? Values::normal : Values::specials;
            expect_same(c);
            if (HasFatalFailure()) return;
          }
}

}  // namespace
}  // namespace softfold_test
