// cpu == cuda, bit for bit: the operations with more than one input, causal rows, merges.
#include "cuda/operations.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaOperations : public CudaBoth {};

TEST_F(CudaOperations, BackwardPasses) {
  for (const Op op : {Op::softmax_backward, Op::log_softmax_backward})
    for (const DType t : {DType::float32, DType::float64, DType::float16, DType::bfloat16})
      for (const std::int64_t n : {1, 7, 128, 200, 500, 1000, 1024, 1025, 5000, 50257, 150000})
        for (int variant = 0; variant < 12; ++variant) {
          if (n > 60000 && variant % 4 != 0) continue;
          const std::int64_t rows = n > 5000 ? 3 : 20;
          // Contiguous, transposed, unaligned.
          const std::vector<std::int64_t> strides = variant < 4   ? std::vector<std::int64_t>{n, 1}
                                                    : variant < 8 ? std::vector<std::int64_t>{1, rows}
                                                                  : std::vector<std::int64_t>{n + 3, 1};
          Tensor x(t, {rows, n}, strides), y(t, {rows, n}, strides), dy(t, {rows, n}, strides),
              dx(t, {rows, n}, strides);
          Tensor mask(DType::boolean, {rows, n}), length(DType::int64, {rows});
          x.fill([&](std::int64_t i) {
            return value_of(i / n % 3 == 2 ? Values::specials : Values::normal, i / n, i % n, n);
          });
          dy.fill([&](std::int64_t i) {
            const double v = value_of(Values::bits, 77 + i / n, i % n, n);
            return i == 3 * n / 2 && variant == 3 ? std::numeric_limits<double>::quiet_NaN() : v;
          });
          mask.fill([&](std::int64_t i) { return static_cast<double>(i % 7 != 3 && i / n != 4); });
          length.fill([&](std::int64_t i) { return static_cast<double>((i * 31) % (n + 1)); });
          softfold::RowOptions cpu, cuda;
          cpu.scale = cuda.scale = 0.37;
          if ((variant & 1) != 0) cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
          if ((variant & 2) != 0) cpu.length = length.cpu(), cuda.length = length.cuda();
          const std::string what = std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(name_of(t)) +
                                   " variant " + std::to_string(variant);
          expect_same(op == Op::softmax_backward ? Op::softmax : Op::log_softmax, {&x}, {&y}, cpu, cuda, what);
          if (HasFatalFailure()) return;
          expect_same(op, {&y, &dy}, {&dx}, cpu, cuda, what);
          if (HasFatalFailure()) return;
        }
}

/// Many rows, so that clusters stay for them: unaligned ones, rows with nothing in them, a NaN in dy.
TEST_F(CudaOperations, BackwardPassesOfManyLongRows) {
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t n : {17001, 50257, 65536}) {
      const std::int64_t rows = (std::int64_t{9} << 20) / n, stride = n + (n == 17001 ? 3 : 0);
      const std::vector<std::int64_t> strides{stride, 1};
      Tensor x(t, {rows, n}, strides), y(t, {rows, n}, strides), dy(t, {rows, n}, strides), dx(t, {rows, n}, strides);
      x.fill([&](std::int64_t i) { return i / n == 5 ? -INFINITY : value_of(Values::normal, i / n, i % n, n); });
      dy.fill([&](std::int64_t i) { return i == 7 * n + 1030 ? NAN : value_of(Values::bits, 77 + i / n, i % n, n); });
      softfold::RowOptions o;
      o.scale = 0.37;
      const std::string what = std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(name_of(t));
      for (const bool log : {false, true}) {
        expect_same(log ? Op::log_softmax : Op::softmax, {&x}, {&y}, o, o, what);
        if (HasFatalFailure()) return;
        expect_same(log ? Op::log_softmax_backward : Op::softmax_backward, {&y, &dy}, {&dx}, o, o, what);
        if (HasFatalFailure()) return;
      }
    }
}

