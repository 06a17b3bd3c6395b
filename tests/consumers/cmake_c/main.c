/* A C program outside the library: one softmax, one refusal. */
#include <softfold/softfold.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

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
  out.shape = strange;
  if (softfold_softmax(&in, &out, NULL, NULL) != SOFTFOLD_SHAPE) return 3;
  printf("softfold %s, bits %d: %s\n", softfold_version(), softfold_bits_version(), softfold_last_error());
  return 0;
}
