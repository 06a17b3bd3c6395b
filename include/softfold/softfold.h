/* softfold's C ABI: the operations of softfold.hpp over plain structs.
 *
 * Every function returns a status: 0 (SOFTFOLD_OK) or the code of a refusal; nothing has been written then, and
 * softfold_last_error() tells the calling thread what was given, what is allowed and the nearest fix. No function
 * throws, aborts or prints. Structs of options begin with their size, so that later fields are added at the end;
 * fill them with the *_init functions. A null options or context pointer means the defaults. */
#ifndef SOFTFOLD_SOFTFOLD_H
#define SOFTFOLD_SOFTFOLD_H

#include <stddef.h>
#include <stdint.h>

#define SOFTFOLD_C_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* The values of softfold::Code. */
typedef enum softfold_status {
  SOFTFOLD_OK = 0,
  SOFTFOLD_INTERNAL = 1,
  SOFTFOLD_USAGE = 2,
  SOFTFOLD_DTYPE = 3,
  SOFTFOLD_SHAPE = 4,
  SOFTFOLD_STRIDES = 5,
  SOFTFOLD_OPTION = 6,
  SOFTFOLD_UNSUPPORTED = 7,
  SOFTFOLD_STATE = 8,
  SOFTFOLD_FILE = 9,
  SOFTFOLD_IO = 10,
  SOFTFOLD_OUT_OF_MEMORY = 11,
  SOFTFOLD_DEVICE = 12,
  SOFTFOLD_DATA = 13,
  SOFTFOLD_VERIFICATION = 14
} softfold_status;

/* A tensor, laid out as DLPack's DLTensor, so a DLTensor* may be passed as it is.
 * dtype code: 0 int (32, 64 bits), 2 float (16, 32, 64), 4 bfloat (16), 6 bool (8); lanes 1.
 * device_type: 1 CPU, 2 CUDA. strides count elements; null is C-contiguous. */
typedef struct softfold_tensor {
  void* data;
  struct {
    int32_t device_type;
    int32_t device_id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
  } dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} softfold_tensor;

/* The values of softfold::Op. */
typedef enum softfold_op {
  SOFTFOLD_OP_SOFTMAX = 0,
  SOFTFOLD_OP_LOG_SOFTMAX = 1,
  SOFTFOLD_OP_LOGSUMEXP = 2,
  SOFTFOLD_OP_STATE = 3,
  SOFTFOLD_OP_SOFTMAX_BACKWARD = 4,
  SOFTFOLD_OP_LOG_SOFTMAX_BACKWARD = 5,
  SOFTFOLD_OP_LOGSUMEXP_BACKWARD = 6,
  SOFTFOLD_OP_MERGE_STATES = 7,
  SOFTFOLD_OP_FINISH_SOFTMAX = 8,
  SOFTFOLD_OP_FINISH_LOG_SOFTMAX = 9,
  SOFTFOLD_OP_FINISH_LOGSUMEXP = 10,
  SOFTFOLD_OP_MERGE_ATTENTION = 11,
  SOFTFOLD_OP_MERGE_BLOCKS = 12,
  SOFTFOLD_OP_TOPK = 13,
  SOFTFOLD_OP_SAMPLE = 14,
  SOFTFOLD_OP_ENTROPY = 15,
  SOFTFOLD_OP_CROSS_ENTROPY = 16,
  SOFTFOLD_OP_LINEAR_CROSS_ENTROPY = 17,
  SOFTFOLD_OP_ATTENTION = 18,
  SOFTFOLD_OP_CROSS_ENTROPY_BACKWARD = 19,
  SOFTFOLD_OP_ENTROPY_BACKWARD = 20,
  SOFTFOLD_OP_KL_DIVERGENCE = 21,
  SOFTFOLD_OP_KL_DIVERGENCE_BACKWARD = 22
} softfold_op;

