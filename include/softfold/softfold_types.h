/* What the functions of softfold.h take: statuses, tensors, the options of each operation, contexts, plans.
 *
 * Structs of options begin with their size, so that later fields are added at the end; fill them with the *_init
 * functions of softfold.h, which includes this. */
#ifndef SOFTFOLD_SOFTFOLD_TYPES_H
#define SOFTFOLD_SOFTFOLD_TYPES_H

#include <stddef.h>
#include <stdint.h>

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
  void* workspace;        /* softfold_plan_workspace_bytes() bytes at a multiple of 256, or null */
  size_t workspace_bytes;
  int overlap; /* not 0: kernels may begin while the one before them ends */
} softfold_context;

/* A checked operation, bound to a kernel: a plain value of fixed size that owns nothing and is never freed.
 * Do not copy it: it is bound to the place where it was made. */
typedef struct softfold_plan {
  /* In C11 and C++11 terms: 16-byte aligned. */
  unsigned char opaque[2688] __attribute__((aligned(16)));
} softfold_plan;

#ifdef __cplusplus
}
#endif

#endif
