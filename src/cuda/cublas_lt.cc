#include "cuda/cublas_lt.hpp"

#include <dlfcn.h>
#include <library_types.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// What is used of cuBLASLt's C interface, in its own numbers, so that building needs no cuBLAS. They have been the
/// same since version 11; where its header is at hand, the compiler compares them.
namespace lt {
constexpr int kSuccess = 0, kNotSupported = 15;
constexpr int kCompute32 = 68, kCompute64 = 70;
constexpr int kTransA = 3, kTransB = 4;                                   // of a product
constexpr int kMaxWorkspace = 1, kReductionSchemes = 3, kAlignmentA = 5;  // of a preference; B, C, D follow A
constexpr int kSplitK = 2, kReduction = 3;                                // of an algorithm
struct Found {
  Algorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
#if __has_include(<cublasLt.h>)
static_assert(kSuccess == CUBLAS_STATUS_SUCCESS && kNotSupported == CUBLAS_STATUS_NOT_SUPPORTED &&
              kCompute32 == CUBLAS_COMPUTE_32F && kCompute64 == CUBLAS_COMPUTE_64F &&
              static_cast<int>(Turn::transposed) == CUBLAS_OP_T);
static_assert(kTransA == CUBLASLT_MATMUL_DESC_TRANSA && kTransB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(kMaxWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES &&
              kReductionSchemes == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK &&
              kAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
              kAlignmentA + 3 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES &&
              kSplitK == CUBLASLT_ALGO_CONFIG_SPLITK_NUM && kReduction == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
static_assert(sizeof(Found) == sizeof(cublasLtMatmulHeuristicResult_t) &&
              sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
#endif
}  // namespace lt

struct Library {
  void* file = nullptr;
  int (*create)(void** handle) = nullptr;
  int (*product_create)(void** product, int compute, cudaDataType_t scale) = nullptr;
  int (*product_set)(void* product, int attribute, const void* value, std::size_t bytes) = nullptr;
  int (*product_destroy)(void* product) = nullptr;
  int (*layout_create)(void** layout, cudaDataType_t type, std::uint64_t rows, std::uint64_t columns,
                       std::int64_t stride) = nullptr;
  int (*layout_destroy)(void* layout) = nullptr;
  int (*preference_create)(void** preference) = nullptr;
  int (*preference_set)(void* preference, int attribute, const void* value, std::size_t bytes) = nullptr;
  int (*preference_destroy)(void* preference) = nullptr;
  int (*find)(void* handle, void* product, void* a, void* b, void* c, void* d, void* preference, int wanted,
              lt::Found* found, int* count) = nullptr;
  int (*check)(void* handle, void* product, void* a, void* b, void* c, void* d, const Algorithm* algorithm,
               lt::Found* result) = nullptr;
  int (*look)(const Algorithm* algorithm, int attribute, void* value, std::size_t bytes,
              std::size_t* written) = nullptr;
  int (*multiply)(void* handle, void* product, const void* alpha, const void* a, void* a_layout, const void* b,
                  void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                  const Algorithm* algorithm, void* workspace, std::size_t bytes, cudaStream_t stream) = nullptr;

  Library() {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (file == nullptr) continue;
      if (take_all()) return;
      dlclose(file);
      file = nullptr;
    }
  }

 private:
  /// Whether all is there.
  bool take_all() {
    bool all = true;
    const auto take = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, name));
      all = all && function != nullptr;
    };
    take(create, "cublasLtCreate");
    take(product_create, "cublasLtMatmulDescCreate");
    take(product_set, "cublasLtMatmulDescSetAttribute");
    take(product_destroy, "cublasLtMatmulDescDestroy");
    take(layout_create, "cublasLtMatrixLayoutCreate");
    take(layout_destroy, "cublasLtMatrixLayoutDestroy");
    take(preference_create, "cublasLtMatmulPreferenceCreate");
    take(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    take(preference_destroy, "cublasLtMatmulPreferenceDestroy");
    take(find, "cublasLtMatmulAlgoGetHeuristic");
    take(check, "cublasLtMatmulAlgoCheck");
    take(look, "cublasLtMatmulAlgoConfigGetAttribute");
    take(multiply, "cublasLtMatmul");
    return all;
  }
};

/// Loaded once, and kept: what it has on a device lives as long as the process.
const Library& library() {
  static const Library loaded;
  return loaded;
}

void check_lt(int status, const char* what) {
  if (status == lt::kSuccess) return;
  throw Error(Code::device, std::string("cuBLASLt, ") + what + ": status " + std::to_string(status),
              "a working cuBLASLt and device", "see `softfold doctor`");
}

/// The current device's; kept, as the library is.
void* handle() {
  static std::mutex mutex;
  static std::map<int, void*> handles;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  void*& own = handles[device];
  if (own == nullptr) check_lt(library().create(&own), "making a handle");
  return own;
}

/// One of cuBLASLt's descriptors, destroyed at the end of its scope.
class Descriptor {
 public:
  template <class Make>
  Descriptor(int (*destroy)(void*), const Make& make) : destroy_(destroy) {
    check_lt(make(&made_), "making a descriptor");
  }
  ~Descriptor() { destroy_(made_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  void* get() const { return made_; }

 private:
  int (*destroy_)(void*);
  void* made_ = nullptr;
};

cudaDataType_t type_of(DType t) {
  switch (t) {
    case DType::float64: return CUDA_R_64F;
    case DType::float16: return CUDA_R_16F;
    case DType::bfloat16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

/// As cuBLASLt sees it: a column for every row.
Descriptor layout_of(const Matrix& m) {
  const auto& l = library();
  return Descriptor(l.layout_destroy, [&](void** made) {
    return l.layout_create(made, type_of(m.dtype), static_cast<std::uint64_t>(m.columns),
                           static_cast<std::uint64_t>(m.rows), m.stride);
  });
}

/// A product and its operands. Row by row, c = a b is column by column the transposed c = b a: a and b change places.
struct Described {
  Descriptor product, a, b, c;

  explicit Described(const Product& p)
      : product(library().product_destroy,
                [&](void** made) {
                  const bool is_double = p.c.dtype == DType::float64;
                  return library().product_create(made, is_double ? lt::kCompute64 : lt::kCompute32,
                                                  is_double ? CUDA_R_64F : CUDA_R_32F);
                }),
        a(layout_of(p.b)),
        b(layout_of(p.a)),
        c(layout_of(p.c)) {
    const auto turn = [&](int attribute, Turn t) {
      check_lt(library().product_set(product.get(), attribute, &t, sizeof t), "transposing an operand");
    };
    turn(lt::kTransA, p.turn_b);
    turn(lt::kTransB, p.turn_a);
  }
};

/// 16 where every row begins at a multiple of 16 bytes, else an element.
std::uint32_t alignment_of(const Matrix& m) {
  const std::size_t element = size_of(m.dtype), row = static_cast<std::size_t>(m.stride) * element;
  const bool all = reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && row % 16 == 0;
  return static_cast<std::uint32_t>(all ? 16 : element);
}

/// Whether an algorithm adds every element in one go: neither parts of its sum side by side, nor these added up later.
bool adds_in_one_go(const Algorithm& algorithm) {
  const auto attribute = [&](int which) {
    std::int32_t value = -1;
    std::size_t written = 0;
    const int status = library().look(&algorithm, which, &value, sizeof value, &written);
    return status == lt::kSuccess ? value : -1;
  };
  const std::int32_t parts = attribute(lt::kSplitK);
  return (parts == 0 || parts == 1) && attribute(lt::kReduction) == 0;
}

std::optional<Algorithm> find(const Product& p, std::int64_t fewest) {
  const auto& l = library();
  const Described d(p);
  const Descriptor preference(l.preference_destroy, l.preference_create);
  const auto set = [&](int attribute, auto value) {
    check_lt(l.preference_set(preference.get(), attribute, &value, sizeof value), "setting a preference");
  };
  set(lt::kMaxWorkspace, std::uint64_t{kProductRoom});
  set(lt::kReductionSchemes, std::uint32_t{0});
  set(lt::kAlignmentA, alignment_of(p.b));
  set(lt::kAlignmentA + 1, alignment_of(p.a));
  set(lt::kAlignmentA + 2, alignment_of(p.c));
  set(lt::kAlignmentA + 3, alignment_of(p.c));
  constexpr int wanted = 16;
  lt::Found found[wanted];
  int count = 0;
  const int status = l.find(handle(), d.product.get(), d.a.get(), d.b.get(), d.c.get(), d.c.get(), preference.get(),
                            wanted, found, &count);
  if (status == lt::kNotSupported) return {};
  check_lt(status, "looking for an algorithm");
  Product few = p;
  if (fewest > 0) few.a.rows = few.c.rows = fewest;
  for (int i = 0; i < count; ++i) {
    if (found[i].state != lt::kSuccess || found[i].workspace > kProductRoom) continue;
    const Algorithm& algorithm = found[i].algorithm;
    if (adds_in_one_go(algorithm) && takes(p, algorithm) && (fewest == 0 || takes(few, algorithm))) return algorithm;
  }
  return {};
}

/// What an algorithm is looked for by.
struct Question {
  std::array<std::int64_t, 19> of{};

  Question() = default;
  Question(const Product& p, std::int64_t fewest) {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    std::size_t at = 0;
    const auto add = [&](std::int64_t value) { of[at++] = value; };
    for (const Matrix* m : {&p.a, &p.b, &p.c})
      add(m->rows), add(m->columns), add(m->stride), add(static_cast<int>(m->dtype)), add(alignment_of(*m));
    add(static_cast<int>(p.turn_a)), add(static_cast<int>(p.turn_b)), add(device), add(fewest);
  }
};

/// The last answers: finding one takes the host a third of a millisecond.
class Answers {
 public:
  std::optional<Algorithm> to(const Product& p, std::int64_t fewest) {
    const Question question(p, fewest);
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < count_; ++i)
      if (kept_[i].question.of == question.of) return kept_[i].answer;
    const std::optional<Algorithm> answer = find(p, fewest);
    const std::size_t place = next_++ % kept_.size();
    kept_[place] = {question, answer};
    count_ = std::max(count_, place + 1);
    return answer;
  }

 private:
  struct Kept {
    Question question;
    std::optional<Algorithm> answer;
  };
  std::mutex mutex_;
  std::array<Kept, 64> kept_;
  std::size_t count_ = 0, next_ = 0;
};

}  // namespace

const char* refuses_products() {
  return library().file == nullptr ? "libcublasLt.so.13 (or .12) is not found: install cuBLAS, or name its folder in "
                                     "LD_LIBRARY_PATH"
                                   : nullptr;
}

bool has_device() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count > 0;
  cudaGetLastError();
  return false;
}

bool takes(const Product& p, const Algorithm& algorithm) {
  const Described d(p);
  lt::Found result{};
  const int status =
      library().check(handle(), d.product.get(), d.a.get(), d.b.get(), d.c.get(), d.c.get(), &algorithm, &result);
  return status == lt::kSuccess && result.workspace <= kProductRoom;
}

std::optional<Algorithm> algorithm_for(const Product& p, std::int64_t fewest) {
  static Answers answers;
  return answers.to(p, fewest);
}

void multiply(const Product& p, const Algorithm& algorithm, void* room, cudaStream_t stream) {
  const Described d(p);
  const double one = 1, add = p.add ? 1 : 0;
  const float one_float = 1, add_float = p.add ? 1 : 0;
  const void *alpha = &one_float, *beta = &add_float;
  if (p.c.dtype == DType::float64) alpha = &one, beta = &add;
  check_lt(library().multiply(handle(), d.product.get(), alpha, p.b.data, d.a.get(), p.a.data, d.b.get(), beta,
                              p.c.data, d.c.get(), p.c.data, d.c.get(), &algorithm, room, kProductRoom, stream),
           "a matrix product");
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
