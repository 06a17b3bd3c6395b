#include <cstdint>
#include <cstdio>
#include <softfold/softfold.hpp>

int main() {
  const float x[] = {1, 2, 3, 1000, 1001, 1002};
  float y[6];
  const std::int64_t shape[] = {2, 3};
  try {
    softfold::softmax({x, softfold::DType::float32, shape}, {y, softfold::DType::float32, shape});
  } catch (const softfold::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());  // what was given, what is allowed, the nearest fix
    return 1;
  }
  for (const float p : y) std::printf("%.4f ", static_cast<double>(p));  // twice 0.0900 0.2447 0.6652
}