TEST_F(CudaOperations, StatesAndWhatFollowsFromThem) {
  for (const DType t : {DType::float32, DType::float64, DType::bfloat16})
    for (const std::int64_t n : {3, 1000, 4097, 40000})
      for (int v = 0; v < static_cast<int>(Values::count); ++v) {
        const std::int64_t rows = 14;
        Tensor x(t, {rows, n}), states(DType::float64, {rows, 4}), y(t, {rows, n}), lse(DType::float32, {rows});
        Tensor dlse(DType::float32, {rows}), dx(t, {rows, n});
        x.fill([&](std::int64_t i) { return value_of(static_cast<Values>(v), i / n, i % n, n); });
        dlse.fill([](std::int64_t i) { return 0.25 * static_cast<double>(i) - 1.; });
        softfold::RowOptions o;
        o.scale = v % 2 == 0 ? 0.5 : -1.25;
        const std::string what = std::string(name_of(t)) + " " + std::to_string(n) + " values " + std::to_string(v);
        expect_same(Op::state, {&x}, {&states}, o, o, what);
        for (const Op op : {Op::finish_softmax, Op::finish_log_softmax})
          expect_same(op, {&x, &states}, {&y}, o, o, what);
        expect_same(Op::finish_logsumexp, {&states}, {&lse}, {}, {}, what);
        expect_same(Op::logsumexp_backward, {&x, &states, &dlse}, {&dx}, o, o, what);
        if (HasFatalFailure()) return;
      }
}

TEST_F(CudaOperations, WhatAStateDoesNotCoverBecomesNaN) {
  for (const DType t : {DType::float32, DType::float64, DType::bfloat16})
    for (const double scale : {0.5, -1.25, 0.}) {
      const std::int64_t rows = 8, n = 3000;
      Tensor x(t, {rows, n}), other(t, {rows, n}), states(DType::float64, {rows, 4}), y(t, {rows, n});
      x.fill([&](std::int64_t i) { return i / n == 6 ? -INFINITY : value_of(Values::normal, i / n, i % n, n); });
      other.fill([&](std::int64_t i) {
        const std::int64_t row = i / n, k = i % n;
        const double far[] = {1e4, -1e4, static_cast<double>(INFINITY), -static_cast<double>(INFINITY),
                              static_cast<double>(NAN)};
        return k % 700 == 11 && row < 5 ? far[row] : value_of(Values::normal, row, k, n);
      });
      softfold::RowOptions o;
      o.scale = scale;
      const std::string what = std::string(name_of(t)) + " scale " + std::to_string(scale);
      expect_same(Op::state, {&x}, {&states}, o, o, what);
      for (const Op op : {Op::finish_softmax, Op::finish_log_softmax})
        expect_same(op, {&other, &states}, {&y}, o, o, what);
    }
}

TEST_F(CudaOperations, CausalScores) {
  for (const DType t : {DType::float32, DType::float16})
    for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{64, 64}, {30, 100}, {100, 30}, {9, 3000}}) {
      Tensor x(t, {2, 3, rows, n}), y(t, {2, 3, rows, n}), lse(DType::float32, {2, 3, rows});
      x.fill([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
      softfold::RowOptions o;
      o.causal = true;
      expect_same(Op::softmax, {&x}, {&y}, o, o, "causal");
      expect_same(Op::log_softmax, {&x}, {&y}, o, o, "causal");
      expect_same(Op::logsumexp, {&x}, {&lse}, o, o, "causal");
      if (HasFatalFailure()) return;
    }
}

TEST_F(CudaOperations, ManyAxes) {
  const std::int64_t n = 130;
  for (int axis = 0; axis < 4; ++axis) {
    std::vector<std::int64_t> shape{3, 5, 4, 6};
    shape[static_cast<std::size_t>(axis)] = n;
    Tensor x(DType::float32, shape), y(DType::float32, shape);
    x.fill([&](std::int64_t i) { return value_of(Values::normal, 5, i, n); });
    softfold::RowOptions o;
    o.axis = axis;
    for (const Op op : {Op::softmax, Op::log_softmax})
      expect_same(op, {&x}, {&y}, o, o, "axis " + std::to_string(axis));
    if (HasFatalFailure()) return;
  }
}

/// Rows that a thread holds, and those next to them: more elements, a number of rows that fills no words.
TEST_F(CudaOperations, ShortOuterAxes) {
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t n : {2, 7, 21, 32, 33, 64, 65})
      for (const std::int64_t inner : {300, 35})
        for (int v = 0; v < static_cast<int>(Values::count); ++v) {
          Tensor x(t, {3, n, inner}), y(t, {3, n, inner});
          x.fill([&](std::int64_t i) { return value_of(static_cast<Values>(v), i % inner, i / inner % n, n); });
          softfold::RowOptions o;
          o.axis = 1;
          o.scale = v % 3 == 2 ? -0.5 : 1;
          o.empty = v % 2 == 0 ? softfold::Empty::zero : softfold::Empty::nan;
          const std::string what = std::string(name_of(t)) + " " + std::to_string(n) + "x" + std::to_string(inner) +
                                   " values " + std::to_string(v);
          for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, o, o, what);
          if (HasFatalFailure()) return;
        }
}

