// What tiles multiply: numbers, or with ROUNDED pairs of numbers.
//
// A pair's numbers are rounded to bfloat16. The products of two pairs are added to a sum together,
// which one instruction of some processors does for a whole vector.

#pragma once

#include "kernels.h"
#include "vectors.h"

#ifdef ROUNDED

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

typedef unsigned factor __attribute__((may_alias));  // the first number in the lower half
typedef unsigned factors __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
enum { TOGETHER = 2 };  // numbers in a factor

INLINE factors load_factors(const factor *p) { return *(const factors *)p; }
INLINE void store_factors(factor *p, factors x) { *(factors *)p = x; }
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

typedef unsigned short half;  // a number of bfloat16
typedef half halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

// The nearest numbers of bfloat16, ties to even.
INLINE halves rounded(vec x) {
#ifdef __AVX512BF16__
  return (halves)_mm512_cvtneps_pbh((__m512)x);
#else
  const factors bits = (factors)x, nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  // rounding a NaN's bits could give infinity
  return __builtin_convertvector(x == x ? nearest : bits >> 16 | 0x40, halves);
#endif
}

INLINE factors pairs_of(halves first, halves second) {
  return __builtin_convertvector(first, factors) | __builtin_convertvector(second, factors) << 16;
}

INLINE factors pairs_of(vec first, vec second) {
#ifdef __AVX512BF16__
  // all of `first`, then all of `second`; then interleaved
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
  typedef short indices __attribute__((vector_size(4 * LANES)));
  indices interleaved;
  for (int i = 0; i < 2 * LANES; i++) interleaved[i] = i / 2 + i % 2 * LANES;
  return (factors)_mm512_permutexvar_epi16((__m512i)interleaved, both);
#else
  return pairs_of(rounded(first), rounded(second));
#endif
}

// The numbers of TOGETHER rows, as factors down the columns.
INLINE factors down(const vec *rows) { return pairs_of(rows[0], rows[1]); }

INLINE vec numbers_of(halves x) { return (vec)(__builtin_convertvector(x, factors) << 16); }

// Stores the numbers from column `at` of a row on, as factors along the row.
INLINE void store_along(factor *row, long at, vec x) { *(halves *)(row + at / 2) = rounded(x); }

// Stores two vectors of them and adds all numbers, as they are stored, to the sums.
INLINE vec store_and_add(vec sums, factor *row, long at, const vec *x) {
#ifdef __AVX512BF16__
  const factors stored = (factors)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]);
#else
  const halves both[2] = {rounded(x[0]), rounded(x[1])};
  factors stored;
  memcpy(&stored, both, sizeof stored);
#endif
  store_factors(row + at / 2, stored);
  return with_products(sums, stored, all_of(0x3f803f80));  // two times 1
}

#else

typedef float factor;
typedef vec factors;
enum { TOGETHER = 1 };

INLINE factors load_factors(const factor *p) { return load(p); }
INLINE void store_factors(factor *p, factors x) { store(p, x); }
INLINE factors all_of(factor x) { return filled(x); }
INLINE vec with_products(vec sums, factors left, factors right) { return sums + left * right; }
INLINE factors down(const vec *rows) { return rows[0]; }
INLINE void store_along(factor *row, long at, vec x) { store(row + at, x); }
INLINE vec store_and_add(vec sums, factor *row, long at, const vec *x) {
  store(row + at, x[0]);
  store(row + at + LANES, x[1]);
  return sums + x[0] + x[1];
}

#endif

// How many factors `count` numbers are. The last may be half of a pair, whose other half is 0.
INLINE long factors_in(long count) { return (count + TOGETHER - 1) / TOGETHER; }

// The first of `count` numbers, and zeros where there are too few for a vector.
INLINE vec load_some(const float *p, long count) {
  if (count >= LANES) return load(p);
  vec some = {};
  if (count > 0) memcpy(&some, p, count * sizeof *p);
  return some;
}

#ifdef ROUNDED
INLINE halves load_some(const half *p, long count) {
  if (count >= LANES) return *(const halves *)p;
  halves some = {};
  if (count > 0) memcpy(&some, p, count * sizeof *p);
  return some;
}
#endif

// Σ x·y over `width` numbers, with y a row of factors along the row.
INLINE float product_along(const float *x, const factor *y, long width) {
  vec sums = {};
  for (long i = 0; i < width; i += LANES) {
#ifdef ROUNDED
    const vec right = numbers_of(load_some((const half *)y + i, width - i));
#else
    const vec right = load_some(y + i, width - i);
#endif
    sums += load_some(x + i, width - i) * right;
  }
  return sum_of(sums);
}

// Rows of `width` numbers as factors along the row: where they are, or in `copy`.
INLINE const factor *as_factors(const float *x, long x_row, long rows, long width, factor *copy) {
#ifdef ROUNDED
  for (long r = 0; r < rows; r++) {
    const float *from = x + r * x_row;
    factor *to = copy + r * factors_in(width);
    const long whole = width / LANES * LANES;
    for (long i = 0; i < whole; i += LANES) store_along(to, i, load(from + i));
    if (whole == width) continue;
    const halves rest = rounded(load_some(from + whole, width - whole));
    memcpy(to + whole / 2, &rest, factors_in(width - whole) * sizeof(factor));
  }
  return copy;
#else
  (void)x_row, (void)rows, (void)width, (void)copy;
  return x;
#endif
}

// The distance between the rows that `as_factors` returns.
INLINE long factor_row(long x_row, long width) { return TOGETHER > 1 ? factors_in(width) : x_row; }

// How many factors `as_factors` needs for its copy.
INLINE long factors_copied(long rows, long width) {
  return TOGETHER > 1 ? rows * factors_in(width) : 0;
}

// Like `as_factors`, for rows that lie one after the other and may be factors already.
INLINE const factor *factors_of(Numbers x, long begin, long rows, long width, factor *copy) {
  if (x.are_bfloat16) return (const factor *)x.at + begin * factors_in(width);
  return as_factors((const float *)x.at + begin * width, width, rows, width, copy);
}

// A vector of factors down the columns of x, which has `rows` rows left. From `count` columns on, they
// are zeros.
INLINE factors load_down(const float *x, long x_row, long rows, long count) {
#ifdef ROUNDED
  return pairs_of(load_some(x, count), rows > 1 ? load_some(x + x_row, count) : (vec){});
#else
  (void)x_row, (void)rows;
  return load_some(x, count);
#endif
}

#ifdef ROUNDED
INLINE factors load_down(const half *x, long x_row, long rows, long count) {
  return pairs_of(load_some(x, count), rows > 1 ? load_some(x + x_row, count) : (halves){});
}
#endif

// `width` such factors, a multiple of LANES.
template <typename Number>
INLINE void across_rows(const Number *x, long x_row, long rows, long count, const long width,
                        factor *out) {
  for (long j = 0; j < width; j += LANES)
    store_factors(out + j, load_down(x + j, x_row, rows, count - j));
}
