// What XLA calls: kernels cut into tasks, which the threads of XLA's own pool take in turn.

#include <algorithm>
#include <atomic>
#include <cctype>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "kernels.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Integers = ffi::Buffer<ffi::S32>;
using Result = ffi::Result<Floats>;
using EitherResult = ffi::Result<ffi::AnyBuffer>;

// One kernel for one instruction set: how many floats it needs for itself, and what does one task.
template <typename Arrays>
struct Kernel {
  long (*scratch)(const Arrays *);
  void (*run)(const Arrays *, long task, float *scratch);
};

// The kernels that multiply matrices, of numbers as they are or rounded to bfloat16.
struct Products {
  Kernel<Attention> forward, backward;
  Kernel<Projection> projection;
  Kernel<Gated> gated_forward, gated_backward;
  Kernel<WeightGradient> weight_gradient;
};

struct Kernels {
  const char *name;
  Kernel<Norm> norm_forward, norm_backward;
  Products exact, rounded;
};

#define DECLARE(arrays, function)                   \
  extern "C" long function##_scratch(const arrays *); \
  extern "C" void function(const arrays *, long, float *);
#define KERNEL(function) {function##_scratch, function}
#define PRODUCTS(set)                     \
  DECLARE(Attention, set##_forward)       \
  DECLARE(Attention, set##_backward)      \
  DECLARE(Projection, set##_projection)   \
  DECLARE(Gated, set##_gated_forward)     \
  DECLARE(Gated, set##_gated_backward)    \
  DECLARE(WeightGradient, set##_weight_gradient) \
  static const Products set##_products = {KERNEL(set##_forward), KERNEL(set##_backward), \
                                          KERNEL(set##_projection), KERNEL(set##_gated_forward), \
                                          KERNEL(set##_gated_backward), \
                                          KERNEL(set##_weight_gradient)};
// The kernels of one set, whose rounded products may be those of another.
#define KERNELS(name, set, rounded_set)     \
  static const Kernels name##_kernels = {   \
      #name, KERNEL(set##_norm_forward), KERNEL(set##_norm_backward), set##_products, \
      rounded_set##_products};
#define SET(set)                      \
  DECLARE(Norm, set##_norm_forward)   \
  DECLARE(Norm, set##_norm_backward)  \
  PRODUCTS(set)                       \
  PRODUCTS(set##_rounded)             \
  KERNELS(set, set, set##_rounded)

SET(generic)
#ifdef __x86_64__
SET(avx2)
SET(avx512)
#ifdef HAS_AVX512_BF16
PRODUCTS(avx512_bf16_rounded)
KERNELS(avx512_bf16, avx512, avx512_bf16_rounded)
#endif
#endif

// Whether XLA may use an instruction set: --xla_cpu_max_isa in XLA_FLAGS limits these kernels, too.
// Like XLA, it takes the last one, in letters of any case.
static bool allowed(const std::string &set) {
  const std::vector<std::string> sets{"SSE4_2", "AVX", "AVX2", "AVX512", "AVX512_VNNI", "AVX512_BF16"};
  const char *flags = std::getenv("XLA_FLAGS");
  const std::string given = flags == nullptr ? "" : flags, name = "--xla_cpu_max_isa=";
  const auto found = given.rfind(name);
  if (found == std::string::npos) return true;
  std::string value = given.substr(found + name.size());
  value = value.substr(0, value.find_first_of(" \t\r\n"));
  for (char &letter : value) letter = std::toupper(static_cast<unsigned char>(letter));
  const auto limit = std::find(sets.begin(), sets.end(), value);
  return std::find(sets.begin(), sets.end(), set) <= limit;
}

// Those that this processor can run, the fastest first.
static std::vector<const Kernels *> runnable() {
  std::vector<const Kernels *> found;
#ifdef __x86_64__
  __builtin_cpu_init();
#ifdef HAS_AVX512_BF16
  // compiled for AVX512_BF16, which GCC and Clang take to include AVX512BW
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512f") && allowed("AVX512_BF16"))
    found.push_back(&avx512_bf16_kernels);
#endif
  if (__builtin_cpu_supports("avx512f") && allowed("AVX512")) found.push_back(&avx512_kernels);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && allowed("AVX2"))
    found.push_back(&avx2_kernels);
#endif
  found.push_back(&generic_kernels);
  return found;
}

static const Kernels *chosen = runnable().front();

static const Products &products(bool rounded) {
  return rounded ? chosen->rounded : chosen->exact;
}

extern "C" const char *instruction_set() { return chosen->name; }

// Chooses other kernels, for the tests; returns whether this processor can run them.
extern "C" bool choose_instruction_set(const char *name) {
  for (const Kernels *kernels : runnable()) {
    if (std::string(name) != kernels->name) continue;
    chosen = kernels;
    return true;
  }
  return false;
}

// The tasks of one call, and the threads that take them. A thread of the pool may come only after
// the call has returned. It then finds no task left, and touches nothing but this object.
template <typename Arrays>
class Work {
 public:
  Work(const Kernel<Arrays> &kernel, const Arrays &arrays, long tasks)
      : kernel_(kernel), arrays_(arrays), tasks_(tasks) {}

  void take_tasks(float *scratch) {
    for (long task; (task = next_.fetch_add(1)) < tasks_;) {
      kernel_.run(&arrays_, task, scratch);
      if (done_.fetch_add(1) + 1 == tasks_) {
        std::lock_guard<std::mutex> lock(mutex_);
        all_done_.notify_one();
      }
    }
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return done_.load() >= tasks_; });
  }

 private:
  const Kernel<Arrays> kernel_;
  const Arrays arrays_;
  const long tasks_;
  std::atomic<long> next_{0}, done_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
};

template <typename Arrays>
static ffi::Error run(ffi::ThreadPool pool, const Kernel<Arrays> &kernel, const Arrays &arrays,
                      long tasks) {
  // The caller works too: its thread may be the only one of the pool that is free.
  const long threads = std::max<long>(1, std::min<long>(pool.num_threads(), tasks));
  const long each = (kernel.scratch(&arrays) + 15) / 16 * 16;  // whole cache lines
  const std::align_val_t line{64};
  auto *scratch = static_cast<float *>(
      ::operator new[](each * threads * sizeof(float), line, std::nothrow));
  if (scratch == nullptr)
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "Out of memory in a kernel of rope-jax");
  auto work = std::make_shared<Work<Arrays>>(kernel, arrays, tasks);
  for (long thread = 1; thread < threads; thread++)
    pool.Schedule([work, own = scratch + thread * each] { work->take_tasks(own); });
  work->take_tasks(scratch);
  work->wait();
  ::operator delete[](scratch, line);
  return ffi::Error::Success();
}

static long parts(long all, long each) { return (all + each - 1) / each; }

enum { ENOUGH_SPANS = 128 };

static Attention inputs(Floats q, Floats k, Floats v, Integers first, Integers last, Floats bias,
                        Floats stretch, Floats knots, Floats lines, float scale) {
  Attention a{};
  a.batch = q.dimensions()[0], a.queries = q.dimensions()[1], a.heads = q.dimensions()[2];
  a.width = q.dimensions()[3], a.keys = k.dimensions()[1], a.kv_heads = k.dimensions()[2];
  a.value_width = v.dimensions()[3], a.chunks = 1, a.scale = scale;
  a.q = q.typed_data(), a.k = k.typed_data(), a.v = v.typed_data();
  a.first = first.typed_data(), a.last = last.typed_data();
  a.biases = bias.element_count() > 0 ? bias.dimensions()[0] : 0, a.bias = bias.typed_data();
  a.bends = knots.dimensions()[0], a.knots = knots.typed_data();
  a.stretch = stretch.typed_data(), a.lines = lines.typed_data();
  return a;
}

static bool are_biases(Floats bias, const Attention &a) {
  const auto size = bias.dimensions();
  if (a.biases == 0) return true;
  const bool of_batch = size[0] == 1 || size[0] == a.batch;
  return of_batch && size[1] == a.heads && size[2] == a.keys + AHEAD;
}

static ffi::Error not_biases() {
  return ffi::Error::InvalidArgument("biases are not of all heads, keys and AHEAD more");
}

static ffi::Error run_forward(ffi::ThreadPool pool, Floats q, Floats k, Floats v, Integers first,
                             Integers last, Floats bias, Floats stretch, Floats knots,
                             Floats lines, Result out, Result lse, float scale, bool rounded) {
  Attention a = inputs(q, k, v, first, last, bias, stretch, knots, lines, scale);
  if (!are_biases(bias, a)) return not_biases();
  a.out = out->typed_data(), a.lse = lse->typed_data();
  // Long spans copy fewer keys, but there must be some for each of many threads. They do not depend on
  // how many there are, since the last digits of results depend on the spans.
  const long rows = a.batch * a.heads;
  a.span = LEAST_SPAN;
  while (a.span < MOST_SPAN && rows * a.queries >= 2 * a.span * ENOUGH_SPANS) a.span *= 2;
  return run(pool, products(rounded).forward, a, rows * parts(a.queries, a.span));
}

static ffi::Error run_backward(ffi::ThreadPool pool, Floats q, Floats k, Floats v, Integers first,
                              Integers last, Floats bias, Floats stretch, Floats knots,
                              Floats lines, Floats out, Floats lse, Floats dout, Result dq,
                              Result dk, Result dv, Result dbias, Result dstretch, Result dlines,
                              float scale, bool rounded, std::int64_t chunks) {
  Attention a = inputs(q, k, v, first, last, bias, stretch, knots, lines, scale);
  if (!are_biases(bias, a)) return not_biases();
  std::vector<long> added(a.batch * a.heads);
  a.chunks = chunks, a.chunks_added = added.data();
  a.out = out.typed_data(), a.lse = lse.typed_data(), a.dout = dout.typed_data();
  a.dq = dq->typed_data(), a.dk = dk->typed_data(), a.dv = dv->typed_data(), a.dbias = dbias->typed_data();
  a.dstretch = dstretch->typed_data(), a.dlines = dlines->typed_data();
  return run(pool, products(rounded).backward, a, a.batch * a.kv_heads * a.chunks);
}

// A block's copy of weights should fit into the second cache, and it is worth its time if enough
// tokens are multiplied with it.
enum { LARGEST_COPY = 1 << 18, FEWEST_ROWS = 512, FEWEST_COLUMNS = 32 };

// Cuts the result of products into a block for each thread, at least. `copied` is
// how many weights are copied for a column. The sums do not depend on the blocks.
template <typename Arrays>
static void cut(Arrays &a, long outputs, long copied, long threads) {
  a.rows = std::max(1L, a.tokens), a.cols = std::max(1L, outputs);
  for (;;) {
    const long blocks = parts(a.tokens, a.rows) * parts(outputs, a.cols);
    const bool fits = a.cols * copied <= LARGEST_COPY, enough = blocks >= threads;
    if (fits && !enough && a.rows >= 2 * FEWEST_ROWS) a.rows = (a.rows + 1) / 2;
    else if ((fits && enough) || a.cols <= FEWEST_COLUMNS) return;
    else a.cols = (a.cols + 3) / 4 * 2;  // even, so that no pair of numbers is cut
  }
}

// An array of factors, which may be bfloat16 if they are rounded.
static Numbers numbers_of(ffi::AnyBuffer x) {
  return {x.untyped_data(), x.element_type() == ffi::DataType::BF16};
}

static bool are_factors(ffi::AnyBuffer x, bool rounded) {
  const bool are_bfloat16 = x.element_type() == ffi::DataType::BF16;
  if (!are_bfloat16) return x.element_type() == ffi::DataType::F32;
  return rounded && x.dimensions()[1] % 2 == 0;
}

// What is passed on as factors is bfloat16 if these are rounded, and only then.
static bool are_results(ffi::AnyBuffer x, bool rounded) {
  return are_factors(x, rounded) && numbers_of(x).are_bfloat16 == rounded;
}

static ffi::Error not_factors() {
  return ffi::Error::InvalidArgument(
      "factors are neither float32 nor, for rounded products, bfloat16 in rows of even length");
}

// The tokens of each group, which are consecutive, in blocks of at most `most`; a group without tokens
// has an empty one, since its gradient is 0. Without groups, all have the same weights.
static std::vector<Rows> rows_of(Integers sizes, long tokens, long most) {
  const long groups = sizes.dimensions()[0];
  std::vector<Rows> rows;
  for (long group = 0, first = 0; group < std::max(1L, groups); group++) {
    const long last = groups > 0 ? std::min<long>(tokens, first + sizes.typed_data()[group]) : tokens;
    do {
      rows.push_back({first, std::min(last, first + most), group});
      first = rows.back().last;
    } while (first < last);
  }
  return rows;
}

// factors: x and w of the first part, then of the second, and so on.
static ffi::Error run_projection(ffi::ThreadPool pool, Integers sizes, ffi::RemainingArgs factors,
                                 Result y, bool transposed, bool rounded) {
  Projection p{};
  p.tokens = y->dimensions()[0], p.outputs = y->dimensions()[1];
  p.parts = factors.size() / 2, p.transposed = transposed, p.y = y->typed_data();
  if (p.parts > MOST_PARTS) return ffi::Error::InvalidArgument("too many products in a sum");
  long inputs = 0;
  for (long i = 0; i < p.parts; i++) {
    const auto x = factors.get<ffi::AnyBuffer>(2 * i);
    const auto w = factors.get<Floats>(2 * i + 1);
    if (!x.has_value() || !w.has_value() || !are_factors(*x, rounded)) return not_factors();
    p.part[i] = {x->dimensions()[1], numbers_of(*x), w->typed_data()};
    inputs += p.part[i].inputs;
  }
  cut(p, p.outputs, inputs, pool.num_threads());
  const std::vector<Rows> blocks = rows_of(sizes, p.tokens, p.rows);
  p.blocks = blocks.data();
  return run(pool, products(rounded).projection, p, blocks.size() * parts(p.outputs, p.cols));
}

static ffi::Error run_gated(ffi::ThreadPool pool, const Kernel<Gated> &kernel, Gated &g,
                           Integers sizes, long matrices) {
  cut(g, g.hidden_size, matrices * g.inputs, pool.num_threads());
  const std::vector<Rows> blocks = rows_of(sizes, g.tokens, g.rows);
  g.blocks = blocks.data();
  return run(pool, kernel, g, blocks.size() * parts(g.hidden_size, g.cols));
}

// gate and up have no rows if they are not to be kept.
static ffi::Error run_gated_forward(ffi::ThreadPool pool, Floats x, Floats w_gate, Floats w_up,
                                    Integers sizes, EitherResult hidden, Result gate, Result up,
                                    bool rounded) {
  if (!are_results(*hidden, rounded)) return not_factors();
  Gated g{};
  g.tokens = x.dimensions()[0], g.inputs = x.dimensions()[1];
  g.hidden_size = hidden->dimensions()[1];
  g.x = x.typed_data(), g.w_gate = w_gate.typed_data(), g.w_up = w_up.typed_data();
  g.hidden = hidden->untyped_data();
  if (gate->dimensions()[0] > 0) g.gate = gate->typed_data(), g.up = up->typed_data();
  return run_gated(pool, products(rounded).gated_forward, g, sizes, 2);
}

static ffi::Error run_gated_backward(ffi::ThreadPool pool, Floats dy, Floats w_down, Floats gate,
                                     Floats up, Integers sizes, EitherResult hidden,
                                     EitherResult dgate, EitherResult dup, bool rounded) {
  for (EitherResult result : {hidden, dgate, dup})
    if (!are_results(*result, rounded)) return not_factors();
  Gated g{};
  g.tokens = dy.dimensions()[0], g.inputs = dy.dimensions()[1];
  g.hidden_size = hidden->dimensions()[1];
  g.dy = dy.typed_data(), g.w_down = w_down.typed_data();
  g.gate = gate.typed_data(), g.up = up.typed_data();
  g.hidden = hidden->untyped_data(), g.dgate = dgate->untyped_data(), g.dup = dup->untyped_data();
  return run_gated(pool, products(rounded).gated_backward, g, sizes, 1);
}

// Rows and columns of a weight gradient that are computed together. Larger blocks read less. A block
// and what it reads at a time should fit into the second cache.
enum { SMALLEST_BLOCK = 32, LARGEST_BLOCK = 352 };

static ffi::Error run_weight_gradient(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                                      Integers sizes, Result dw, bool rounded) {
  if (!are_factors(x, rounded) || !are_factors(dy, rounded)) return not_factors();
  WeightGradient p{};
  p.inputs = x.dimensions()[1], p.outputs = dy.dimensions()[1];
  p.x = numbers_of(x), p.dy = numbers_of(dy), p.dw = dw->typed_data();
  const long tokens = x.dimensions()[0];
  const std::vector<Rows> groups = rows_of(sizes, tokens, std::max(1L, tokens));
  p.groups = groups.data();
  p.rows = std::max(1L, p.inputs), p.cols = std::max(1L, p.outputs);
  // A block for each thread, at least. The sums do not depend on how many blocks there are.
  for (;;) {
    const long blocks = groups.size() * parts(p.inputs, p.rows) * parts(p.outputs, p.cols);
    long &longer = p.rows > p.cols ? p.rows : p.cols;
    if (longer <= SMALLEST_BLOCK || (longer <= LARGEST_BLOCK && blocks >= pool.num_threads()))
      return run(pool, products(rounded).weight_gradient, p, blocks);
    longer = (longer + 1) / 2;
  }
}

static Norm norm(Floats x, Floats scale, float epsilon) {
  Norm n{};
  n.tokens = x.dimensions()[0], n.width = x.dimensions()[1], n.epsilon = epsilon;
  n.x = x.typed_data(), n.scale = scale.typed_data();
  return n;
}

static ffi::Error run_norm_forward(ffi::ThreadPool pool, Floats x, Floats scale, Result y,
                                   float epsilon) {
  Norm n = norm(x, scale, epsilon);
  n.y = y->typed_data();
  return run(pool, chosen->norm_forward, n, (n.tokens + NORM_BLOCK - 1) / NORM_BLOCK);
}

static ffi::Error run_norm_backward(ffi::ThreadPool pool, Floats x, Floats scale, Floats dy,
                                    Result dx, Result dscale, float epsilon) {
  Norm n = norm(x, scale, epsilon);
  n.dy = dy.typed_data(), n.dx = dx->typed_data(), n.dscale = dscale->typed_data();
  return run(pool, chosen->norm_backward, n, dscale->dimensions()[0]);
}

// The arguments that both directions of attention begin with: q, k, v, first, last, bias, stretch,
// knots, lines.
static auto attention_call() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<Floats>()
      .Arg<Floats>()
      .Arg<Floats>()
      .Arg<Integers>()
      .Arg<Integers>()
      .Arg<Floats>()
      .Arg<Floats>()
      .Arg<Floats>()
      .Arg<Floats>();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(attention_forward, run_forward,
                              attention_call()
                                  .Ret<Floats>()  // out
                                  .Ret<Floats>()  // lse
                                  .Attr<float>("scale")
                                  .Attr<bool>("rounded"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(attention_backward, run_backward,
                              attention_call()
                                  .Arg<Floats>()  // out
                                  .Arg<Floats>()  // lse
                                  .Arg<Floats>()  // dout
                                  .Ret<Floats>()  // dq
                                  .Ret<Floats>()  // dk
                                  .Ret<Floats>()  // dv
                                  .Ret<Floats>()  // dbias, by chunk
                                  .Ret<Floats>()  // dstretch, by chunk
                                  .Ret<Floats>()  // dlines, by chunk
                                  .Attr<float>("scale")
                                  .Attr<bool>("rounded")
                                  .Attr<std::int64_t>("chunks"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(projection, run_projection,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Integers>()  // sizes
                                  .RemainingArgs()  // x₀, w₀, x₁, w₁, …
                                  .Ret<Floats>()    // Σ xᵢ·wᵢ, or Σ xᵢ·wᵢᵀ
                                  .Attr<bool>("transposed")
                                  .Attr<bool>("rounded"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(gated_forward, run_gated_forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()          // x
                                  .Arg<Floats>()          // w_gate
                                  .Arg<Floats>()          // w_up
                                  .Arg<Integers>()        // sizes
                                  .Ret<ffi::AnyBuffer>()  // hidden
                                  .Ret<Floats>()          // gate
                                  .Ret<Floats>()          // up
                                  .Attr<bool>("rounded"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(gated_backward, run_gated_backward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()          // dy
                                  .Arg<Floats>()          // w_down
                                  .Arg<Floats>()          // gate
                                  .Arg<Floats>()          // up
                                  .Arg<Integers>()        // sizes
                                  .Ret<ffi::AnyBuffer>()  // hidden
                                  .Ret<ffi::AnyBuffer>()  // dgate
                                  .Ret<ffi::AnyBuffer>()  // dup
                                  .Attr<bool>("rounded"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(weight_gradient, run_weight_gradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()  // x
                                  .Arg<ffi::AnyBuffer>()  // dy
                                  .Arg<Integers>()        // sizes
                                  .Ret<Floats>()          // xᵀ·dy
                                  .Attr<bool>("rounded"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(norm_forward, run_norm_forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()  // x
                                  .Arg<Floats>()  // scale
                                  .Ret<Floats>()  // y
                                  .Attr<float>("epsilon"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(norm_backward, run_norm_backward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()  // x
                                  .Arg<Floats>()  // scale
                                  .Arg<Floats>()  // dy
                                  .Ret<Floats>()  // dx
                                  .Ret<Floats>()  // dscale, by block
                                  .Attr<float>("epsilon"));
