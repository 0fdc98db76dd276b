// Attention of a span of queries, forward, and of a chunk of keys, backward, on one core.
//
// After FlashAttention-2, arXiv 2307.08691: tiles of logits with an online softmax, and a backward
// pass that computes them again. Logits are in units of ln 2, so that exp is 2^x.

#include <float.h>
#include <math.h>
#include <sched.h>

#include "kernels.h"
#include "matrix.h"

// Queries and keys in a tile of logits: with heads of 32, all that it needs fits into 48 KiB.
enum { Q = 64, K = 64 };
static_assert(AHEAD >= Q + K - 2);

static const float HIDDEN = -FLT_MAX;  // the logit of a hidden key
static const float LOWEST = -1e30f;    // every running maximum begins here, above HIDDEN

// Logits between -SMALL and SMALL need no maximum: relative to USUAL, 2^logit is between 2^-96 and 2^64.
// Its sums with values do not overflow if these are below 2^40, nor vanish if they are above 2^-30.
// Rounded queries and keys may be larger by 2^-8 of themselves, which leaves all this as it is.
static const float SMALL = 80, USUAL = 16;

INLINE float largest_of(vec x) {
  return joined<LANES>(x, [](auto a, auto b) { return a > b ? a : b; });
}

// The keys that some queries see: from `first` to `last` any of them does, and from `first_of_all`
// to `last_of_all` every one.
typedef struct {
  long first, last, first_of_all, last_of_all;
} Seen;

static Seen seen_by(const int *first, const int *last, long begin, long end) {
  Seen seen = {first[begin], last[begin], first[begin], last[begin]};
  for (long t = begin + 1; t < end; t++) {
    seen.first = least(seen.first, first[t]);
    seen.last = most(seen.last, last[t]);
    seen.first_of_all = most(seen.first_of_all, first[t]);
    seen.last_of_all = least(seen.last_of_all, last[t]);
  }
  return seen;
}

INLINE int overlaps(Seen seen, long begin) {
  return seen.first < begin + K && seen.last >= begin;
}

// Hides the keys of a tile, which begin at `begin`, from the queries that do not see them.
static void hide(float *logits, long rows, const int *first, const int *last, long begin,
                 Seen seen) {
  if (seen.first_of_all <= begin && seen.last_of_all >= begin + K - 1) return;
  ivec lane;
  for (int i = 0; i < LANES; i++) lane[i] = i;
  for (long r = 0; r < rows; r++) {
    const int low = first[r] - (int)begin, high = last[r] - (int)begin;
    for (int s = 0; s < K; s += LANES) {
      float *p = logits + r * K + s;
      store(p, ((lane + s >= low) & (lane + s <= high)) ? load(p) : filled(HIDDEN));
    }
  }
}

// Where the biases of a head's queries begin, of which that of query t and key j is at j - t, if it has any.
static const float *biases_of(const Attention *a, long b, long n) {
  if (a->biases == 0) return nullptr;
  return a->bias + ((b % a->biases) * a->heads + n) * (a->keys + AHEAD) + a->queries - 1;
}

// A head's function of distances, which is linear between knots.
typedef struct {
  long bends;
  const float *knots, *lines;
} Curve;

static Curve curve_of(const Attention *a, long n) {
  return {a->bends, a->knots, a->lines + n * (a->bends + 1) * 2};
}

// How many knots are at or below all, and any, of the x of a row's keys.
typedef struct {
  long first, last;
} Segments;

// `near`: where to begin to look. d falls from key to key.
INLINE Segments segments_of(Curve curve, const float *d, float stretch, Segments near) {
  const float lowest = d[K - 1] * stretch, highest = d[0] * stretch;
  long first = near.first;
  while (first > 0 && curve.knots[first - 1] > lowest) first--;
  while (first < curve.bends && curve.knots[first] <= lowest) first++;
  long last = first;
  while (last < curve.bends && curve.knots[last] <= highest) last++;
  return {first, last};
}

