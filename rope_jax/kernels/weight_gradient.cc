// xᵀ·y, the gradient of a projection's weights, one block of it on one core.

#include "kernels.h"
#include "matrix.h"

// Tokens at a time. With AVX-512, what a tile reads of y is 16 KiB and stays in the first cache, while
// x passes by from the second.
enum { TOKENS = 128, COLS = 2 * LANES };

INLINE long padded(long count, long unit) { return (count + unit - 1) / unit * unit; }

// Copies the first `count` numbers of some tokens into panels, [panels, tokens, width], padded with
// zeros. A tile reads few numbers of many tokens, and in their own places these would evict each
// other from the cache: their distance is often a power of two.
INLINE void pack(const float *x, long x_row, long tokens, long count, const long width,
                 float *out) {
  const long some = 16;  // so few that their rows of x stay in the first cache
  for (long begin = 0; begin < tokens; begin += some)
    for (long i = 0; i < count; i += width) {
      const long end = least(tokens, begin + some), own = least(width, count - i);
      float *to = out + i * tokens + begin * width;
      for (long t = begin; t < end; t++, to += width) {
        const float *from = x + t * x_row + i;
        if (own == width) memcpy(to, from, width * sizeof(float));
        else for (long j = 0; j < width; j++) to[j] = j < own ? from[j] : 0;
      }
    }
}

// Adds xᵀ·y of two panels to a tile of out, which is one or two vectors wide. A function of its own:
// inlined into loops, GCC 12 leaves its innermost loop a quarter slower.
static __attribute__((noinline)) void add_tile(int wide, long tokens, const float *x,
                                               const float *y, float *out, long out_row) {
  if (wide) tile(ROWS, 2, 1, tokens, x, 1, ROWS, y, COLS, out, out_row);
  else tile(ROWS, 1, 1, tokens, x, 1, ROWS, y, LANES, out, out_row);
}

// How many floats `weight_gradient` needs for itself.
extern "C" long NAME(weight_gradient_scratch)(const Projection *p) {
  const long rows = padded(p->rows, ROWS), cols = vectors(p->cols);
  return TOKENS * (rows + cols) + rows * cols;
}

// One block of out, of at most p->rows rows and p->cols columns.
extern "C" void NAME(weight_gradient)(const Projection *p, long task, float *scratch) {
  const long across = (p->outputs + p->cols - 1) / p->cols;
  const long m = task / across * p->rows, n = task % across * p->cols;
  const long rows = least(p->rows, p->inputs - m), cols = least(p->cols, p->outputs - n);
  const long all_rows = padded(rows, ROWS), out_row = vectors(cols);
  const long in_pairs = out_row / COLS * COLS;  // columns in tiles two vectors wide; one may be left
  float *x = scratch, *y = x + TOKENS * all_rows, *out = y + TOKENS * out_row;
  memset(out, 0, all_rows * out_row * sizeof(float));
  for (long t = 0; t < p->tokens; t += TOKENS) {
    const long count = least(TOKENS, p->tokens - t);
    const float *y_here = p->y + t * p->outputs + n;
    pack(p->x + t * p->inputs + m, p->inputs, count, rows, ROWS, x);
    pack(y_here, p->outputs, count, least(cols, in_pairs), COLS, y);
    pack(y_here + in_pairs, p->outputs, count, cols - in_pairs, LANES, y + in_pairs * count);
    for (long j = 0; j < out_row; j += COLS)
      for (long i = 0; i < rows; i += ROWS)
        add_tile(j < in_pairs, count, x + i * count, y + j * count, out + i * out_row + j, out_row);
  }
  for (long i = 0; i < rows; i++)
    memcpy(p->out + (m + i) * p->outputs + n, out + i * out_row, cols * sizeof(float));
}
