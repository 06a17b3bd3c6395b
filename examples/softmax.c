#include <softfold/softfold.h>
#include <stdio.h>

int main(void) {
  float x[] = {1, 2, 3, 1000, 1001, 1002}, y[6];
  int64_t shape[] = {2, 3};
  /* DLPack's codes. device: {1, 0} is the CPU. dtype: {2, 32, 1} is floating point, 32 bits, one lane. No strides: the
     elements lie one after the other. */
  softfold_tensor in = {.data = x, .device = {1, 0}, .ndim = 2, .dtype = {2, 32, 1}, .shape = shape};
  softfold_tensor out = in; /* of the same shape and dtype, in memory of its own */
  out.data = y;
  /* NULL, NULL: no options (the last axis, scale 1), and the default threads. */
  if (softfold_softmax(&in, &out, NULL, NULL) != SOFTFOLD_OK) {
    fprintf(stderr, "%s\n", softfold_last_error());
    return 1;
  }
  for (int i = 0; i < 6; ++i) printf("%.4f ", y[i]);
  return 0;
}