// Scales the logits of a tile and adds the function of what begins at `d` for its first row.
static void add_curve(float *logits, long rows, float scale, const float *d, Curve curve,
                      const float *stretch) {
  Segments own = {};
  for (long r = 0; r < rows; r++, logits += K, d--) {
    own = segments_of(curve, d, stretch[r], own);
    for (int s = 0; s < K; s += LANES) {
      const vec x = load(d + s) * stretch[r];
      vec y = x * curve.lines[2 * own.first + 1] + curve.lines[2 * own.first];
      for (long m = own.first; m < own.last; m++)
        y = x >= curve.knots[m] ? x * curve.lines[2 * m + 3] + curve.lines[2 * m + 2] : y;
      store(logits + s, load(logits + s) * scale + y);
    }
  }
}

// Adds derivatives by some logits to those by the lines, [bends + 1, 2, LANES], and returns those by x.
INLINE vec bend_back(Curve curve, Segments own, vec x, vec dlogits, float *dlines) {
  vec dx = {};
  for (long m = own.first; m <= own.last; m++) {
    vec here = dlogits;
    if (m > own.first) here = x >= curve.knots[m - 1] ? here : filled(0);
    if (m < own.last) here = x >= curve.knots[m] ? filled(0) : here;
    float *to = dlines + m * 2 * LANES;
    store(to, load(to) + here);
    store(to + LANES, load(to + LANES) + here * x);
    dx = dx + here * curve.lines[2 * m + 1];
  }
  return dx;
}

// Scales the logits of a tile and adds the biases, where those of its first row begin.
static void add_biases(float *logits, long rows, float scale, const float *bias) {
  for (long r = 0; r < rows; r++, logits += K, bias--)
    for (int s = 0; s < K; s += LANES)
      store(logits + s, load(logits + s) * scale + load(bias + s));
}

// Raises a query's running maximum to its largest logit in a tile, and rescales its sums.
INLINE void raise(const float *logits, float scale, float *row_max, float *row_sum, float *divisor,
                  float *sums, long width) {
  vec largest = load(logits);
  for (int s = LANES; s < K; s += LANES) largest = larger(largest, load(logits + s));
  const float now = largest_of(largest) * scale;
  if (!(now > *row_max)) return;
  const float rescale = exp2f(*row_max - now);
  *row_max = now;
  *row_sum *= rescale, *divisor *= rescale;
  for (long h = 0; h < width; h += LANES) store(sums + h, load(sums + h) * rescale);
}

// The largest |x|² of some rows; NaN if one is.
static float largest_square(const float *x, long x_row, long rows, long width) {
  float largest = 0;
  for (long i = 0; i < rows; i++) {
    const float square = product_of(x + i * x_row, x + i * x_row, width);
    if (square > largest || square != square) largest = square;
  }
  return largest;
}

// With so few queries, as where a text is continued, to copy keys and values takes longer than all else.
enum { FEW = 8 };

// The logits of few queries and a tile of keys, before scaling. Those of keys that are not there are 0.
static void multiply_rows(long rows, const float *q, long q_row, const float *k, long k_row,
                          long keys, long width, float *logits) {
  memset(logits, 0, rows * K * sizeof(float));
  for (long s = 0; s < keys; s++)
    for (long r = 0; r < rows; r++)
      logits[r * K + s] = product_of(q + r * q_row, k + s * k_row, width);
}

// out += weights · values, for few queries.
static void add_rows(long rows, const float *weights, const float *v, long v_row, long keys,
                     long width, float *out, long out_row) {
  for (long r = 0; r < rows; r++, weights += K, out += out_row)
    for (long s = 0; s < keys; s++) {
      const float *value = v + s * v_row;
      long h = 0;
      for (; h + LANES <= width; h += LANES)
        store(out + h, load(out + h) + load(value + h) * weights[s]);
      for (; h < width; h++) out[h] += weights[s] * value[h];
    }
}

