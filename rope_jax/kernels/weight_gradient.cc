// xᵀ·dy, the gradient of a projection's weights, one block of it on one core.

#include "kernels.h"
#include "panels.h"

// Tokens at a time. With AVX-512, what a tile reads of dy is 16 KiB and stays in the first cache, while
// x passes by from the second.
enum { TOKENS = 128 * TOGETHER };

// `pack` from the number `begin` on.
INLINE void pack_from(Numbers x, long begin, long x_row, long rows, long count, const long width,
                      factor *out) {
#ifdef ROUNDED
  if (x.are_bfloat16) return pack((const half *)x.at + begin, x_row, rows, count, width, out);
#endif
  pack((const float *)x.at + begin, x_row, rows, count, width, out);
}

// Adds xᵀ·dy of two panels to a tile of out, which is one or two vectors wide. A function of its own,
// see whole_tile.
static __attribute__((noinline)) void add_tile(int wide, long depth, const factor *x,
                                               const factor *dy, float *out, long out_row) {
  if (wide) tile(ROWS, 2, 1, depth, x, 1, ROWS, dy, COLS, out, out_row);
  else tile(ROWS, 1, 1, depth, x, 1, ROWS, dy, LANES, out, out_row);
}

// How many floats `weight_gradient` needs for itself.
extern "C" long NAME(weight_gradient_scratch)(const WeightGradient *p) {
  const long rows = padded(p->rows, ROWS), cols = vectors(p->cols);
  return TOKENS / TOGETHER * (rows + cols) + rows * cols;
}

// One block of dw, of at most p->rows rows and p->cols columns.
extern "C" void NAME(weight_gradient)(const WeightGradient *p, long task, float *scratch) {
  const long across = (p->outputs + p->cols - 1) / p->cols;
  const long down = (p->inputs + p->rows - 1) / p->rows;
  const Rows group = p->groups[task / (across * down)];
  const long m = task / across % down * p->rows, n = task % across * p->cols;
  const long rows = least(p->rows, p->inputs - m), cols = least(p->cols, p->outputs - n);
  const long all_rows = padded(rows, ROWS), out_row = vectors(cols);
  const long in_pairs = out_row / COLS * COLS;  // columns in tiles two vectors wide; one may be left
  float *out = scratch;
  factor *x = (factor *)(out + all_rows * out_row), *dy = x + TOKENS / TOGETHER * all_rows;
  memset(out, 0, all_rows * out_row * sizeof(float));
  for (long t = group.first; t < group.last; t += TOKENS) {
    const long count = least(TOKENS, group.last - t), depth = factors_in(count);
    const long dy_begin = t * p->outputs + n;
    pack_from(p->x, t * p->inputs + m, p->inputs, count, rows, ROWS, x);
    pack_from(p->dy, dy_begin, p->outputs, count, least(cols, in_pairs), COLS, dy);
    pack_from(p->dy, dy_begin + in_pairs, p->outputs, count, cols - in_pairs, LANES,
              dy + in_pairs * depth);
    for (long j = 0; j < out_row; j += COLS)
      for (long i = 0; i < rows; i += ROWS)
        add_tile(j < in_pairs, depth, x + i * depth, dy + j * depth, out + i * out_row + j, out_row);
  }
  float *dw = p->dw + (group.group * p->inputs + m) * p->outputs + n;
  for (long i = 0; i < rows; i++)
    memcpy(dw + i * p->outputs, out + i * out_row, cols * sizeof(float));
}