typedef enum softfold_empty { SOFTFOLD_EMPTY_ZERO = 0, SOFTFOLD_EMPTY_NAN = 1 } softfold_empty;
typedef enum softfold_rung {
  SOFTFOLD_RUNG_AUTOMATIC = 0,
  SOFTFOLD_RUNG_NAIVE = 1,
  SOFTFOLD_RUNG_SAFE = 2,
  SOFTFOLD_RUNG_ONLINE = 3,
  SOFTFOLD_RUNG_TILED = 4,
  SOFTFOLD_RUNG_FUSED = 5,
  SOFTFOLD_RUNG_MERGED = 6 /* of attention alone */
} softfold_rung;
typedef enum softfold_log_base { SOFTFOLD_BASE_NATURAL = 0, SOFTFOLD_BASE_TWO = 1 } softfold_log_base;
typedef enum softfold_layout { SOFTFOLD_LAYOUT_BHTD = 0, SOFTFOLD_LAYOUT_BTHD = 1 } softfold_layout;
typedef enum softfold_statistics { SOFTFOLD_STATISTICS_LSE = 0, SOFTFOLD_STATISTICS_MAX_SUM = 1 } softfold_statistics;

/* softfold::RowOptions; a null tensor is "not given". */
typedef struct softfold_row_options {
  size_t struct_size;
  double scale;
  const softfold_tensor* scales;
  const softfold_tensor* length;
  const softfold_tensor* offsets;
  const softfold_tensor* mask;
  int32_t axis;
  int32_t causal;
  int32_t empty; /* softfold_empty */
  int32_t rung;  /* softfold_rung */
} softfold_row_options;

/* softfold::MergeOptions. */
typedef struct softfold_merge_options {
  size_t struct_size;
  int32_t base;       /* softfold_log_base */
  int32_t statistics; /* softfold_statistics */
} softfold_merge_options;

/* softfold::AttentionOptions; a null tensor is "not given". q_offsets and kv_offsets make it Varlen, page_table Paged.
 */
typedef struct softfold_attention_options {
  size_t struct_size;
  double scale; /* NaN: 1/sqrt(D) */
  int64_t window_left;
  int64_t window_right;
  int64_t max_q;
  int64_t max_kv;
  const softfold_tensor* sink;
  const softfold_tensor* bias;
  const softfold_tensor* mask;
  const softfold_tensor* slopes;
  const softfold_tensor* kv_lengths;
  const softfold_tensor* kv_starts;
  const softfold_tensor* kv_index;
  const softfold_tensor* q_offsets;
  const softfold_tensor* kv_offsets;
  const softfold_tensor* page_table;
  const softfold_tensor* q_positions;
  const softfold_tensor* kv_positions;
  const softfold_tensor* lse;   /* a result */
  const softfold_tensor* state; /* a result */
  float softcap;
  int32_t causal;
  int32_t layout; /* softfold_layout */
  int32_t rung;   /* softfold_rung */
} softfold_attention_options;

typedef enum softfold_reduction {
  SOFTFOLD_REDUCTION_NONE = 0,
  SOFTFOLD_REDUCTION_SUM = 1,
  SOFTFOLD_REDUCTION_MEAN = 2
} softfold_reduction;

/* softfold::CrossEntropyOptions; a null tensor is "not given", null rows are the defaults. */
typedef struct softfold_cross_entropy_options {
  size_t struct_size;
  const softfold_row_options* rows;
  int64_t ignore_index;
  double label_smoothing;
  double z_loss;
  const softfold_tensor* weight;
  const softfold_tensor* log_probability;
  const softfold_tensor* states;
  const softfold_tensor* dx;
  const softfold_tensor* dloss;
  int32_t reduction; /* softfold_reduction */
  const softfold_tensor* status;
  int64_t shard_offset; /* of cross_entropy_backward: softfold::Shard */
  int64_t shard_size;   /* 0: x's rows are whole */
} softfold_cross_entropy_options;

typedef enum softfold_linear_mode { SOFTFOLD_LINEAR_FAST = 0, SOFTFOLD_LINEAR_LEAN = 1 } softfold_linear_mode;

/* softfold::LinearCrossEntropyOptions. */
typedef struct softfold_linear_cross_entropy_options {
  size_t struct_size;
  const softfold_cross_entropy_options* loss; /* null: its defaults */
  const softfold_tensor* bias;
  const softfold_tensor* dx;      /* a result */
  const softfold_tensor* dweight; /* a result */
  const softfold_tensor* dbias;   /* a result */
  double softcap;
  int32_t mode; /* softfold_linear_mode */
} softfold_linear_cross_entropy_options;

/* softfold::EntropyOptions. */
typedef struct softfold_entropy_options {
  size_t struct_size;
  const softfold_row_options* rows;
  const softfold_tensor* states;
  const softfold_tensor* dx;
  const softfold_tensor* dentropy;
} softfold_entropy_options;

