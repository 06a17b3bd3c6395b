// cpu == cuda, bit for bit: softmax and log_softmax to another dtype than the elements', or to where results lie
// otherwise to 16-byte boundaries, of rows of every length and any content.
#include "cuda/both.hpp"

#include <map>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaApart : public Cuda {};

struct Dtypes {
  DType x, y;
};
constexpr Dtypes kDtypes[] = {{DType::bfloat16, DType::float32},  {DType::float32, DType::bfloat16},
                              {DType::float16, DType::float32},   {DType::float32, DType::float16},
                              {DType::bfloat16, DType::bfloat16}, {DType::float32, DType::float32}};

/// Elements between rows, and before the first one.
struct Layout {
  std::int64_t x_gap, y_gap, x_offset, y_offset;
};
constexpr Layout kLayouts[] = {{0, 0, 0, 0}, {0, 0, 3, 3}, {0, 5, 1, 0}, {3, 0, 0, 0},
                               {8, 8, 8, 4}, {0, 0, 0, 1}, {1, 2, 2, 7}, {0, 0, 5, 5}};

/// Compares one operation of rows; the kernel that took it.
std::string compare(Op op, const Dtypes& t, std::int64_t rows, std::int64_t n, std::size_t at,
                    softfold::Rung rung = softfold::Rung::automatic) {
  const Layout& l = kLayouts[pick(at, 0, std::size(kLayouts))];
  const Values v = kAnyValues[pick(at, 1, std::size(kAnyValues))];
  Tensor x(t.x, {rows, n}, {n + l.x_gap, 1}, l.x_offset, 0), y(t.y, {rows, n}, {n + l.y_gap, 1}, l.y_offset, 0);
  x.fill_by_threads([&](std::int64_t i) { return value_of(v, i / n, i % n, n); });
  softfold::RowOptions o;
  const std::size_t scale = pick(at, 2, 10);
  o.scale = scale == 0 ? 0. : scale < 4 ? -0.75 : 1.;
  o.empty = pick(at, 3, 4) == 0 ? softfold::Empty::nan : softfold::Empty::zero;
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in = x.view(gpu), out = y.view(gpu);
    if (gpu) o.rung = rung;
    const auto plan = softfold::plan(op, {&in, 1}, {&out, 1}, o);
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(difference(y.host(), y.download(), y.size()), "")
      << rows << "x" << n << " " << name_of(t.x) << " to " << name_of(t.y) << " layout " << &l - kLayouts << " values "
      << static_cast<int>(v) << " by " << kernel;
  return kernel;
}

Op op_of(std::size_t at) { return pick(at, 4, 5) < 3 ? Op::softmax : Op::log_softmax; }

TEST_F(CudaApart, RowsOfEveryLength) {
  std::size_t at = 0;
  std::map<std::string, int> taken;
  for (std::int64_t n = 1; n <= 1024 && !HasFailure(); ++n)
    for (const Dtypes& t : kDtypes) {
      ++taken[compare(op_of(at), t, 1 + static_cast<std::int64_t>(at * 37 % 300) * 128 / (n + 64), n, at)];
      ++at;
    }
  EXPECT_GT(taken["softmax_apart_rows"], 3400);
  EXPECT_GT(taken["softmax_any_short"], 450);
}

/// Rows whose last chunk is of any length; more chunks than a cluster holds are read twice.
TEST_F(CudaApart, Chunks) {
  std::size_t at = 0;
  std::map<std::string, int> taken;
  for (const std::int64_t chunks : {2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 49, 64, 127, 128, 129, 200, 255, 256, 257, 300})
    for (const std::int64_t rest : {-1023, -1021, -1016, -700, -513, -99, -31, -9, -8, -1, 0})
      for (const Dtypes& t : kDtypes) {
        if (HasFailure()) return;
        ++taken[compare(op_of(at), t, 1 + static_cast<std::int64_t>(at * 37 % 40) * 8 / (chunks + 7),
                        1024 * chunks + rest, at)];
        ++at;
      }
  EXPECT_GT(taken["softmax_apart_cluster"], 18 * 11 * 4);
  EXPECT_GE(taken["softmax_two_reads"], 2 * 11 * 4);
}

/// So many rows that clusters stay for them.
TEST_F(CudaApart, StaidRows) {
  std::size_t at = 1;
  std::map<std::string, int> taken;
  for (const std::int64_t n : {9217, 10240, 10241, 11265, 13000, 15361, 16384, 16385, 20000, 32768, 50257, 100001,
                               128256, 151936, 200064, 262143, 262144})
    for (const Dtypes& t : kDtypes)
      for (int layout = 0; layout < 2 && !HasFailure(); ++layout, ++at)
        ++taken[compare(op_of(at), t, 7000 * 1024 / n + 30, n, at)];
  EXPECT_GT(taken["softmax_apart_stays"], 17 * 6);
}

/// The same bits by two reads.
TEST_F(CudaApart, TwoReads) {
  std::size_t at = 0;
  for (const std::int64_t n : {1, 7, 64, 100, 1000, 1024, 1025, 3000, 5119, 5120, 70001})
    for (const Dtypes& t : kDtypes)
      for (const Op op : {Op::softmax, Op::log_softmax}) {
        EXPECT_EQ(compare(op, t, 5, n, at, softfold::Rung::tiled), "softmax_two_reads");
        ++at;
      }
}

/// Enough rows that every warp takes more than one set of them, and clusters follow each other.
TEST_F(CudaApart, ManyRows) {
  std::size_t at = 0;
  for (const std::int64_t n : {1, 3, 8, 10, 23, 50, 64, 65, 127, 250, 300, 513, 1000, 2000, 4096, 17000})
    for (const Dtypes& t : kDtypes) {
      compare(op_of(at), t, 3000000 / (n + 8) + n % 50, n, at);
      ++at;
      if (HasFailure()) return;
    }
}

/// Operands that begin and end where their memory does: what lies around is not read (which compute-sanitizer sees).
TEST_F(CudaApart, EdgesOfMemory) {
  for (const Dtypes& t : kDtypes)
    for (const std::int64_t n : {3, 8, 10, 50, 127, 250, 777, 1001, 1023, 1500, 2051, 17001})
      for (const softfold::Rung rung : {softfold::Rung::automatic, softfold::Rung::tiled}) {
        const std::int64_t rows = 37;
        Tensor x(t.x, {rows, n}, {}, 0, 0), y(t.y, {rows, n}, {}, t.x == t.y ? 1 : 0, 0);
        std::string kernel;
        x.fill([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
        softfold::RowOptions o;
        for (const bool gpu : {false, true}) {
          const softfold::View in = x.view(gpu), out = y.view(gpu);
          if (gpu) o.rung = rung;
          const auto plan = softfold::plan(Op::softmax, {&in, 1}, {&out, 1}, o);
          plan.run();
          kernel = plan.kernel();
        }
        const bool tiled = rung == softfold::Rung::tiled, one_by_one = kernel == "softmax_any_short";
        EXPECT_TRUE(kernel.starts_with(tiled ? "softmax_two_reads" : "softmax_apart") || (!tiled && one_by_one))
            << kernel;
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << n << " " << name_of(t.x);
      }
}

}  // namespace
}  // namespace softfold_test
