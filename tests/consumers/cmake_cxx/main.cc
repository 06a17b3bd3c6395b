// A C++ program outside the library: a plan, a one-shot call, an executor of its own size, a refusal that is caught.
#include <softfold/softfold.hpp>

#include <cstdio>
#include <vector>

int main() {
  using softfold::DType;
  const std::int64_t shape[] = {3, 50000}, rows[] = {3};
  std::vector<float> x(150000, 1.5F), y(150000), lse(3);
  const softfold::View in(x.data(), DType::float32, shape), out(y.data(), DType::float32, shape);
  const auto executor = softfold::make_thread_executor(2);
  softfold::Context context;
  context.cpu = executor.get();
  softfold::softmax(in, out, {.axis = -1}, context);
  softfold::logsumexp(in, softfold::View(lse.data(), DType::float32, rows));
  if (y[0] != y[149999] || y[0] < 1.99999e-5F || y[0] > 2.00001e-5F || lse[1] < 12.3197F || lse[1] > 12.3199F) return 1;
  const softfold::Plan plan = softfold::plan(softfold::Op::softmax, {&in, 1}, {&out, 1});
  plan.run();
  try {
    softfold::softmax(in, out, {.axis = 2});
  } catch (const softfold::Error& e) {
    std::printf("softfold %s, %.*s: %s\n", softfold::version(), static_cast<int>(plan.kernel().size()),
                plan.kernel().data(), e.what());
    return e.code == softfold::Code::shape ? 0 : 2;
  }
  return 3;
}
