// The headers alone, in someone's own loop and (compiled by nvcc) in someone's own kernel: no library, no Highway, no
// oneTBB. The same row element by element, by the canonical tree, and in three pieces that come in any sizes.
#include <softfold/lift/stream.hpp>

#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

namespace fold = softfold::fold;
using Lse = fold::LogSumExp<float>;

#if defined(__CUDACC__)
__global__ void own_kernel(const float* x, std::int64_t n, float c, Lse::State* out) {
  *out = softfold::lift::reduce_row(x, n, c);
}
#endif

int main() {
  const std::size_t n = 5000;
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i % 77) * 0.125F;

  const Lse lse{fold::make_scale<float>(1)};
  Lse::State online = Lse::identity();
  double exact = 0;
  for (const float v : x) {
    online = lse.push(online, v);
    exact += std::exp(static_cast<double>(v));
  }
  const auto tree = softfold::lift::reduce_row(x.data(), static_cast<std::int64_t>(n), lse.scale.c);

  softfold::Partial<float> a(1, 0), b(1, 1000), c(1, 4321);
  a.append(std::span<const float>(x).first(1000));
  b.append(std::span<const float>(x).subspan(1000, 3321));
  c.append(std::span<const float>(x).subspan(4321));
  b.join(c);
  a.join(b);
  const auto joined = a.state();

  std::printf("online %.9g, tree %.9g, joined %.9g, exactly %.9g\n", static_cast<double>(lse.finish(online)),
              static_cast<double>(lse.finish(tree)), static_cast<double>(lse.finish(joined)), std::log(exact));
  const bool close = std::fabs(static_cast<double>(lse.finish(online)) - std::log(exact)) < 1e-5 &&
                     std::fabs(static_cast<double>(lse.finish(tree)) - std::log(exact)) < 2e-6;
  return close && joined.m == tree.m && joined.d == tree.d ? 0 : 1;
}
