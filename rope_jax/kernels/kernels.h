// The arrays of the kernels' calls, as those who make tasks of them and those who compute them see
// them. All are dense, in the order of the axes given here.

#pragma once

// q, dq, out, dout [batch, queries, heads, ·], k, dk, v, dv [batch, keys, kv_heads, ·], where · is
// `width`, or `value_width` for v, dv, out and dout. first, last [batch, queries]: the keys that a query
// sees, both ends included; where first > last it sees none, which only the forward pass can do.
// lse [batch, heads, queries]: log2 of the sum of 2^logit.
// bias [biases, heads, keys + AHEAD], where biases is `batch` or 1, or 0 without a bias: what is added
// to the logits by distance, in units of ln 2. That of key j and the query that is key i is at
// keys - 1 - i + j. dbias [chunks, batch, heads, keys + AHEAD]: derivatives by such logits.
// Where there are knots [bends], ascending and maybe infinite, what `bias` holds is d, and the bias is a function
// of x = d·stretch that is linear between them: after m of them start + slope·x, from lines [heads, bends + 1, 2],
// in units of ln 2; stretch [batch, queries]. Then d must not rise from key to key. dstretch [chunks, batch, heads, queries],
// dlines [chunks, batch, heads, bends + 1, 2].
// span: queries of one head that are computed together forward; they share the copies of keys and values.
// chunks_added [batch, heads]: how many chunks of keys have added their parts to dq, one after the other.
typedef struct {
  long batch, queries, keys, heads, kv_heads, width, value_width, chunks, biases, bends, span;
  float scale;
  const float *q, *k, *v, *bias, *stretch, *knots, *lines;
  const int *first, *last;
  float *out, *lse;
  const float *dout;
  float *dq, *dk, *dv, *dbias, *dstretch, *dlines;
  long *chunks_added;
} Attention;

// How many keys after a query may be in a tile with one that it sees.
enum { AHEAD = 128 };

// The fewest and the most queries of a span.
enum { LEAST_SPAN = 256, MOST_SPAN = 1024 };

// Rows of numbers, float or bfloat16. Those of bfloat16 are only factors of rounded products, and a row
// has an even number of them.
typedef struct {
  const void *at;
  int are_bfloat16;
} Numbers;

// Tokens from `first` up to `last`, which are multiplied with the weights of one group.
typedef struct {
  long first, last, group;
} Rows;

// x [tokens, inputs], w [groups, inputs, outputs], or if it is transposed [groups, outputs, inputs].
typedef struct {
  long inputs;
  Numbers x;
  const float *w;
} Factors;

enum { MOST_PARTS = 2 };

// y [tokens, outputs], the sum of its parts' products, computed in blocks of some rows and `cols`.
typedef struct {
  long tokens, outputs, rows, cols, parts;
  const Rows *blocks;
  int transposed;
  Factors part[MOST_PARTS];
  float *y;
} Projection;

// x, dy [tokens, inputs], w_gate, w_up [groups, inputs, hidden_size], w_down [groups, hidden_size, inputs];
// the others [tokens, hidden_size], computed in blocks of some rows and `cols`. Forward, gate and up may be null. hidden,
// dgate and dup are only factors of other products: bfloat16 if factors are rounded, else float.
typedef struct {
  long tokens, inputs, hidden_size, rows, cols;
  const Rows *blocks;
  const float *x, *w_gate, *w_up, *dy, *w_down;
  float *gate, *up;
  void *hidden, *dgate, *dup;
} Gated;

// x [tokens, inputs], dy [tokens, outputs], dw [groups, inputs, outputs], of the tokens of each group,
// computed in blocks of [rows, cols].
typedef struct {
  long inputs, outputs, rows, cols;
  const Rows *groups;
  Numbers x, dy;
  float *dw;
} WeightGradient;

// x, y, dy, dx [tokens, width], scale [width], dscale [blocks, width]: each block of tokens has a sum
// of its own.
typedef struct {
  long tokens, width;
  float epsilon;
  const float *x, *scale, *dy;
  float *y, *dx, *dscale;
} Norm;

// Tokens that are normalized together.
enum { NORM_BLOCK = 128 };
