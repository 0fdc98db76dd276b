// What tiles multiply: numbers, or with ROUNDED pairs of numbers.
//
// A pair's numbers are rounded to bfloat16. The products of two pairs are added to a sum together,
// which one instruction of some processors does for a whole vector.

#pragma once

#include "vectors.h"

#ifdef ROUNDED

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

typedef unsigned factor __attribute__((may_alias));  // the first number in the lower half
typedef unsigned factors __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
enum { TOGETHER = 2 };  // numbers in a factor

INLINE factors load_factors(const factor *p) { return *(const factors *)p; }
INLINE factors all_of(factor x) { return x + (factors){}; }

// sums + Σ left·right over the numbers of each pair
INLINE vec with_products(vec sums, factors left, factors right) {
#ifdef __AVX512BF16__
  return (vec)_mm512_dpbf16_ps((__m512)sums, (__m512bh)left, (__m512bh)right);
#else
  sums += (vec)(left << 16) * (vec)(right << 16);
  return sums + (vec)(left & 0xffff0000u) * (vec)(right & 0xffff0000u);
#endif
}

// The nearest number of bfloat16, ties to even; loops of this become vectors.
INLINE unsigned rounded(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof bits);
  const unsigned nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return x == x ? nearest : bits >> 16 | 0x40;  // of NaN, rounding could make infinity
}

INLINE factor pair_of(float first, float second) { return rounded(first) | rounded(second) << 16; }

#else

typedef float factor;
typedef vec factors;
enum { TOGETHER = 1 };

INLINE factors load_factors(const factor *p) { return load(p); }
INLINE factors all_of(factor x) { return filled(x); }
INLINE vec with_products(vec sums, factors left, factors right) { return sums + left * right; }

#endif

// How many factors `count` numbers are. The last may be half of a pair, whose other half is 0.
INLINE long factors_in(long count) { return (count + TOGETHER - 1) / TOGETHER; }

// Factor i of a row of `count` numbers.
INLINE factor factor_at(const float *row, long i, long count) {
#ifdef ROUNDED
  return pair_of(row[2 * i], 2 * i + 1 < count ? row[2 * i + 1] : 0);
#else
  (void)count;
  return row[i];
#endif
}

// Rows of `width` numbers as factors along the row: where they are, or in `copy`.
INLINE const factor *as_factors(const float *x, long rows, long width, factor *copy) {
#ifdef ROUNDED
  const long each = factors_in(width);
  for (long r = 0; r < rows; r++) {
    const float *from = x + r * width;
    factor *to = copy + r * each;
    for (long i = 0; i < width / 2; i++) to[i] = pair_of(from[2 * i], from[2 * i + 1]);
    if (width % 2) to[width / 2] = factor_at(from, width / 2, width);
  }
  return copy;
#else
  (void)rows, (void)width, (void)copy;
  return x;
#endif
}

// How many factors `as_factors` needs for its copy.
INLINE long factors_copied(long rows, long width) {
  return TOGETHER > 1 ? rows * factors_in(width) : 0;
}

// Factors down the columns of the first rows of x, of which there are `rows` left: one row, or two.
INLINE void across_rows(const float *x, long x_row, long rows, long count, factor *out) {
#ifdef ROUNDED
  if (rows > 1)
    for (long j = 0; j < count; j++) out[j] = pair_of(x[j], x[x_row + j]);
  else
    for (long j = 0; j < count; j++) out[j] = pair_of(x[j], 0);
#else
  (void)x_row, (void)rows;
  memcpy(out, x, count * sizeof(float));
#endif
}
