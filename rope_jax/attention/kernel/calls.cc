// What XLA calls: attention cut into tasks, which the threads of XLA's own pool take in turn.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>

#include "span.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Integers = ffi::Buffer<ffi::S32>;
using Result = ffi::Result<Floats>;

// The functions of span.cc for one instruction set.
struct Kernels {
  const char *name;
  long (*forward_scratch)(const Attention *);
  void (*forward)(const Attention *, long, float *);
  long (*backward_scratch)(const Attention *);
  void (*backward)(const Attention *, long, float *);
};

#define KERNELS(set)                                            \
  extern "C" long set##_forward_scratch(const Attention *);     \
  extern "C" void set##_forward(const Attention *, long, float *);  \
  extern "C" long set##_backward_scratch(const Attention *);    \
  extern "C" void set##_backward(const Attention *, long, float *); \
  static const Kernels set##_kernels = {#set, set##_forward_scratch, set##_forward, \
                                        set##_backward_scratch, set##_backward};

KERNELS(generic)
#ifdef __x86_64__
KERNELS(avx2)
KERNELS(avx512)
#endif

// Those for this processor.
static const Kernels &kernels() {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return avx512_kernels;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_kernels;
#endif
  return generic_kernels;
}

// The tasks of one call, and the threads that take them. A thread of the pool may come only after
// the call has returned. It then finds no task left, and touches nothing but this object.
class Work {
 public:
  Work(const Attention &attention, void (*run)(const Attention *, long, float *), long tasks,
       long scratch, long threads)
      : attention_(attention), run_(run), tasks_(tasks), scratch_((scratch + 15) / 16 * 16),
        memory_(new (std::align_val_t(64), std::nothrow) float[scratch_ * threads]) {}
  ~Work() { ::operator delete[](memory_, std::align_val_t(64)); }

  bool has_memory() const { return memory_ != nullptr; }

  void take_tasks(long thread) {
    for (long task; (task = next_.fetch_add(1)) < tasks_;) {
      run_(&attention_, task, memory_ + thread * scratch_);
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
  const Attention attention_;
  void (*const run_)(const Attention *, long, float *);
  const long tasks_, scratch_;
  float *const memory_;
  std::atomic<long> next_{0}, done_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
};

static ffi::Error run(ffi::ThreadPool pool, const Attention &attention,
                      void (*task)(const Attention *, long, float *), long tasks, long scratch) {
  // The caller works too: its thread may be the only one of the pool that is free.
  const long threads = std::max<long>(1, std::min<long>(pool.num_threads(), tasks));
  auto work = std::make_shared<Work>(attention, task, tasks, scratch, threads);
  if (!work->has_memory())
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "Out of memory in the attention kernel");
  for (long thread = 1; thread < threads; thread++)
    pool.Schedule([work, thread] { work->take_tasks(thread); });
  work->take_tasks(0);
  work->wait();
  return ffi::Error::Success();
}

static Attention inputs(Floats q, Floats k, Floats v, Integers first, Integers last, float scale) {
  Attention a{};
  a.batch = q.dimensions()[0], a.queries = q.dimensions()[1], a.heads = q.dimensions()[2];
  a.width = q.dimensions()[3], a.keys = k.dimensions()[1], a.kv_heads = k.dimensions()[2];
  a.value_width = v.dimensions()[3], a.chunks = 1, a.scale = scale;
  a.q = q.typed_data(), a.k = k.typed_data(), a.v = v.typed_data();
  a.first = first.typed_data(), a.last = last.typed_data();
  return a;
}

static ffi::Error forward(ffi::ThreadPool pool, Floats q, Floats k, Floats v, Integers first,
                          Integers last, Result out, Result lse, float scale) {
  Attention a = inputs(q, k, v, first, last, scale);
  a.out = out->typed_data(), a.lse = lse->typed_data();
  const long tasks = a.batch * a.heads * ((a.queries + SPAN - 1) / SPAN);
  return run(pool, a, kernels().forward, tasks, kernels().forward_scratch(&a));
}

static ffi::Error backward(ffi::ThreadPool pool, Floats q, Floats k, Floats v, Integers first,
                           Integers last, Floats out, Floats lse, Floats dout, Result dq,
                           Result dk, Result dv, float scale) {
  Attention a = inputs(q, k, v, first, last, scale);
  a.chunks = dq->dimensions()[0];
  a.out = out.typed_data(), a.lse = lse.typed_data(), a.dout = dout.typed_data();
  a.dq = dq->typed_data(), a.dk = dk->typed_data(), a.dv = dv->typed_data();
  const long tasks = a.batch * a.kv_heads * a.chunks;
  return run(pool, a, kernels().backward, tasks, kernels().backward_scratch(&a));
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(attention_forward, forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()    // q
                                  .Arg<Floats>()    // k
                                  .Arg<Floats>()    // v
                                  .Arg<Integers>()  // first
                                  .Arg<Integers>()  // last
                                  .Ret<Floats>()    // out
                                  .Ret<Floats>()    // lse
                                  .Attr<float>("scale"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(attention_backward, backward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()    // q
                                  .Arg<Floats>()    // k
                                  .Arg<Floats>()    // v
                                  .Arg<Integers>()  // first
                                  .Arg<Integers>()  // last
                                  .Arg<Floats>()    // out
                                  .Arg<Floats>()    // lse
                                  .Arg<Floats>()    // dout
                                  .Ret<Floats>()    // dq, by chunk
                                  .Ret<Floats>()    // dk
                                  .Ret<Floats>()    // dv
                                  .Attr<float>("scale"));

extern "C" const char *attention_instruction_set() { return kernels().name; }
