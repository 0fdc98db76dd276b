// Products with panels: copies of a matrix, COLS columns of it at a time, which tiles read in order.

#pragma once

#include "matrix.h"

// Inputs that are summed up at a time: one sum over thousands of them would be less exact.
enum { INPUTS = 256 };

// Copies the first `count` numbers of some rows into panels of factors down the columns,
// [panels, factors_in(rows), width], padded with zeros. A tile reads few numbers of many rows, and in
// their own places these would evict each other from the cache: their distance is often a power of two.
template <typename Number>
INLINE void pack(const Number *x, long x_row, long rows, long count, const long width,
                 factor *out) {
  const long some = 16;  // so few that their rows of x stay in the first cache
  const long panel = factors_in(rows) * width;
  const long together = most(width, LANES / width * width);  // the panels that a vector fills
  for (long begin = 0; begin < rows; begin += some)
    for (long i = 0; i < count; i += together) {
      const long end = least(rows, begin + some);
      factor *to = out + i / width * panel + begin / TOGETHER * width;
      for (long r = begin + some; r < least(rows, end + some); r++)  // those that come next
        for (long n = 0; n < together; n += LANES) __builtin_prefetch(x + r * x_row + i + n);
      for (long r = begin; r < end; r += TOGETHER, to += width) {
        const Number *from = x + r * x_row + i;
        if (width >= LANES) {
          across_rows(from, x_row, rows - r, count - i, width, to);
          continue;
        }
        const factors found = load_down(from, x_row, rows - r, count - i);
        for (long n = 0; n < least(together, count - i); n += width)
          memcpy(to + n / width * panel, (const factor *)&found + n, width * sizeof(factor));
      }
    }
}

// Copies the first `count` rows of w, [count, inputs], into panels like `pack`, transposed.
INLINE void pack_transposed(const float *w, long inputs, long count, factor *out) {
  for (long j = 0; j < count; j += COLS, out += factors_in(inputs) * COLS)
    transpose(w + j * inputs, inputs, least(COLS, count - j), inputs, out, COLS);
}

// A tile of whole panels, or one row of it. Functions of their own: inlined into loops, GCC 12 leaves
// the innermost loop of a tile a quarter slower.
static __attribute__((noinline)) void whole_tile(int add, long depth, const factor *x, long x_row,
                                                 const factor *panel, float *y, long y_row) {
  if (add) tile(ROWS, 2, 1, depth, x, x_row, 1, panel, COLS, y, y_row);
  else tile(ROWS, 2, 0, depth, x, x_row, 1, panel, COLS, y, y_row);
}

static __attribute__((noinline)) void one_row(int add, long depth, const factor *x,
                                              const factor *panel, float *y) {
  if (add) tile(1, 2, 1, depth, x, 0, 1, panel, COLS, y, 0);
  else tile(1, 2, 0, depth, x, 0, 1, panel, COLS, y, 0);
}

// y = x·w for at most ROWS rows of x, of `all` factors each, and one panel of w; `add` adds to y. All
// COLS columns of y are written.
INLINE void multiply_panel(int add, long rows, long all, const factor *x, const factor *panel,
                           float *y, long y_row) {
  for (long d = 0; d < all; d += INPUTS / TOGETHER) {
    const long depth = least(INPUTS / TOGETHER, all - d);
    const int more = add || d > 0;
    if (rows == ROWS) whole_tile(more, depth, x + d, all, panel + d * COLS, y, y_row);
    else
      for (long r = 0; r < rows; r++)
        one_row(more, depth, x + r * all + d, panel + d * COLS, y + r * y_row);
  }
}
