// Products of small matrices, whose sums are in registers.

#pragma once

#include "factors.h"

enum { COLS = 2 * LANES };  // columns of a tile

// c[m][n] = Σ_d a[m][d]·b[d][n] for m < rows and n < cols·LANES; `add` adds to c. A factor of `a`
// is at a[m·a_row + d·a_col], so a transposed matrix needs no copy. The sums stay in registers; they
// begin at zero, because sums of parts are more exact than one over many numbers.
INLINE void tile(const int rows, const int cols, const int add, long depth, const factor *a,
                 long a_row, long a_col, const factor *b, long b_row, float *c, long c_row) {
  vec sums[8][2];
#pragma GCC unroll 8
  for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
    for (int n = 0; n < cols; n++) sums[m][n] = (vec){};
  for (long d = 0; d < depth; d++) {
    factors right[2];
#pragma GCC unroll 2
    for (int n = 0; n < cols; n++) right[n] = load_factors(b + d * b_row + n * LANES);
#pragma GCC unroll 8
    for (int m = 0; m < rows; m++) {
      const factors left = all_of(a[m * a_row + d * a_col]);
#pragma GCC unroll 2
      for (int n = 0; n < cols; n++) sums[m][n] = with_products(sums[m][n], left, right[n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
    for (int n = 0; n < cols; n++) {
      float *to = c + m * c_row + n * LANES;
      store(to, add ? load(to) + sums[m][n] : sums[m][n]);
    }
}

// The same for any number of rows; cols: a multiple of LANES.
INLINE void product(const int add, long rows, long cols, long depth, const factor *a, long a_row,
                    long a_col, const factor *b, long b_row, float *c, long c_row) {
  const long even = rows - rows % ROWS;
  for (long n = 0; n < cols; n += 2 * LANES) {
    const int two = n + LANES < cols;
    for (long m = 0; m < even; m += ROWS) {
      const factor *left = a + m * a_row;
      float *out = c + m * c_row + n;
      if (two) tile(ROWS, 2, add, depth, left, a_row, a_col, b + n, b_row, out, c_row);
      else tile(ROWS, 1, add, depth, left, a_row, a_col, b + n, b_row, out, c_row);
    }
    for (long m = even; m < rows; m++) {
      const factor *left = a + m * a_row;
      float *out = c + m * c_row + n;
      if (two) tile(1, 2, add, depth, left, a_row, a_col, b + n, b_row, out, c_row);
      else tile(1, 1, add, depth, left, a_row, a_col, b + n, b_row, out, c_row);
    }
  }
}

static void multiply(long rows, long cols, long depth, const factor *a, long a_row, long a_col,
                     const factor *b, long b_row, float *c, long c_row) {
  product(0, rows, cols, depth, a, a_row, a_col, b, b_row, c, c_row);
}

static void multiply_add(long rows, long cols, long depth, const factor *a, long a_row, long a_col,
                         const factor *b, long b_row, float *c, long c_row) {
  product(1, rows, cols, depth, a, a_row, a_col, b, b_row, c, c_row);
}

// Copies rows of `width` numbers as factors down the columns, [factors_in(count), row]; the rest is
// zeros. row: a multiple of LANES.
static void copy_down(const float *x, long x_row, long rows, long width, factor *out, long row,
                      long count) {
  for (long i = 0; i < rows; i += TOGETHER, out += row)
    across_rows(x + i * x_row, x_row, rows - i, width, row, out);
  memset(out, 0, (factors_in(count) - factors_in(rows)) * row * sizeof(factor));
}

// Copies rows of `width` numbers as factors along the row, transposed: into the first columns of
// [factors_in(width), out_row]. The rest is zeros. out_row: a multiple of LANES.
INLINE void transpose(const float *x, long x_row, long rows, long width, factor *out,
                      const long out_row) {
  enum { SOME = 64 };
  factor copied[LANES * SOME / TOGETHER];
  for (long i = 0; i < out_row; i += LANES)
    for (long begin = 0; begin < width; begin += SOME) {
      const long own = least(SOME, width - begin), depth = factors_in(own);
      const long here = most(0, least(LANES, rows - i)), row = factor_row(x_row, own);
      const factor *from = as_factors(x + i * x_row + begin, x_row, here, own, copied);
      float *to = (float *)(out + begin / TOGETHER * out_row + i);  // factors are as long as floats
      for (long d = 0; d < depth; d += LANES) {
        vec block[LANES];
        for (int r = 0; r < LANES; r++)
          block[r] = r < here ? load_some((const float *)from + r * row + d, depth - d) : (vec){};
        transpose_block(block);
        for (long c = 0; c < least(LANES, depth - d); c++) store(to + (d + c) * out_row, block[c]);
      }
    }
}
