// The serial executor, a pool of std::threads, and the choice of the default.
#include "softfold/executor.hpp"

#include "softfold/error.hpp"
#include "softfold/float_env.hpp"

#include <pthread.h>
#include <sched.h>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace softfold {
inline namespace v0 {
namespace {

/// How often a waiting thread looks before it parks: some 20 to 50 microseconds, several times what a wake costs.
constexpr int kSpins = 1000;

/// How often this process is a fork of one that had pools: their threads stayed behind.
std::atomic<unsigned> forks{0};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield" ::: "memory");
#endif
}

/// The processors that this process may run on.
int machine_threads() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// A condition variable over pthreads alone: std::condition_variable::wait of GCC 12 and later is a symbol that the
/// libstdc++ of older distributions, and of the wheel's platform (manylinux_2_34), does not have.
class Condition {
 public:
  Condition() = default;
  ~Condition() { pthread_cond_destroy(&condition_); }
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  template <class Ready>
  void wait(const std::unique_lock<std::mutex>& lock, const Ready& ready) {
    while (!ready()) pthread_cond_wait(&condition_, lock.mutex()->native_handle());
  }
  void notify_one() { pthread_cond_signal(&condition_); }
  void notify_all() { pthread_cond_broadcast(&condition_); }

 private:
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
};

class SerialExecutor final : public Executor {
 public:
  int concurrency() const override { return 1; }
  void run(std::int64_t tasks, Task task, void* argument) override {
    for (std::int64_t i = 0; i < tasks; ++i) task(argument, i);
  }
};

/// The workers of one process. Any thread may run jobs, also from inside a task: the caller always works on its own
/// job and at its end waits only for workers that are inside one of its tasks, so no cycle of waiting can form.
class Pool {
 public:
  explicit Pool(int workers) : generation(forks.load(std::memory_order_relaxed)) {
    spins_ = workers < machine_threads() ? kSpins : 0;  // more threads than processors: spinning would hold them up
    sigset_t all, previous;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);  // signals are for the caller's threads
    try {
      workers_.reserve(static_cast<std::size_t>(workers));
      for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      // The system gives no more threads: fewer do the same work.
    }
    pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      epoch_.fetch_add(1, std::memory_order_release);
    }
    work_.notify_all();
    for (std::thread& t : workers_) t.join();
  }

  int workers() const { return static_cast<int>(workers_.size()); }

  void run(std::int64_t tasks, Executor::Task task, void* argument) {
    Job job(tasks, task, argument);
    const int helpers = static_cast<int>(std::min<std::int64_t>(workers(), tasks - 1));
    int wake;
    {
      const auto lock = take();
      job.next_job = jobs_;
      jobs_ = &job;
      epoch_.fetch_add(1, std::memory_order_release);
      wake = std::min(helpers, sleepers_);
    }
    for (; wake > 0; --wake) work_.notify_one();
    job.take_all();
    finish(job);
  }

  const unsigned generation;  ///< the value of `forks` in the process that has the workers

 private:
  /// One run() on its caller's stack.
  struct Job {
    Job(std::int64_t tasks_, Executor::Task task_, void* argument_) : tasks(tasks_), task(task_), argument(argument_) {}

    bool exhausted() const { return next.load(std::memory_order_relaxed) >= tasks; }
    void take_all() {
      for (std::int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < tasks;
           i = next.fetch_add(1, std::memory_order_relaxed))
        task(argument, i);
    }

    const std::int64_t tasks;
    const Executor::Task task;
    void* const argument;
    Job* next_job = nullptr;  // under the mutex
    bool parked = false;      // under the mutex: its caller sleeps until active is 0
    // Changed under the mutex; also read by the caller while it spins.
    std::atomic<int> active{0};
    alignas(64) std::atomic<std::int64_t> next{0};
  };

  /// The mutex is held for a few instructions at a time: worth a short spin before the kernel is asked.
  std::unique_lock<std::mutex> take() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    for (int i = 0; !lock.owns_lock() && i < 64; ++i) {
      pause();
      if (lock.try_lock()) break;
    }
    if (!lock.owns_lock()) lock.lock();
    return lock;
  }

  /// Takes the job off the list and waits until no worker is inside it.
  void finish(Job& job) {
    auto lock = take();
    Job** link = &jobs_;
    while (*link != &job) link = &(*link)->next_job;
    *link = job.next_job;
    if (job.active.load(std::memory_order_relaxed) == 0) return;
    lock.unlock();
    for (int i = 0; i < spins_; ++i) {
      if (job.active.load(std::memory_order_acquire) == 0) return;
      pause();
    }
    lock.lock();
    job.parked = true;
    finished_.wait(lock, [&] { return job.active.load(std::memory_order_relaxed) == 0; });
  }

  void work() {
    const FloatEnv environment;
    auto lock = take();
    for (;;) {
      Job* job = jobs_;
      while (job != nullptr && job->exhausted()) job = job->next_job;
      if (job != nullptr) {
        job->active.fetch_add(1, std::memory_order_relaxed);
        lock.unlock();
        job->take_all();
        lock = take();
        leave(*job);
      } else if (stop_) {
        return;
      } else {
        wait_for_work(lock);
      }
    }
  }

  /// Called under the mutex. After the store the caller may be gone, and the job with it.
  void leave(Job& job) {
    const bool parked = job.parked;
    const int active = job.active.load(std::memory_order_relaxed) - 1;
    job.active.store(active, std::memory_order_release);
    if (parked && active == 0) finished_.notify_all();
  }

  void wait_for_work(std::unique_lock<std::mutex>& lock) {
    const std::uint64_t seen = epoch_.load(std::memory_order_relaxed);
    lock.unlock();
    for (int i = 0; i < spins_ && epoch_.load(std::memory_order_acquire) == seen; ++i) pause();
    lock = take();
    ++sleepers_;
    work_.wait(lock, [&] { return epoch_.load(std::memory_order_relaxed) != seen; });
    --sleepers_;
  }

  std::vector<std::thread> workers_;
  int spins_ = 0;
  std::mutex mutex_;
  Condition work_, finished_;
  Job* jobs_ = nullptr;
  int sleepers_ = 0;
  bool stop_ = false;
  alignas(64) std::atomic<std::uint64_t> epoch_{0};  // changes when a job comes, and at the end
};