// How many floats `forward` needs for itself.
extern "C" long NAME(forward_scratch)(const Attention *a) {
  const long v_row = vectors(a->value_width), tiles = factors_in(a->width) * K + K / TOGETHER * v_row;
  return Q * K + tiles + a->span * (v_row + 3) + factors_copied(a->span, a->width);
}

// One span of queries of one head: out and lse.
extern "C" void NAME(forward)(const Attention *a, long task, float *scratch) {
  const long spans = (a->queries + a->span - 1) / a->span, each = a->batch * a->heads;
  const long begin = (spans - 1 - task / each) * a->span;  // the last spans see the most keys
  const long count = least(a->span, a->queries - begin);
  const long b = task % each / a->heads, n = task % a->heads, kv = n / (a->heads / a->kv_heads);
  const long q_row = a->heads * a->width, k_row = a->kv_heads * a->width;
  const long value_row = a->kv_heads * a->value_width, v_row = vectors(a->value_width);
  const long row = b * a->queries + begin, key_row = b * a->keys * a->kv_heads + kv;
  const float *q = a->q + row * q_row + n * a->width;
  const float *k = a->k + key_row * a->width, *v = a->v + key_row * a->value_width;
  const int *first = a->first + row, *last = a->last + row;
  const float *bias = biases_of(a, b, n);
  const Curve curve = curve_of(a, n);
  const float to_base_2 = a->scale * (float)M_LOG2E, scale = bias == nullptr ? to_base_2 : 1;
  const long depth = factors_in(a->width), factors_row = factor_row(q_row, a->width);
  float *logits = scratch, *sums = logits + Q * K, *row_max = sums + a->span * v_row;
  // The weights that values are multiplied with may be rounded. `divisor` is their sum, so that they add
  // up to 1; `row_sum` is that of the weights before, for lse.
  float *row_sum = row_max + a->span, *divisor = row_sum + a->span;
  factor *k_tile = (factor *)(divisor + a->span), *v_tile = k_tile + depth * K;
  factor *weights = (factor *)logits, *copied = v_tile + K / TOGETHER * v_row;
  const factor *q_factors = as_factors(q, q_row, count, a->width, copied);

  Seen seen[MOST_SPAN / Q];
  for (long i = 0; i < count; i += Q) seen[i / Q] = seen_by(first, last, i, least(i + Q, count));
  const Seen whole = seen_by(first, last, 0, count);
  const long visible = most(0, whole.last + 1 - whole.first);
  const int few = TOGETHER == 1 && a->queries <= FEW;
  const int small = !few && bias == nullptr &&  // |q·k| <= |q||k|
                    largest_square(q, q_row, count, a->width) *
                            largest_square(k + whole.first * k_row, k_row, visible, a->width) *
                            scale * scale <= SMALL * SMALL;
  for (long r = 0; r < count; r++) row_max[r] = small ? USUAL : LOWEST, row_sum[r] = divisor[r] = 0;
  memset(sums, 0, count * v_row * sizeof(float));

  for (long j = whole.first / K * K; j <= whole.last; j += K) {
    const long keys = least(K, a->keys - j);
    if (!few) {
      transpose(k + j * k_row, k_row, keys, a->width, k_tile, K);
      copy_down(v + j * value_row, value_row, keys, a->value_width, v_tile, v_row, K);
    }
    for (long i = 0; i < count; i += Q) {
      const Seen own = seen[i / Q];
      if (!overlaps(own, j)) continue;
      const long rows = least(Q, count - i);
      if (few)
        multiply_rows(rows, q, q_row, k + j * k_row, k_row, keys, a->width, logits);
      else
        multiply(rows, K, depth, q_factors + i * factors_row, factors_row, 1, k_tile, K, logits, K);
      hide(logits, rows, first + i, last + i, j, own);
      if (curve.bends > 0)
        add_curve(logits, rows, to_base_2, bias + j - begin - i, curve, a->stretch + row + i);
      else if (bias != nullptr)
        add_biases(logits, rows, to_base_2, bias + j - begin - i);
      for (long r = 0; r < rows; r++) {
        float *p = logits + r * K, *out = sums + (i + r) * v_row;
        if (!small) raise(p, scale, row_max + i + r, row_sum + i + r, divisor + i + r, out, v_row);
        vec sum = {}, sum_as_stored = {};
        for (int s = 0; s < K; s += 2 * LANES) {
          const vec weight[2] = {exp2_of(load(p + s) * scale - row_max[i + r]),
                                 exp2_of(load(p + s + LANES) * scale - row_max[i + r])};
          sum = sum + weight[0] + weight[1];
          // in the place of logits that have been read
          sum_as_stored = store_and_add(sum_as_stored, weights + r * K, s, weight);
        }
        row_sum[i + r] += sum_of(sum);
        divisor[i + r] += sum_of(TOGETHER > 1 ? sum_as_stored : sum);  // else they are equal
      }
      if (few)
        add_rows(rows, logits, v + j * value_row, value_row, keys, a->value_width, sums, v_row);
      else
        multiply_add(rows, v_row, K / TOGETHER, weights, K, 1, v_tile, v_row, sums + i * v_row, v_row);
    }
  }
  for (long r = 0; r < count; r++) {
    float *out = a->out + ((row + r) * a->heads + n) * a->value_width;
    const float by = first[r] > last[r] ? 1 : divisor[r];  // a query that sees no key: 0
    for (long h = 0; h < a->value_width; h++) out[h] = sums[r * v_row + h] / by;
    a->lse[(b * a->heads + n) * a->queries + begin + r] = row_max[r] + log2f(row_sum[r]);
  }
}

