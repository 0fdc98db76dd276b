// RMSNorm, y = x·r·scale with r = 1/√(mean x² + ε), for a block of tokens on one core.

#include <math.h>

#include "kernels.h"
#include "vectors.h"

static long end_of(const Norm *n, long task) {
  return least(n->tokens, (task + 1) * NORM_BLOCK);
}

extern "C" long NAME(norm_forward_scratch)(const Norm *) { return 0; }

extern "C" void NAME(norm_forward)(const Norm *n, long task, float *) {
  for (long t = task * NORM_BLOCK; t < end_of(n, task); t++) {
    const float *x = n->x + t * n->width;
    float *y = n->y + t * n->width;
    const float r = 1 / sqrtf(product_of(x, x, n->width) / n->width + n->epsilon);
    for (long i = 0; i < n->width; i++) y[i] = x[i] * (r * n->scale[i]);
  }
}

extern "C" long NAME(norm_backward_scratch)(const Norm *n) { return n->width; }

// With g = dy·scale: dx = r·(g - x·r²·mean(g·x)), and dscale = Σ dy·x·r, of this block's tokens.
extern "C" void NAME(norm_backward)(const Norm *n, long task, float *g) {
  float *dscale = n->dscale + task * n->width;
  memset(dscale, 0, n->width * sizeof(float));
  for (long t = task * NORM_BLOCK; t < end_of(n, task); t++) {
    const float *x = n->x + t * n->width, *dy = n->dy + t * n->width;
    float *dx = n->dx + t * n->width;
    const float r = 1 / sqrtf(product_of(x, x, n->width) / n->width + n->epsilon);
    for (long i = 0; i < n->width; i++) g[i] = dy[i] * n->scale[i];
    const float shift = r * r * (product_of(g, x, n->width) / n->width);
    for (long i = 0; i < n->width; i++) dscale[i] += dy[i] * x[i] * r;
    for (long i = 0; i < n->width; i++) dx[i] = r * (g[i] - x[i] * shift);
  }
}
