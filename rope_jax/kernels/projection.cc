// x·w, the product of tokens and a projection's weights, one block of it on one core.

#include "kernels.h"
#include "matrix.h"

// Tokens that pass by one panel of weights while they stay in the second cache, and inputs that are
// summed up at a time: one sum over thousands of them would be less exact.
enum { TOKENS = 8 * ROWS, INPUTS = 256 };

// Copies the first `count` rows of w, [count, inputs], into panels like `pack`, transposed.
static void pack_transposed(const float *w, long inputs, long count, float *out) {
  const long some = 16;  // so few that their part of a panel stays in the first cache
  for (long j = 0; j < count; j += COLS, out += inputs * COLS)
    for (long begin = 0; begin < inputs; begin += some)
      for (long n = 0; n < COLS; n++)
        for (long d = begin; d < least(inputs, begin + some); d++)
          out[d * COLS + n] = j + n < count ? w[(j + n) * inputs + d] : 0;
}

// One tile of y, or one row of it. Functions of their own, see add_tile in weight_gradient.cc.
static __attribute__((noinline)) void whole_tile(int add, long inputs, const float *x, long x_row,
                                                 const float *panel, float *y, long y_row) {
  if (add) tile(ROWS, 2, 1, inputs, x, x_row, 1, panel, COLS, y, y_row);
  else tile(ROWS, 2, 0, inputs, x, x_row, 1, panel, COLS, y, y_row);
}

static __attribute__((noinline)) void one_row(int add, long inputs, const float *x,
                                              const float *panel, float *y) {
  if (add) tile(1, 2, 1, inputs, x, 0, 1, panel, COLS, y, 0);
  else tile(1, 2, 0, inputs, x, 0, 1, panel, COLS, y, 0);
}

// One panel's columns of some rows of y, at most a tile.
INLINE void multiply_panel(long rows, long width, long inputs, const float *x, const float *panel,
                           float *y, long y_row) {
  float edge[ROWS * COLS];
  const int whole = rows == ROWS && width == COLS;
  float *out = whole ? y : edge;
  const long out_row = whole ? y_row : COLS;
  for (long d = 0; d < inputs; d += INPUTS) {
    const long depth = least(INPUTS, inputs - d);
    const float *from = panel + d * COLS;
    if (rows == ROWS) whole_tile(d > 0, depth, x + d, inputs, from, out, out_row);
    else
      for (long r = 0; r < rows; r++)
        one_row(d > 0, depth, x + r * inputs + d, from, out + r * out_row);
  }
  if (!whole)
    for (long r = 0; r < rows; r++) memcpy(y + r * y_row, edge + r * COLS, width * sizeof(float));
}

// How many floats `projection` needs for itself.
extern "C" long NAME(projection_scratch)(const Projection *p) {
  return p->inputs * padded(p->cols, COLS);
}

// One block of y, of at most p->rows rows and p->cols columns.
extern "C" void NAME(projection)(const Projection *p, long task, float *panels) {
  const long across = (p->outputs + p->cols - 1) / p->cols;
  const long m = task / across * p->rows, n = task % across * p->cols;
  const long last = least(p->tokens, m + p->rows), cols = least(p->cols, p->outputs - n);
  if (p->transposed) pack_transposed(p->w + n * p->inputs, p->inputs, cols, panels);
  else pack(p->w + n, p->outputs, p->inputs, cols, COLS, panels);
  for (long begin = m; begin < last; begin += TOKENS)
    for (long j = 0; j < cols; j += COLS) {
      const float *panel = panels + j * p->inputs;
      const long end = least(last, begin + TOKENS), width = least(COLS, cols - j);
      for (long t = begin; t < end; t += ROWS)
        multiply_panel(least(ROWS, end - t), width, p->inputs, p->x + t * p->inputs, panel,
                       p->y + t * p->outputs + n + j, p->outputs);
    }
}
