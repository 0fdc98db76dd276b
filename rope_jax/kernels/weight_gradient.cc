// xᵀ·y, the gradient of a projection's weights, one block of it on one core.

#include "kernels.h"
#include "matrix.h"

// Tokens at a time: their part of y is 64 KiB, and stays in the cache while x passes by.
enum { TOKENS = 256 };

// How many floats `weight_gradient` needs for itself.
extern "C" long NAME(weight_gradient_scratch)(const Projection *) {
  return TOKENS * WEIGHT_COLS + WEIGHT_ROWS * WEIGHT_COLS;
}

// One block of at most WEIGHT_ROWS rows and WEIGHT_COLS columns of out.
extern "C" void NAME(weight_gradient)(const Projection *p, long task, float *scratch) {
  const long across = (p->outputs + WEIGHT_COLS - 1) / WEIGHT_COLS;
  const long m = task / across * WEIGHT_ROWS, n = task % across * WEIGHT_COLS;
  const long rows = least(WEIGHT_ROWS, p->inputs - m), cols = least(WEIGHT_COLS, p->outputs - n);
  const long out_row = vectors(cols);
  float *y = scratch, *out = y + TOKENS * WEIGHT_COLS;
  memset(out, 0, rows * out_row * sizeof(float));
  for (long t = 0; t < p->tokens; t += TOKENS) {
    const long count = least(TOKENS, p->tokens - t);
    const float *x = p->x + t * p->inputs + m;
    copy(p->y + t * p->outputs + n, p->outputs, count, cols, y, out_row, count);
    multiply_add(rows, out_row, count, x, 1, p->inputs, y, out_row, out, out_row);
  }
  for (long i = 0; i < rows; i++)
    memcpy(p->out + (m + i) * p->outputs + n, out + i * out_row, cols * sizeof(float));
}
