// Vectors of one instruction set.
//
// The files that include this one are compiled once for each instruction set, with LANES floats in
// a vector, ROWS rows in a tile of registers, and NAME(x) a name of its own. They include no template
// of the C++ library, and their own are static: the linker could take a copy that was compiled for a
// newer processor.

#pragma once

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

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

template <int WIDTH>
struct Part {
  typedef float vec __attribute__((vector_size(4 * WIDTH)));
};

// Joins all lanes into one number: the upper half with the lower half, and so on. As a loop over an
// array, GCC would do it in memory.
template <int WIDTH, typename Join>
INLINE float joined(typename Part<WIDTH>::vec x, Join join) {
  if constexpr (WIDTH == 2) {
    return join(x[0], x[1]);
  } else {
    typename Part<WIDTH / 2>::vec low, high;
    memcpy(&low, &x, sizeof low);
    memcpy(&high, (const char *)&x + sizeof low, sizeof high);
    return joined<WIDTH / 2>(join(low, high), join);
  }
}

INLINE float sum_of(vec x) {
  return joined<LANES>(x, [](auto a, auto b) { return a + b; });
}

// Lane j of the result is lane index[j] of a and b, one after the other.
INLINE vec picked(vec a, vec b, ivec index) {
#ifdef __clang__
  vec found;
#pragma GCC unroll 16
  for (int j = 0; j < LANES; j++) found[j] = index[j] < LANES ? a[index[j]] : b[index[j] - LANES];
  return found;
#else
  return __builtin_shuffle(a, b, index);
#endif
}

// Swaps, in all blocks of 2·STEP rows and columns, the upper right quarter and the lower left one.
template <int STEP>
INLINE void swap_quarters(vec *rows) {
  ivec upper, lower;
#pragma GCC unroll 16
  for (int j = 0; j < LANES; j++) {
    upper[j] = j & STEP ? LANES + j - STEP : j;
    lower[j] = j & STEP ? LANES + j : j + STEP;
  }
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) {
    if (i & STEP) continue;
    const vec a = rows[i], b = rows[i + STEP];
    rows[i] = picked(a, b, upper);
    rows[i + STEP] = picked(a, b, lower);
  }
}

// Transposes LANES rows.
INLINE void transpose_block(vec *rows) {
  swap_quarters<1>(rows);
  swap_quarters<2>(rows);
  if constexpr (LANES > 4) swap_quarters<4>(rows);
  if constexpr (LANES > 8) swap_quarters<8>(rows);
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

// 2^f·2^n for |f| <= 1/2 and a rounded n, given as n + ROUNDING. The polynomial of degree 6 through
// Chebyshev's points is off by 2.5e-9 of itself at most; float32 rounds to 6e-8.
static const float ROUNDING = 12582912.f;  // 1.5·2^23: adding it rounds to an integer
INLINE vec power_of_two(vec f, vec shifted) {
  vec p = filled(0.000154614447f);
  p = p * f + 0.00134004282f;
  p = p * f + 0.00961805668f;
  p = p * f + 0.0555032723f;
  p = p * f + 0.240226509f;
  p = p * f + 0.693147207f;
  p = p * f + 1.f;
  return p * (vec)(((ivec)shifted - (ivec)filled(ROUNDING) + 127) << 23);
}

// 2^x for x up to 127; 0 below 2^-126.
INLINE vec exp2_of(vec x) {
  x = x < -127.f ? filled(-127.f) : x;  // false for NaN, which stays
  const vec shifted = x + ROUNDING;
  return power_of_two(x - (shifted - ROUNDING), shifted);
}

// 1 / (1 + e^-x); 0 below -87, where it is less than 2^-125.
INLINE vec logistic(vec x) {
  const vec inside = x < -87.f ? filled(-87.f) : x > 87.f ? filled(87.f) : x;
  const vec shifted = ROUNDING - inside * 1.44269504f, n = shifted - ROUNDING;
  // −x − n·ln 2, with ln 2 in two parts: n times the first is exact
  const vec rest = -inside - n * 0.693359375f + n * 2.12194440e-4f;
  const vec found = 1.f / (1.f + power_of_two(rest * 1.44269504f, shifted));
  return x < -87.f ? filled(0.f) : found;
}
