// sample on the CPU: a row a thread. What each row is drawn with is read and checked before anything is written.
#include "cpu/operand_at.hpp"
#include "cpu/row_schedules.hpp"
#include "cpu/sample_shard.hpp"
#include "cpu/stored_state.hpp"
#include "front/kernel.hpp"
#include "softfold/error.hpp"
#include "softfold/shown.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& value, std::int64_t row, const char* allowed) {
  throw Error(Code::data, std::string(name) + " " + value + " for row " + std::to_string(row), allowed);
}

Draw draw_of(const SampleProblem& p, const Row& r, std::int64_t row) {
  const auto real = [&](SampleSlot slot, double otherwise) {
    const Operand& o = p[slot];
    return o.given ? number_at(o, p.at(o, row)) : otherwise;
  };
  const auto integer = [&](SampleSlot slot, std::int64_t otherwise) {
    const Operand& o = p[slot];
    return o.given ? integer_at(o, p.at(o, row)) : otherwise;
  };
  const auto word = [&](SampleSlot slot, std::uint64_t otherwise) {
    return static_cast<std::uint64_t>(integer(slot, static_cast<std::int64_t>(otherwise)));
  };
  const std::int64_t id = integer(SampleSlot::row_ids, p[SampleSlot::seeds].given ? 0 : row);
  const double uniform = fold::uniform(word(SampleSlot::seeds, p.seed), word(SampleSlot::offsets, p.offset),
                                       static_cast<std::uint64_t>(id));
  const Draw d{r.scale,
               real(SampleSlot::temperatures, p.temperature),
               real(SampleSlot::top_ps, p.top_p),
               real(SampleSlot::min_ps, p.min_p),
               integer(SampleSlot::top_ks, p.top_k),
               uniform};
  if (!(d.scale > 0 && std::isfinite(d.scale)))
    refuse("scale", detail::shown(d.scale), row, "a finite positive number");
  if (!(d.temperature >= 0 && std::isfinite(d.temperature)))
    refuse("temperature", detail::shown(d.temperature), row, "a finite number, 0 or more");
  if (!(d.top_p >= 0 && d.top_p <= 1)) refuse("top_p", detail::shown(d.top_p), row, "0 .. 1");
  if (!(d.min_p >= 0 && d.min_p <= 1)) refuse("min_p", detail::shown(d.min_p), row, "0 .. 1");
  if (d.top_k < 0) refuse("top_k", std::to_string(d.top_k), row, "0 (all) or more");
  return d;
}

void run(const SampleProblem& p, const Context& context) {
  RowCursor rows(p, 0);
  for (std::int64_t r = 0; r < p.rows; ++r, rows.next()) draw_of(p, rows.row(), r);
  split_rows(p, context, [&](std::int64_t first, std::int64_t last) {
    SampleWorker worker(p);
    for (RowCursor cursor(p, first); first < last; ++first, cursor.next()) {
      const Row r = cursor.row();
      worker.run(r, first, draw_of(p, r, first));
    }
  });
}

const char* refuses(const SampleProblem&, const Context&) { return nullptr; }

constexpr Kernel<SampleProblem> kSampleKernels[] = {{"sample_rows", refuses, run, nullptr}};

}  // namespace

void sample_shard(const SampleProblem& p, const Shard& shard, const RowProblem& q, const Gathered& partials,
                  const Context& context) {
  if (p.rows == 0) return;
  RowCursor rows(p, 0);
  GatheredRow first(q, partials);
  for (std::int64_t r = 0; r < p.rows; ++r, rows.next()) {
    first.stand_at(r);
    const Draw d = draw_of(p, rows.row(), r);
    // A scale that leaves float32 is temperature 0 for sample, but has no fold.
    if (fold::make_scale<float>(d.scale).c == fold::infinity<float>())
      refuse("scale", detail::shown(d.scale), r,
             "a scale that times log2(e) is a number of float32; join_topk with k = 1");
    const double* own = p.n > 0 ? first.part_of(shard.offset) : nullptr;
    if (own != nullptr &&
        (own[kOffset] != static_cast<double>(shard.offset) || own[kLength] != static_cast<double>(p.n)))
      throw Error(Code::state,
                  "no partial of the shard of " + std::to_string(p.n) + " elements at " + std::to_string(shard.offset) +
                      " for row " + std::to_string(r),
                  "the shard that was folded");
    if (first.scale() != rows.row().scale)
      throw Error(Code::state,
                  "scale " + detail::shown(rows.row().scale) + " for partials of row " + std::to_string(r) +
                      " with scale " + detail::shown(first.scale()),
                  "the scale that they were folded with");
  }
  split_rows(p, context, [&](std::int64_t begin, std::int64_t end) {
    ShardSampler sampler(p, shard);
    GatheredRow whole(q, partials);
    for (RowCursor cursor(p, begin); begin < end; ++begin, cursor.next()) {
      const Row r = cursor.row();
      whole.stand_at(begin);
      const Operand& tokens = p[SampleSlot::tokens];
      put_integer(tokens, p.at(tokens, begin), sampler.draw(whole, r, begin, draw_of(p, r, begin).uniform));
    }
  });
}

}  // namespace cpu

std::span<const Kernel<SampleProblem>> cpu_sample_kernels() { return cpu::kSampleKernels; }

}  // namespace v0
}  // namespace softfold