/* softfold::KlDivergenceOptions. */
typedef struct softfold_kl_divergence_options {
  size_t struct_size;
  const softfold_row_options* rows;
  const softfold_tensor* p_states;
  const softfold_tensor* q_states;
  const softfold_tensor* dp;
  const softfold_tensor* dq;
  const softfold_tensor* dkl;
} softfold_kl_divergence_options;

/* softfold::TopkOptions. */
typedef struct softfold_topk_options {
  size_t struct_size;
  const softfold_row_options* rows;
  const softfold_tensor* probabilities;
  const softfold_tensor* log_probabilities;
  const softfold_tensor* lse;
  int32_t sorted;
} softfold_topk_options;

typedef enum softfold_filter_order {
  SOFTFOLD_FILTER_MIN_P_FIRST = 0, /* vLLM's */
  SOFTFOLD_FILTER_MIN_P_LAST = 1   /* Hugging Face's */
} softfold_filter_order;

typedef enum softfold_distribution {
  SOFTFOLD_DISTRIBUTION_RAW = 0,
  SOFTFOLD_DISTRIBUTION_SAMPLED = 1
} softfold_distribution;

/* softfold::SampleOptions. */
typedef struct softfold_sample_options {
  size_t struct_size;
  const softfold_row_options* rows;
  double temperature;
  int64_t top_k;
  double top_p;
  double min_p;
  uint64_t seed;
  uint64_t offset;
  const softfold_tensor* temperatures;
  const softfold_tensor* top_ks;
  const softfold_tensor* top_ps;
  const softfold_tensor* min_ps;
  const softfold_tensor* bias;
  const softfold_tensor* bitmask;
  const softfold_tensor* seeds;
  const softfold_tensor* offsets;
  const softfold_tensor* row_ids;
  const softfold_tensor* log_probability;       /* a result */
  const softfold_tensor* rank;                  /* a result */
  const softfold_tensor* probabilities;         /* a result */
  const softfold_tensor* masked;                /* a result */
  int32_t order;                                /* softfold_filter_order */
  int32_t of;                                   /* softfold_distribution */
  const softfold_tensor* top_tokens;            /* a result */
  const softfold_tensor* top_log_probabilities; /* a result */
} softfold_sample_options;

/* softfold::ShardOptions. */
typedef struct softfold_shard_options {
  size_t struct_size;
  const softfold_row_options* rows;
  const softfold_tensor* targets;
  int64_t offset; /* where in the rows the shard begins */
  int64_t size;   /* of the whole rows */
  int64_t k;
} softfold_shard_options;

typedef struct softfold_executor softfold_executor;

/* softfold::Context. */
typedef struct softfold_context {
  size_t struct_size;
  softfold_executor* cpu; /* null: the default executor */
  void* stream;           /* a cudaStream_t */
  void* workspace;        /* softfold_plan_workspace_bytes() bytes, or null */
  size_t workspace_bytes;
} softfold_context;

/* A checked operation, bound to a kernel: a plain value of fixed size that owns nothing and is never freed.
 * Do not copy it: it is bound to the place where it was made. */
typedef struct softfold_plan {
  /* In C11 and C++11 terms: 16-byte aligned. */
  unsigned char opaque[2688] __attribute__((aligned(16)));
} softfold_plan;

/* scale 1, axis -1, everything else off. */
SOFTFOLD_C_API void softfold_row_options_init(softfold_row_options* options);
SOFTFOLD_C_API void softfold_merge_options_init(softfold_merge_options* options);
/* Windows unlimited, scale 1/sqrt(D), everything else off. */
SOFTFOLD_C_API void softfold_attention_options_init(softfold_attention_options* options);
/* Reduction mean, ignore_index -100, everything else off. */
SOFTFOLD_C_API void softfold_cross_entropy_options_init(softfold_cross_entropy_options* options);
SOFTFOLD_C_API void softfold_linear_cross_entropy_options_init(softfold_linear_cross_entropy_options* options);
SOFTFOLD_C_API void softfold_entropy_options_init(softfold_entropy_options* options);
SOFTFOLD_C_API void softfold_kl_divergence_options_init(softfold_kl_divergence_options* options);
/* sorted 1. */
SOFTFOLD_C_API void softfold_topk_options_init(softfold_topk_options* options);
/* temperature 1, top_p 1, everything else off. */
SOFTFOLD_C_API void softfold_sample_options_init(softfold_sample_options* options);
/* Everything off; size must be given. */
SOFTFOLD_C_API void softfold_shard_options_init(softfold_shard_options* options);
SOFTFOLD_C_API void softfold_context_init(softfold_context* context);