class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(int threads) : threads_(threads) {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
    if (registered != 0)
      throw Error(Code::out_of_memory, "no memory for a fork handler", "a machine with a little free memory");
    pool_.store(new Pool(threads - 1));
  }
  ~ThreadExecutor() override {
    Pool* pool = pool_.load();
    if (pool->generation == forks.load()) delete pool;  // else its threads are not here to be joined
  }

  int concurrency() const override { return threads_; }
  void run(std::int64_t tasks, Task task, void* argument) override {
    if (tasks == 1 || threads_ == 1) {
      for (std::int64_t i = 0; i < tasks; ++i) task(argument, i);
    } else if (tasks > 1) {
      pool().run(tasks, task, argument);
    }
  }

 private:
  /// The pool, with new workers if this process is a fork of the one that made the last.
  Pool& pool() {
    Pool* pool = pool_.load(std::memory_order_acquire);
    if (pool->generation == forks.load(std::memory_order_relaxed)) return *pool;
    auto fresh = std::make_unique<Pool>(threads_ - 1);
    if (pool_.compare_exchange_strong(pool, fresh.get())) pool = fresh.release();
    return *pool;
  }

  const int threads_;
  std::atomic<Pool*> pool_{nullptr};
};

/// SOFTFOLD_THREADS, or 0 when it is not set: the machine's.
int threads_wanted() {
  const char* text = std::getenv("SOFTFOLD_THREADS");
  if (text == nullptr || *text == '\0') return 0;
  int threads = -1;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), threads);
  if (error != std::errc() || *end != '\0' || threads < 0 || threads > kMostThreads)
    throw Error(Code::option, std::string("SOFTFOLD_THREADS=") + text,
                "a whole number from 0 (the machine's) to " + std::to_string(kMostThreads), "SOFTFOLD_THREADS=0");
  return threads;
}

/// Never destroyed: other threads may still be at work while a process exits.
Executor* make_default() {
  const int threads = threads_wanted();
  if (threads == 1 || (threads == 0 && machine_threads() == 1)) return &serial_executor();
#if defined(SOFTFOLD_WITH_TBB)
  return make_tbb_executor(threads).release();
#else
  return make_thread_executor(threads).release();
#endif
}

}  // namespace

Executor& serial_executor() {
  static SerialExecutor executor;
  return executor;
}

std::unique_ptr<Executor> make_thread_executor(int threads) {
  if (threads < 0 || threads > kMostThreads)
    throw Error(Code::option, std::to_string(threads) + " threads",
                "0 (the machine's) to " + std::to_string(kMostThreads), "0");
  return std::make_unique<ThreadExecutor>(threads == 0 ? machine_threads() : threads);
}

Executor& default_executor() {
  static Executor& executor = *make_default();
  return executor;
}

}  // namespace v0
}  // namespace softfold
