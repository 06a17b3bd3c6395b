// cpu == cuda, bit for bit: logsumexp and states of plain rows by runs of slots, which take over where there are more
// chunks than a warp each folds; wherever rows begin in a line of memory.
#include "cuda/row_case.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaRuns : public Cuda {};

struct Shape {
  DType dtype;
  std::int64_t n, apart = 0;  ///< elements of a row, and between rows
  std::int64_t rows = 0;      ///< 0: a few more chunks than are folded by a warp each
};
struct Kind {
  Values values;
  double scale;
  std::int64_t offset;  ///< elements before the first row
};

void expect_by_runs(Op op, const Shape& s, const Kind& kind) {
  constexpr std::int64_t kChunk = 1024, kMoreThanAWarpEach = 4200;
  CudaCase c{op, s.dtype};
  c.rows = s.rows > 0 ? s.rows : kMoreThanAWarpEach / ((s.n + kChunk - 1) / kChunk) + 1;
  c.n = s.n;
  c.row_stride = s.n + s.apart;
  c.x_offset = kind.offset;
  c.values = kind.values;
  c.scale = kind.scale;
  std::string by;
  expect_same(c, &by);
  EXPECT_EQ(by, "fold_tiles") << describe(c);
}

/// Rows of whole tiles end to end, which come by one copy each from wherever the first lies; of merged tiles, others
/// and a rest; of tiles that lie across rows; and of a rest alone.
TEST_F(CudaRuns, WhereverRowsBegin) {
  const Kind kinds[] = {{Values::normal, 1., 0},   {Values::specials, 1., 8}, {Values::wide, 0.3, 24},
                        {Values::normal, -2., 40}, {Values::huge, 1., 56},    {Values::normal, 1., 64},
                        {Values::normal, 0., 1},   {Values::specials, 1., 3}, {Values::normal, 1., 61}};
  for (const DType t : {DType::bfloat16, DType::float16})
    for (const Shape& s : {Shape{t, 4096},
                           {t, 16384},
                           {t, 128256},
                           {t, 50257},
                           {t, 50264},
                           {t, 5001, 7},
                           {t, 9001},
                           {t, 1500, 36},
                           {t, 4096, 8},
                           {t, 6500},
                           {t, 2047},
                           {t, 3070, 1},
                           {t, 10240, 8},
                           {t, 300000}})
      for (const Kind& kind : kinds) {
        expect_by_runs(Op::logsumexp, s, kind);
        if (HasFatalFailure()) return;
      }
}

/// Rows of 65 to 1024 nodes, which a block merges, and of more; nodes of one chunk and of four, and some left.
TEST_F(CudaRuns, LongRows) {
  const Kind kinds[] = {
      {Values::normal, 1., 0}, {Values::specials, 1., 8}, {Values::wide, 0.3, 24}, {Values::huge, -1., 3}};
  for (const Shape& s : {Shape{DType::float32, 70000},
                         {DType::float32, 1048577},
                         {DType::bfloat16, 262145},
                         {DType::bfloat16, 1050001, 7},
                         {DType::bfloat16, 4194304},
                         {DType::float16, 600000},
                         {DType::float16, 4194305}})
    for (const Kind& kind : kinds)
      for (const Op op : {Op::logsumexp, Op::state}) {
        expect_by_runs(op, s, kind);
        if (HasFatalFailure()) return;
      }
}

/// By fewer lanes a run: float32 to 512, 16 bit to 1024.
TEST_F(CudaRuns, ShortRows) {
  const Kind kinds[] = {{Values::normal, 1., 0}, {Values::specials, 1., 8}, {Values::wide, 0.3, 40}};
  for (const Shape& s : {Shape{DType::float32, 128},
                         {DType::float32, 256},
                         {DType::float32, 512},
                         {DType::bfloat16, 128},
                         {DType::bfloat16, 256},
                         {DType::bfloat16, 512},
                         {DType::bfloat16, 1024},
                         {DType::float16, 128},
                         {DType::float16, 1024}})
    for (const Kind& kind : kinds)
      for (const Op op : {Op::logsumexp, Op::state}) {
        expect_by_runs(op, s, kind);
        if (HasFatalFailure()) return;
      }
}

/// So many tiles that every block fills its places again and again, and its lanes' states wait for each other.
TEST_F(CudaRuns, ManyTiles) {
  constexpr std::int64_t kElements = std::int64_t{80} << 20;  // of 132 blocks 5 tiles a place, 9 a warp
  const auto many = [](DType t, std::int64_t n, std::int64_t apart = 0) { return Shape{t, n, apart, kElements / n}; };
  for (const Shape& s : {many(DType::bfloat16, 4096), many(DType::float16, 4096), many(DType::bfloat16, 50257),
                         many(DType::float16, 50257), many(DType::bfloat16, 5001, 7), many(DType::bfloat16, 6500),
                         many(DType::float16, 1500, 36), many(DType::bfloat16, 128), many(DType::float16, 256),
                         many(DType::bfloat16, 512), many(DType::float32, 128)})
    for (const Kind& kind : {Kind{Values::normal, 1., 0}, Kind{Values::specials, 1., 24}}) {
      expect_by_runs(Op::logsumexp, s, kind);
      if (HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace softfold_test