/* Plans: op is a softfold_op; the order of inputs and outputs is that of softfold::Op. Merge operations take
 * softfold_merge_options. */
SOFTFOLD_C_API softfold_status softfold_plan_rows(softfold_plan* plan, int op, const softfold_tensor* inputs,
                                                  size_t input_count, const softfold_tensor* outputs,
                                                  size_t output_count, const softfold_row_options* options,
                                                  const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_plan_merge(softfold_plan* plan, int op, const softfold_tensor* inputs,
                                                   size_t input_count, const softfold_tensor* outputs,
                                                   size_t output_count, const softfold_merge_options* options,
                                                   const softfold_context* context);
/* inputs: q, k, v; output: out. */
SOFTFOLD_C_API softfold_status softfold_plan_attention(softfold_plan* plan, const softfold_tensor* inputs,
                                                       size_t input_count, const softfold_tensor* outputs,
                                                       size_t output_count, const softfold_attention_options* options,
                                                       const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_plan_entropy(softfold_plan* plan, int op, const softfold_tensor* inputs,
                                                     size_t input_count, const softfold_tensor* outputs,
                                                     size_t output_count, const softfold_entropy_options* options,
                                                     const softfold_context* context);
/* inputs: p, q; output: kl. Or p, q, p_states, q_states, dkl; outputs: dp, dq. */
SOFTFOLD_C_API softfold_status softfold_plan_kl_divergence(softfold_plan* plan, int op, const softfold_tensor* inputs,
                                                           size_t input_count, const softfold_tensor* outputs,
                                                           size_t output_count,
                                                           const softfold_kl_divergence_options* options,
                                                           const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_plan_topk(softfold_plan* plan, const softfold_tensor* inputs,
                                                  size_t input_count, const softfold_tensor* outputs,
                                                  size_t output_count, const softfold_topk_options* options,
                                                  const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_plan_sample(softfold_plan* plan, const softfold_tensor* inputs,
                                                    size_t input_count, const softfold_tensor* outputs,
                                                    size_t output_count, const softfold_sample_options* options,
                                                    const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_plan_cross_entropy(softfold_plan* plan, int op, const softfold_tensor* inputs,
                                                           size_t input_count, const softfold_tensor* outputs,
                                                           size_t output_count,
                                                           const softfold_cross_entropy_options* options,
                                                           const softfold_context* context);
/* inputs: x, weight, targets; output: loss. */
SOFTFOLD_C_API softfold_status softfold_plan_linear_cross_entropy(softfold_plan* plan, const softfold_tensor* inputs,
                                                                  size_t input_count, const softfold_tensor* outputs,
                                                                  size_t output_count,
                                                                  const softfold_linear_cross_entropy_options* options,
                                                                  const softfold_context* context);
/* SOFTFOLD_OPTION for a plan that was refused or copied; its kernel is "" then, and its workspace 0 bytes. */
SOFTFOLD_C_API softfold_status softfold_plan_run(const softfold_plan* plan);
SOFTFOLD_C_API const char* softfold_plan_kernel(const softfold_plan* plan);
SOFTFOLD_C_API size_t softfold_plan_workspace_bytes(const softfold_plan* plan);

/* One-shot calls: a plan, run. Shapes, dtypes and formulas are those of the functions of the same names in
 * softfold.hpp; options may be null. */
SOFTFOLD_C_API softfold_status softfold_softmax(const softfold_tensor* x, const softfold_tensor* y,
                                                const softfold_row_options* options, const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_log_softmax(const softfold_tensor* x, const softfold_tensor* y,
                                                    const softfold_row_options* options,
                                                    const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_logsumexp(const softfold_tensor* x, const softfold_tensor* lse,
                                                  const softfold_row_options* options, const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_state(const softfold_tensor* x, const softfold_tensor* states,
                                              const softfold_row_options* options, const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_softmax_backward(const softfold_tensor* y, const softfold_tensor* dy,
                                                         const softfold_tensor* dx, const softfold_row_options* options,
                                                         const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_log_softmax_backward(const softfold_tensor* y, const softfold_tensor* dy,
                                                             const softfold_tensor* dx,
                                                             const softfold_row_options* options,
                                                             const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_logsumexp_backward(const softfold_tensor* x, const softfold_tensor* states,
                                                           const softfold_tensor* dlse, const softfold_tensor* dx,
                                                           const softfold_row_options* options,
                                                           const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_finish_softmax(const softfold_tensor* x, const softfold_tensor* states,
                                                       const softfold_tensor* y, const softfold_row_options* options,
                                                       const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_finish_log_softmax(const softfold_tensor* x, const softfold_tensor* states,
                                                           const softfold_tensor* y,
                                                           const softfold_row_options* options,
                                                           const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_finish_logsumexp(const softfold_tensor* states, const softfold_tensor* lse,
                                                         const softfold_context* context);

/* Merges of 1 to SOFTFOLD_MAX_MERGE_PARTS parts, all of one shape, dtype and strides. merge_states: parts[part_count].
 * The others: parts[2 * part_count], each part's values followed by its statistics; merge_attention has outputs[2], the
 * values and their statistics, merge_blocks outputs[part_count + 1], every part's values and the joint statistics. */
#define SOFTFOLD_MAX_MERGE_PARTS 16
SOFTFOLD_C_API softfold_status softfold_merge_states(const softfold_tensor* parts, size_t part_count,
                                                     const softfold_tensor* merged, const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_merge_attention(const softfold_tensor* parts, size_t part_count,
                                                        const softfold_tensor* outputs,
                                                        const softfold_merge_options* options,
                                                        const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_merge_blocks(const softfold_tensor* parts, size_t part_count,
                                                     const softfold_tensor* outputs,
                                                     const softfold_merge_options* options,
                                                     const softfold_context* context);

SOFTFOLD_C_API softfold_status softfold_entropy(const softfold_tensor* x, const softfold_tensor* entropy,
                                                const softfold_entropy_options* options,
                                                const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_entropy_backward(const softfold_tensor* x, const softfold_tensor* states,
                                                         const softfold_tensor* dentropy, const softfold_tensor* dx,
                                                         const softfold_entropy_options* options,
                                                         const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_kl_divergence(const softfold_tensor* p, const softfold_tensor* q,
                                                      const softfold_tensor* kl,
                                                      const softfold_kl_divergence_options* options,
                                                      const softfold_context* context);
/* dp or dq may be null: it is not wanted. */
SOFTFOLD_C_API softfold_status softfold_kl_divergence_backward(
    const softfold_tensor* p, const softfold_tensor* q, const softfold_tensor* p_states,
    const softfold_tensor* q_states, const softfold_tensor* dkl, const softfold_tensor* dp, const softfold_tensor* dq,
    const softfold_kl_divergence_options* options, const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_topk(const softfold_tensor* x, const softfold_tensor* values,
                                             const softfold_tensor* indices, const softfold_topk_options* options,
                                             const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_sample(const softfold_tensor* x, const softfold_tensor* tokens,
                                               const softfold_sample_options* options, const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_cross_entropy(const softfold_tensor* x, const softfold_tensor* targets,
                                                      const softfold_tensor* loss,
                                                      const softfold_cross_entropy_options* options,
                                                      const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_cross_entropy_backward(const softfold_tensor* x, const softfold_tensor* targets,
                                                               const softfold_tensor* states,
                                                               const softfold_tensor* dloss, const softfold_tensor* dx,
                                                               const softfold_cross_entropy_options* options,
                                                               const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_linear_cross_entropy(const softfold_tensor* x, const softfold_tensor* weight,
                                                             const softfold_tensor* targets,
                                                             const softfold_tensor* loss,
                                                             const softfold_linear_cross_entropy_options* options,
                                                             const softfold_context* context);

/* Shards of rows, on the CPU: shards.hpp. *width: the numbers of a row's partial of a shard of n elements. */
SOFTFOLD_C_API softfold_status softfold_partial_width(int64_t n, const softfold_shard_options* options, int64_t* width);
SOFTFOLD_C_API softfold_status softfold_fold_shard(const softfold_tensor* x, const softfold_tensor* partials,
                                                   const softfold_shard_options* options,
                                                   const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_join_states(const softfold_tensor* partials, const softfold_tensor* states,
                                                    const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_join_cross_entropy(const softfold_tensor* partials,
                                                           const softfold_tensor* targets, const softfold_tensor* loss,
                                                           const softfold_cross_entropy_options* options,
                                                           const softfold_context* context);
SOFTFOLD_C_API softfold_status softfold_join_topk(const softfold_tensor* partials, const softfold_tensor* values,
                                                  const softfold_tensor* indices, const softfold_topk_options* options,
                                                  const softfold_context* context);
/* The shard begins at shard_offset of rows of shard_size elements. */
SOFTFOLD_C_API softfold_status softfold_sample_shard(const softfold_tensor* x, const softfold_tensor* partials,
                                                     const softfold_tensor* tokens, int64_t shard_offset,
                                                     int64_t shard_size, const softfold_sample_options* options,
                                                     const softfold_context* context);

SOFTFOLD_C_API softfold_status softfold_attention(const softfold_tensor* q, const softfold_tensor* k,
                                                  const softfold_tensor* v, const softfold_tensor* out,
                                                  const softfold_attention_options* options,
                                                  const softfold_context* context);

/* Executors. threads = 0 takes the machine's. softfold_executor_tbb is SOFTFOLD_UNSUPPORTED in a build without oneTBB.
 */
SOFTFOLD_C_API softfold_status softfold_executor_threads(int threads, softfold_executor** executor);
SOFTFOLD_C_API softfold_status softfold_executor_tbb(int threads, softfold_executor** executor);
SOFTFOLD_C_API void softfold_executor_destroy(softfold_executor* executor);

/* softfold::Stream: a row that arrives in pieces. dtype is DLPack's (code, bits); offset is where in its row the first
 * element stands (0 for a whole row). One thread at a time. */
typedef struct softfold_stream softfold_stream;
SOFTFOLD_C_API softfold_status softfold_stream_create(int dtype_code, int dtype_bits, double scale, int64_t offset,
                                                      const softfold_context* context, softfold_stream** stream);
SOFTFOLD_C_API void softfold_stream_destroy(softfold_stream* stream);
/* The next elements: 1-D. */
SOFTFOLD_C_API softfold_status softfold_stream_push(softfold_stream* stream, const softfold_tensor* piece);
/* softfold::Partial: what a stream holds, as numbers to be sent to the process that joins the shards of a row (in any
 * order of their arrival, pushed in the order of their offsets). Bit for bit, the joined stream is that of the row.
 *
 * get_partial writes *count <= SOFTFOLD_PARTIAL_DOUBLES numbers: definition of the bits, digits of the fold, scale,
 * offset, how many head elements, nodes and tail elements, then these: the raw elements before the first boundary of a
 * chunk; the level, m and d of each node of the tree; the raw elements after the last boundary. With too little
 * capacity it is SOFTFOLD_SHAPE, and *count says how much is needed.
 * push_partial takes them: the next elements of the row. SOFTFOLD_STATE: of another scale, bits or place in the row, or
 * numbers that no stream holds; SOFTFOLD_DTYPE: folded in another precision. */
#define SOFTFOLD_PARTIAL_DOUBLES 2311
SOFTFOLD_C_API softfold_status softfold_stream_get_partial(const softfold_stream* stream, double* partial,
                                                           size_t capacity, size_t* count);
SOFTFOLD_C_API softfold_status softfold_stream_push_partial(softfold_stream* stream, const double* partial,
                                                            size_t count);
/* (m, d, scale, digits) and the logsumexp of what has come. */
SOFTFOLD_C_API softfold_status softfold_stream_state(const softfold_stream* stream, double state[4]);
SOFTFOLD_C_API softfold_status softfold_stream_logsumexp(const softfold_stream* stream, double* lse);
/* The second pass: the (log-)probabilities of a piece of the row. x, y: 1-D, of one length. empty: softfold_empty. */
SOFTFOLD_C_API softfold_status softfold_stream_softmax(const softfold_stream* stream, const softfold_tensor* x,
                                                       const softfold_tensor* y, int empty);
SOFTFOLD_C_API softfold_status softfold_stream_log_softmax(const softfold_stream* stream, const softfold_tensor* x,
                                                           const softfold_tensor* y, int empty);

/* The calling thread's last refusal, valid until its next call into softfold: the whole message, and its parts.
 * Empty strings if there was none. */
SOFTFOLD_C_API const char* softfold_last_error(void);
SOFTFOLD_C_API const char* softfold_last_error_got(void);
SOFTFOLD_C_API const char* softfold_last_error_allowed(void);
SOFTFOLD_C_API const char* softfold_last_error_fix(void);

SOFTFOLD_C_API const char* softfold_version(void);
/* The definition of the bits that this library computes. */
SOFTFOLD_C_API int softfold_bits_version(void);

#ifdef __cplusplus
}
#endif

#endif
