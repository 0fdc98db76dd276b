// Σ xᵢ·wᵢ, the products of tokens and weights, one block of their sum on one core.

#include "kernels.h"
#include "panels.h"

// Tokens that pass by one panel of weights while they stay in the second cache.
enum { TOKENS = 8 * ROWS };

// How many floats `projection` needs for itself.
extern "C" long NAME(projection_scratch)(const Projection *p) {
  long count = 0;
  for (long i = 0; i < p->parts; i++) {
    const long inputs = p->part[i].inputs;
    count += factors_in(inputs) * padded(p->cols, COLS) + factors_copied(TOKENS, inputs);
  }
  return count;
}

// One block of y, of at most p->cols columns.
extern "C" void NAME(projection)(const Projection *p, long task, float *memory) {
  factor *scratch = (factor *)memory;
  const long across = (p->outputs + p->cols - 1) / p->cols;
  const Rows block = p->blocks[task / across];
  if (block.first == block.last) return;
  const long n = task % across * p->cols, cols = least(p->cols, p->outputs - n);
  const factor *panels[MOST_PARTS], *xs[MOST_PARTS];
  for (long i = 0; i < p->parts; i++) {
    const long inputs = p->part[i].inputs;
    const float *w = p->part[i].w + block.group * inputs * p->outputs;
    if (p->transposed) pack_transposed(w + n * inputs, inputs, cols, scratch);
    else pack(w + n, p->outputs, inputs, cols, COLS, scratch);
    panels[i] = scratch;
    scratch += factors_in(inputs) * padded(cols, COLS);
  }
  for (long begin = block.first; begin < block.last; begin += TOKENS) {
    const long end = least(block.last, begin + TOKENS);
    factor *copy = scratch;
    for (long i = 0; i < p->parts; i++) {
      const long inputs = p->part[i].inputs;
      xs[i] = factors_of(p->part[i].x, begin, end - begin, inputs, copy);
      copy += factors_copied(TOKENS, inputs);
    }
    for (long j = 0; j < cols; j += COLS) {
      const long width = least(COLS, cols - j);
      for (long t = begin; t < end; t += ROWS) {
        const long rows = least(ROWS, end - t);
        float edge[ROWS * COLS], *y = p->y + t * p->outputs + n + j;
        const int fits = width == COLS;
        float *out = fits ? y : edge;
        const long out_row = fits ? p->outputs : (long)COLS;
        for (long i = 0; i < p->parts; i++) {
          const long depth = factors_in(p->part[i].inputs);
          multiply_panel(i > 0, rows, depth, xs[i] + (t - begin) * depth, panels[i] + j * depth,
                         out, out_row);
        }
        if (!fits)
          for (long r = 0; r < rows; r++)
            memcpy(y + r * p->outputs, edge + r * COLS, width * sizeof(float));
      }
    }
  }
}