// The keys of one chunk: those from `begin` up to `end`.
typedef struct {
  long begin, end;
} Chunk;

INLINE Chunk chunk_of(const Attention *a, long number) {
  const long tiles = (a->keys + K - 1) / K;
  const Chunk chunk = {tiles * number / a->chunks * K, tiles * (number + 1) / a->chunks * K};
  return (Chunk){chunk.begin, least(chunk.end, a->keys)};
}

// How many floats `backward` needs for itself.
extern "C" long NAME(backward_scratch)(const Attention *a) {
  const long h_row = vectors(a->width), v_row = vectors(a->value_width);
  const long queries = padded(a->queries, Q), keys = a->keys / a->chunks + 2 * K;
  const long transposed = (factors_in(a->width) + factors_in(a->value_width)) * K;
  const long tiles = 2 * Q * K + transposed + K / TOGETHER * h_row + factors_copied(Q, K);
  const long factors = queries / TOGETHER * (h_row + v_row) +
                       factors_copied(queries, a->width) + factors_copied(queries, a->value_width);
  const long lines = (a->bends + 1) * 2 * LANES;
  return tiles + factors + queries * (h_row + 1) + keys * (h_row + v_row) + lines;
}

// One chunk of the keys of one key-value head, with all queries that see them: dk and dv, and the
// chunk's part of dq, which is added to that of the chunks before. With P = 2^(logits - lse): dV = Pᵀ·dO, dP = dO·Vᵀ, dS = P∘(dP - delta)/√H,
// dQ = dS·K, dK = dSᵀ·Q, where delta = dO·O for each query.
extern "C" void NAME(backward)(const Attention *a, long task, float *scratch) {
  const long each = a->batch * a->kv_heads, number = task / each;
  const long b = task % each / a->kv_heads, kv = task % a->kv_heads;
  const long groups = a->heads / a->kv_heads, queries = a->queries;
  const long h_row = vectors(a->width), v_row = vectors(a->value_width);
  const long all = padded(queries, Q);
  const Chunk chunk = chunk_of(a, number);
  const long keys_padded = padded(chunk.end - chunk.begin, K);
  const long k_row = a->kv_heads * a->width, value_row = a->kv_heads * a->value_width;
  const long key_row = b * a->keys * a->kv_heads + kv;
  const float *k = a->k + key_row * a->width, *v = a->v + key_row * a->value_width;
  const int *first = a->first + b * queries, *last = a->last + b * queries;
  const float to_base_2 = a->scale * (float)M_LOG2E, scale = a->biases == 0 ? to_base_2 : 1;
  const long width = factors_in(a->width), value_width = factors_in(a->value_width);
  float *p = scratch, *dp = p + Q * K, *dq = dp + Q * K, *delta = dq + all * h_row;
  float *dk = delta + all, *dv = dk + keys_padded * h_row, *dlines = dv + keys_padded * v_row;
  const long lines = (a->bends + 1) * 2;
  factor *kt = (factor *)(dlines + lines * LANES), *vt = kt + width * K;
  factor *k_down = vt + value_width * K, *q_down = k_down + K / TOGETHER * h_row;
  factor *dout_down = q_down + all / TOGETHER * h_row;
  factor *copied = dout_down + all / TOGETHER * v_row;
  // Pairs are of two rows or of two columns, as the product needs them; single numbers are either.
  factor *p_down = (factor *)p, *ds_down = (factor *)dp;
  factor *q_along = q_down, *dout_along = dout_down, *ds_along = ds_down;
  if (TOGETHER > 1) {
    q_along = copied, dout_along = q_along + queries * width;
    ds_along = dout_along + queries * value_width;
  }
  const long q_along_row = factor_row(h_row, a->width);
  const long dout_along_row = factor_row(v_row, a->value_width), ds_along_row = factors_in(K);

  memset(dk, 0, keys_padded * (h_row + v_row) * sizeof(float));
  for (long n = kv * groups; n < (kv + 1) * groups; n++) {
    const long row = b * queries * a->heads + n;
    const float *lse = a->lse + (b * a->heads + n) * queries;
    const long q_stride = a->heads * a->width, out_stride = a->heads * a->value_width;
    const float *qs = a->q + row * a->width, *douts = a->dout + row * a->value_width;
    copy_down(qs, q_stride, queries, a->width, q_down, h_row, all);
    copy_down(douts, out_stride, queries, a->value_width, dout_down, v_row, all);
    if (TOGETHER > 1) {
      as_factors(qs, q_stride, queries, a->width, q_along);
      as_factors(douts, out_stride, queries, a->value_width, dout_along);
    }
    const float *bias = biases_of(a, b, n);
    const Curve curve = curve_of(a, n);
    const float *stretch = a->stretch + b * queries;
    const long part = (number * a->batch + b) * a->heads + n;
    float *dbias = nullptr, *dstretch = a->dstretch + part * queries;
    if (bias != nullptr) {
      dbias = a->dbias + part * (a->keys + AHEAD);
      memset(dbias, 0, (a->keys + AHEAD) * sizeof(float));
      dbias += queries - 1;
    }
    if (curve.bends > 0) {
      memset(dstretch, 0, queries * sizeof(float));
      memset(dlines, 0, lines * LANES * sizeof(float));
    }
    memset(dq, 0, all * h_row * sizeof(float));
    for (long t = 0; t < queries; t++) {
      const float *out = a->out + row * a->value_width + t * out_stride;
      // of the rounded dO, as dP is: else the dS of a query would not add up to zero
      delta[t] = product_along(out, dout_along + t * dout_along_row, a->value_width);
    }
    for (long j = chunk.begin; j < chunk.end; j += K) {
      const long keys = least(K, a->keys - j);
      float *own_dk = dk + (j - chunk.begin) * h_row, *own_dv = dv + (j - chunk.begin) * v_row;
      transpose(k + j * k_row, k_row, keys, a->width, kt, K);
      transpose(v + j * value_row, value_row, keys, a->value_width, vt, K);
      copy_down(k + j * k_row, k_row, keys, a->width, k_down, h_row, K);
      for (long i = 0; i < queries; i += Q) {
        const long rows = least(Q, queries - i), depth = factors_in(rows);
        const Seen seen = seen_by(first, last, i, i + rows);
        if (!overlaps(seen, j)) continue;
        const factor *own_q = q_down + i / TOGETHER * h_row;
        const factor *own_dout = dout_down + i / TOGETHER * v_row;
        multiply(rows, K, width, q_along + i * q_along_row, q_along_row, 1, kt, K, p, K);
        hide(p, rows, first + i, last + i, j, seen);
        if (curve.bends > 0)
          add_curve(p, rows, to_base_2, bias + j - i, curve, stretch + i);
        else if (bias != nullptr)
          add_biases(p, rows, to_base_2, bias + j - i);
        multiply(rows, K, value_width, dout_along + i * dout_along_row, dout_along_row, 1, vt, K, dp,
                 K);
        Segments own[TOGETHER] = {};
        for (long r = 0; r < rows; r += TOGETHER) {
          for (long t = 0; t < TOGETHER && r + t < rows && curve.bends > 0; t++)
            own[t] = segments_of(curve, bias + j - i - r - t, stretch[i + r + t], own[t]);
          for (long s = 0; s < K; s += LANES) {
            vec weight[TOGETHER] = {}, ds[TOGETHER] = {};
            for (long t = 0; t < TOGETHER && r + t < rows; t++) {
              const long at = (r + t) * K + s, query = i + r + t;
              weight[t] = exp2_of(load(p + at) * scale - lse[query]);
              const vec dlogits = weight[t] * (load(dp + at) - delta[query]);
              ds[t] = dlogits * a->scale;
              if (TOGETHER > 1) store_along(ds_along + (r + t) * ds_along_row, s, ds[t]);
              if (bias == nullptr) continue;
              const long place = j + s - query;
              vec more = dlogits;
              if (curve.bends > 0) {
                const vec d = load(bias + place);
                more = bend_back(curve, own[t], d * stretch[query], dlogits, dlines);
                dstretch[query] += sum_of(more * d);
                more = more * stretch[query];
              }
              store(dbias + place, load(dbias + place) + more);
            }
            store_factors(p_down + r * K + s, down(weight));
            store_factors(ds_down + r * K + s, down(ds));
          }
        }
        multiply_add(K, v_row, depth, p_down, 1, TOGETHER * K, own_dout, v_row, own_dv, v_row);
        multiply_add(K, h_row, depth, ds_down, 1, TOGETHER * K, own_q, h_row, own_dk, h_row);
        multiply_add(rows, h_row, factors_in(K), ds_along, ds_along_row, 1, k_down, h_row,
                     dq + i * h_row, h_row);
      }
    }
    if (curve.bends > 0)
      for (long m = 0; m < lines; m++) a->dlines[part * lines + m] = sum_of(load(dlines + m * LANES));
    // The sum must not depend on the threads. The chunk before began earlier, so it will be added.
    long *added = a->chunks_added + b * a->heads + n;
    while (__atomic_load_n(added, __ATOMIC_ACQUIRE) != number) sched_yield();
    float *out = a->dq + row * a->width;
    for (long t = 0; t < queries; t++)
      for (long h = 0; h < a->width; h++)
        out[t * q_stride + h] = dq[t * h_row + h] + (number ? out[t * q_stride + h] : 0);
    __atomic_store_n(added, number + 1, __ATOMIC_RELEASE);
  }
  for (long s = chunk.begin; s < chunk.end; s++) {
    const long row = key_row + s * a->kv_heads, own = s - chunk.begin;
    memcpy(a->dk + row * a->width, dk + own * h_row, a->width * sizeof(float));
    memcpy(a->dv + row * a->value_width, dv + own * v_row, a->value_width * sizeof(float));
  }
}
