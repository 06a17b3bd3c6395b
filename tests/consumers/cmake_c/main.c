/* A C program outside the library: one softmax, one refusal, a row folded in two places. */
#include <softfold/softfold.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The lse of x[0..4) of which another stream, in another process perhaps, holds the last three elements. */
static int joined(const softfold_tensor* x, double* lse) {
  static double partial[SOFTFOLD_PARTIAL_DOUBLES];
  softfold_stream *here = NULL, *there = NULL;
  softfold_tensor piece = *x;
  int64_t one = 1, three = 3;
  size_t count = 0;
  int status = softfold_stream_create(2, 64, 1, 0, NULL, &here);
  if (!status) status = softfold_stream_create(2, 64, 1, 1, NULL, &there);
  piece.ndim = 1;
  piece.shape = &one;
  if (!status) status = softfold_stream_push(here, &piece);
  piece.shape = &three;
  piece.byte_offset = sizeof(double);
  if (!status) status = softfold_stream_push(there, &piece);
  if (!status) status = softfold_stream_get_partial(there, partial, SOFTFOLD_PARTIAL_DOUBLES, &count);
  if (!status) status = softfold_stream_push_partial(here, partial, count);
  if (!status) status = softfold_stream_logsumexp(here, lse);
  softfold_stream_destroy(here);
  softfold_stream_destroy(there);
  return status;
}

int main(void) {
  double x[8] = {0, 0, 0, 0, 1, 2, 3, -INFINITY}, y[8];
  int64_t shape[2] = {2, 4}, strange[2] = {4, 4};
  softfold_tensor in, out;
  memset(&in, 0, sizeof in);
  in.data = x;
  in.device.device_type = 1;
  in.ndim = 2;
  in.dtype.code = 2;
  in.dtype.bits = 64;
  in.dtype.lanes = 1;
  in.shape = shape;
  out = in;
  out.data = y;
  if (softfold_softmax(&in, &out, NULL, NULL) != SOFTFOLD_OK) {
    fprintf(stderr, "%s\n", softfold_last_error());
    return 1;
  }
  if (y[0] != 0.25 || fabs(y[6] - 0.66524095577482178) > 1e-15 || y[7] != 0) return 2;
  double lse = 0;
  if (joined(&in, &lse) != SOFTFOLD_OK || fabs(lse - log(4)) > 1e-15) return 4;
  out.shape = strange;
  if (softfold_softmax(&in, &out, NULL, NULL) != SOFTFOLD_SHAPE) return 3;
  printf("softfold %s, bits %d: %s\n", softfold_version(), softfold_bits_version(), softfold_last_error());
  return 0;
}
