/* softfold's C ABI: the operations of softfold.hpp over plain structs.
 *
 * Every function returns a status: 0 (SOFTFOLD_OK) or the code of a refusal; nothing has been written then, and
 * softfold_last_error() tells the calling thread what was given, what is allowed and the nearest fix. No function
 * throws, aborts or prints. Fill structs of options with the *_init functions. A null options or context pointer means
 * the defaults. */
#ifndef SOFTFOLD_SOFTFOLD_H
#define SOFTFOLD_SOFTFOLD_H

#include "softfold/softfold_types.h"

#define SOFTFOLD_C_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

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

/* Shards of rows: shards.hpp. *width: the numbers of a row's partial of a shard of n elements. */
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