TEST_F(CudaOperations, Merges) {
  const std::int64_t rows = 50;
  struct Shape {
    int parts;
    std::int64_t n;
  };
  for (const Shape shape :
       {Shape{1, 72}, {2, 70}, {2, 136}, {3, 72}, {5, 70}, {16, 264}, {3, 0}})  // in vectors, and not
    for (const DType t : {DType::float32, DType::float64, DType::bfloat16, DType::float16})
      for (const bool blocks : {false, true})
        for (const bool two : {false, true}) {
          const int parts = shape.parts;
          const std::int64_t n = shape.n;
          const Op op = blocks ? Op::merge_blocks : Op::merge_attention;
          const DType st = t == DType::float64 ? DType::float64 : DType::float32;
          std::vector<std::unique_ptr<Tensor>> values, lses, outs;
          for (int i = 0; i < parts; ++i) {
            values.push_back(std::make_unique<Tensor>(t, std::vector<std::int64_t>{rows, n}));
            lses.push_back(std::make_unique<Tensor>(st, std::vector<std::int64_t>{rows}));
            outs.push_back(std::make_unique<Tensor>(t, std::vector<std::int64_t>{rows, n}));
            values.back()->fill([&](std::int64_t k) { return std::abs(value_of(Values::normal, i, k, n)); });
            lses.back()->fill([&](std::int64_t k) {
              if (k % 11 == 4 || (k % 5 == 1 && i % 2 == 0)) return -std::numeric_limits<double>::infinity();
              if (k == 17) return std::numeric_limits<double>::quiet_NaN();
              return value_of(Values::wide, i, k, n) * (k % 2 == 0 ? 1. : 0.02);
            });
          }
          Tensor lse(st, {rows});
          softfold::MergeOptions o;
          o.base = two ? softfold::LogBase::two : softfold::LogBase::natural;
          std::vector<Tensor*> results{&lse};
          for (const bool gpu : {false, true}) {
            std::vector<softfold::View> in, out;
            for (int i = 0; i < parts; ++i) {
              const auto at = static_cast<std::size_t>(i);
              in.push_back(values[at]->view(gpu));
              in.push_back(lses[at]->view(gpu));
              if (blocks || i == 0) out.push_back(outs[at]->view(gpu));
            }
            out.push_back(lse.view(gpu));
            softfold::plan(op, in, out, o).run();
          }
          for (auto& t_out : outs) results.push_back(t_out.get());
          compare(results, "merge of " + std::to_string(parts));
          if (HasFatalFailure()) return;
        }
}

TEST_F(CudaOperations, MergedStatesFinishAShardedRow) {
  const std::int64_t rows = 9, n = 8 * 1024;
  Tensor x(DType::float32, {rows, n});
  x.fill([&](std::int64_t i) { return value_of(i / n == 5 ? Values::specials : Values::normal, i / n, i % n, n); });
  Tensor whole(DType::float32, {rows, n}), sharded(DType::float32, {rows, n}), merged(DType::float64, {rows, 4});
  softfold::softmax(x.cuda(), whole.cuda());
  constexpr int shards = 4;
  std::vector<std::unique_ptr<Tensor>> states;
  std::vector<softfold::View> views;
  const std::int64_t part_shape[] = {rows, n / shards}, part_strides[] = {n, 1};
  const auto shard = [&](Tensor& t, int i) {
    auto* data = static_cast<float*>(t.device_data()) + i * n / shards;
    return softfold::View(static_cast<void*>(data), DType::float32, part_shape, part_strides,
                          {softfold::DeviceKind::cuda, 0});
  };
  for (int i = 0; i < shards; ++i) {
    states.push_back(std::make_unique<Tensor>(DType::float64, std::vector<std::int64_t>{rows, 4}));
    softfold::state(shard(x, i), states.back()->cuda());
    views.push_back(states.back()->cuda());
  }
  softfold::merge_states(views, merged.cuda());
  for (int i = 0; i < shards; ++i) softfold::finish_softmax(shard(x, i), merged.cuda(), shard(sharded, i));
  cuda_check(cudaDeviceSynchronize());
  EXPECT_EQ(difference(whole.download(), sharded.download(), 4), "");
}

}  // namespace
}  // namespace softfold_test
