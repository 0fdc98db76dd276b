// Vectors of one instruction set, and products of small matrices in registers.
//
// The files that include this one are compiled once for each instruction set, with LANES floats in
// a vector, ROWS rows in a tile of registers, and NAME(x) a name of its own. They include no template
// of the C++ library: the linker could take a copy that was compiled for a newer processor.

#pragma once

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { COLS = 2 * LANES };  // columns of a tile

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * LANES)));

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec x) { *(vec *)p = x; }
INLINE vec filled(float x) { return x - (vec){}; }
INLINE vec larger(vec a, vec b) { return a > b ? a : b; }
INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long most(long a, long b) { return a > b ? a : b; }
INLINE long padded(long count, long unit) { return (count + unit - 1) / unit * unit; }
INLINE long vectors(long width) { return padded(width, LANES); }

INLINE float sum_of(vec x) {
  float lanes[LANES];
  memcpy(lanes, &x, sizeof x);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
  return lanes[0];
}

// Σ a·b over two rows of `width` numbers.
INLINE float product_of(const float *a, const float *b, long width) {
  vec sums = {};
  const long whole = width / LANES * LANES;
  for (long i = 0; i < whole; i += LANES) sums += load(a + i) * load(b + i);
  float sum = sum_of(sums);
  for (long i = whole; i < width; i++) sum += a[i] * b[i];
  return sum;
}

// c[m][n] = Σ_d a[m][d]·b[d][n] for m < rows and n < cols·LANES; `add` adds to c. An element of `a`
// is at a[m·a_row + d·a_col], so a transposed matrix needs no copy. The sums stay in registers; they
// begin at zero, because sums of parts are more exact than one over many numbers.
INLINE void tile(const int rows, const int cols, const int add, long depth, const float *a,
                 long a_row, long a_col, const float *b, long b_row, float *c, long c_row) {
  vec sums[8][2];
#pragma GCC unroll 8
  for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
    for (int n = 0; n < cols; n++) sums[m][n] = (vec){};
  for (long d = 0; d < depth; d++) {
    vec right[2];
#pragma GCC unroll 2
    for (int n = 0; n < cols; n++) right[n] = load(b + d * b_row + n * LANES);
#pragma GCC unroll 8
    for (int m = 0; m < rows; m++) {
      const vec left = filled(a[m * a_row + d * a_col]);
#pragma GCC unroll 2
      for (int n = 0; n < cols; n++) sums[m][n] += left * right[n];
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
INLINE void product(const int add, long rows, long cols, long depth, const float *a, long a_row,
                    long a_col, const float *b, long b_row, float *c, long c_row) {
  const long even = rows - rows % ROWS;
  for (long n = 0; n < cols; n += 2 * LANES) {
    const int two = n + LANES < cols;
    for (long m = 0; m < even; m += ROWS) {
      const float *left = a + m * a_row;
      float *out = c + m * c_row + n;
      if (two) tile(ROWS, 2, add, depth, left, a_row, a_col, b + n, b_row, out, c_row);
      else tile(ROWS, 1, add, depth, left, a_row, a_col, b + n, b_row, out, c_row);
    }
    for (long m = even; m < rows; m++) {
      const float *left = a + m * a_row;
      float *out = c + m * c_row + n;
      if (two) tile(1, 2, add, depth, left, a_row, a_col, b + n, b_row, out, c_row);
      else tile(1, 1, add, depth, left, a_row, a_col, b + n, b_row, out, c_row);
    }
  }
}

static void multiply(long rows, long cols, long depth, const float *a, long a_row, long a_col,
                     const float *b, long b_row, float *c, long c_row) {
  product(0, rows, cols, depth, a, a_row, a_col, b, b_row, c, c_row);
}

static void multiply_add(long rows, long cols, long depth, const float *a, long a_row, long a_col,
                         const float *b, long b_row, float *c, long c_row) {
  product(1, rows, cols, depth, a, a_row, a_col, b, b_row, c, c_row);
}

// Copies rows of `width` numbers into `count` rows of `row` numbers; the rest is zeros.
static void copy(const float *x, long x_row, long rows, long width, float *out, long row,
                 long count) {
  const long whole = width / LANES * LANES;
  for (long i = 0; i < rows; i++) {
    const float *from = x + i * x_row;
    float *to = out + i * row;
    for (long h = 0; h < whole; h += LANES) store(to + h, load(from + h));
    for (long h = whole; h < width; h++) to[h] = from[h];
    for (long h = width; h < row; h++) to[h] = 0;
  }
  memset(out + rows * row, 0, (count - rows) * row * sizeof(float));
}

// Copies the first `count` numbers of some rows into panels, [panels, rows, width], padded with
// zeros. A tile reads few numbers of many rows, and in their own places these would evict each
// other from the cache: their distance is often a power of two.
INLINE void pack(const float *x, long x_row, long rows, long count, const long width,
                 float *out) {
  const long some = 16;  // so few that their rows of x stay in the first cache
  for (long begin = 0; begin < rows; begin += some)
    for (long i = 0; i < count; i += width) {
      const long end = least(rows, begin + some), own = least(width, count - i);
      float *to = out + i * rows + begin * width;
      for (long r = begin; r < end; r++, to += width) {
        const float *from = x + r * x_row + i;
        if (own == width) memcpy(to, from, width * sizeof(float));
        else for (long j = 0; j < width; j++) to[j] = j < own ? from[j] : 0;
      }
    }
}
