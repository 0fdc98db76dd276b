// silu(x·w_gate) · (x·w_up), the hidden layer of a gated feed-forward, and the derivatives of both
// factors, one block of it on one core.
//
// silu and its derivative are computed for one tile of a product at a time, while it is in the first
// cache: over whole arrays, memory would be what takes the time.

#include "kernels.h"
#include "panels.h"

// Tokens that pass by one panel of weights. Fewer than in projection.cc: the second cache also holds
// parts of up to five arrays.
enum { TOKENS = 2 * ROWS };

// Begins to fetch one tile of an array, which is read or written as soon as a product is there.
template <typename Number>
INLINE void fetch(const Number *p, long row, long rows, long width) {
  for (long r = 0; r < rows; r++) {
    __builtin_prefetch(p + r * row, 0, 2);
    __builtin_prefetch(p + r * row + width - 1, 0, 2);
  }
}

// Copies a tile of `width` columns to or from an array.
INLINE void copy_tile(long rows, long width, const float *from, long from_row, float *to,
                      long to_row) {
  for (long r = 0; r < rows; r++)
    if (width == COLS) memcpy(to + r * to_row, from + r * from_row, COLS * sizeof(float));
    else memcpy(to + r * to_row, from + r * from_row, width * sizeof(float));
}

// Stores a tile of `width` columns as factors along its rows.
INLINE void store_tile(long rows, long width, const float *tile, factor *to, long to_row) {
  for (long r = 0; r < rows; r++, tile += COLS, to += to_row)
    if (width == COLS) {
      for (long i = 0; i < COLS; i += LANES) store_along(to, i, load(tile + i));
    } else {
      factor copied[COLS];
      memcpy(to, as_factors(tile, 0, 1, width, copied), factors_in(width) * sizeof(factor));
    }
}

// The part of the arrays that a task computes.
typedef struct {
  long first, last, begin, cols;  // tokens from first up to last, columns from begin
  long weights;                   // where those of the tokens' group begin
} Block;

INLINE Block block_of(const Gated *g, long task) {
  const long across = (g->hidden_size + g->cols - 1) / g->cols, begin = task % across * g->cols;
  const Rows rows = g->blocks[task / across];
  return (Block){rows.first, rows.last, begin, least(g->cols, g->hidden_size - begin),
                 rows.group * g->inputs * g->hidden_size};
}

extern "C" long NAME(gated_forward_scratch)(const Gated *g) {
  const long panels = 2 * factors_in(g->inputs) * padded(g->cols, COLS);
  return panels + factors_copied(TOKENS, g->inputs);
}

// One block of hidden, and of gate and up if they are kept.
extern "C" void NAME(gated_forward)(const Gated *g, long task, float *scratch) {
  const Block b = block_of(g, task);
  if (b.first == b.last) return;
  const long size = g->hidden_size, along = factors_in(size);  // in a row
  const long inputs = g->inputs, depth = factors_in(inputs);
  factor *gate_panels = (factor *)scratch, *up_panels = gate_panels + depth * padded(b.cols, COLS);
  factor *copied = up_panels + depth * padded(b.cols, COLS);
  pack(g->w_gate + b.weights + b.begin, size, inputs, b.cols, COLS, gate_panels);
  pack(g->w_up + b.weights + b.begin, size, inputs, b.cols, COLS, up_panels);
  for (long tokens = b.first; tokens < b.last; tokens += TOKENS) {
    const long end = least(b.last, tokens + TOKENS);
    const factor *xs = as_factors(g->x + tokens * inputs, inputs, end - tokens, inputs, copied);
    for (long j = 0; j < b.cols; j += COLS) {
      const long width = least(COLS, b.cols - j);
      for (long t = tokens; t < end; t += ROWS) {
        const long rows = least(ROWS, end - t), at = t * size + b.begin + j;
        const factor *x = xs + (t - tokens) * depth;
        factor *to_hidden = (factor *)g->hidden + at / TOGETHER;
        float gate[ROWS * COLS], up[ROWS * COLS], hidden[ROWS * COLS];
        fetch(to_hidden, along, rows, COLS / TOGETHER);
        if (g->gate != nullptr)
          fetch(g->gate + at, size, rows, COLS), fetch(g->up + at, size, rows, COLS);
        multiply_panel(0, rows, depth, x, gate_panels + j * depth, gate, COLS);
        multiply_panel(0, rows, depth, x, up_panels + j * depth, up, COLS);
        for (long i = 0; i < rows * COLS; i += LANES) {
          const vec a = load(gate + i);
          store(hidden + i, a * logistic(a) * load(up + i));
        }
        store_tile(rows, width, hidden, to_hidden, along);
        if (g->gate == nullptr) continue;
        copy_tile(rows, width, gate, COLS, g->gate + at, size);
        copy_tile(rows, width, up, COLS, g->up + at, size);
      }
    }
  }
}

extern "C" long NAME(gated_backward_scratch)(const Gated *g) {
  return factors_in(g->inputs) * padded(g->cols, COLS) + factors_copied(TOKENS, g->inputs);
}

// One block of hidden, dgate and dup.
extern "C" void NAME(gated_backward)(const Gated *g, long task, float *scratch) {
  const Block b = block_of(g, task);
  if (b.first == b.last) return;
  const long size = g->hidden_size, along = factors_in(size);  // in a row
  const long inputs = g->inputs, depth = factors_in(inputs);
  factor *panels = (factor *)scratch, *copied = panels + depth * padded(b.cols, COLS);
  pack_transposed(g->w_down + b.weights + b.begin * inputs, inputs, b.cols, panels);
  for (long tokens = b.first; tokens < b.last; tokens += TOKENS) {
    const long end = least(b.last, tokens + TOKENS);
    const factor *dys = as_factors(g->dy + tokens * inputs, inputs, end - tokens, inputs, copied);
    for (long j = 0; j < b.cols; j += COLS) {
      const long width = least(COLS, b.cols - j);
      for (long t = tokens; t < end; t += ROWS) {
        const long rows = least(ROWS, end - t), at = t * size + b.begin + j;
        factor *to_hidden = (factor *)g->hidden + at / TOGETHER;
        factor *to_dgate = (factor *)g->dgate + at / TOGETHER;
        factor *to_dup = (factor *)g->dup + at / TOGETHER;
        float gate[ROWS * COLS] = {}, up[ROWS * COLS] = {};  // a narrow tile fills them in part
        float dhidden[ROWS * COLS], hidden[ROWS * COLS];
        fetch(g->gate + at, size, rows, COLS), fetch(g->up + at, size, rows, COLS);
        fetch(to_hidden, along, rows, COLS / TOGETHER);
        fetch(to_dgate, along, rows, COLS / TOGETHER);
        fetch(to_dup, along, rows, COLS / TOGETHER);
        multiply_panel(0, rows, depth, dys + (t - tokens) * depth, panels + j * depth, dhidden,
                       COLS);
        copy_tile(rows, width, g->gate + at, size, gate, COLS);
        copy_tile(rows, width, g->up + at, size, up, COLS);
        for (long i = 0; i < rows * COLS; i += LANES) {
          const vec a = load(gate + i), u = load(up + i), d = load(dhidden + i), s = logistic(a);
          const vec silu = a * s;
          store(hidden + i, silu * u);
          store(gate + i, d * u * (s + silu * (1.f - s)));
          store(up + i, d * silu);
        }
        store_tile(rows, width, hidden, to_hidden, along);
        store_tile(rows, width, gate, to_dgate, along);
        store_tile(rows, width, up, to_dup, along);
      }
    }
  }
}
