// An emulated accelerator: torch's PrivateUse1 device over the host's memory, as unkind as the rules of an accelerator allow.
//
// Every stream is a thread with a queue. An op makes its results at once, from the shapes that torch's meta device knows, and puts
// a task into the queue of the current stream that runs the CPU's kernel over the raw bytes; the task keeps no tensor alive.
// Memory belongs to the stream that asked for it and may be used again by that stream as soon as it is freed; it is NaN then.
// Which queue runs late is set by `Order`, so that a missing wait is a wrong result, every time and not by chance.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

namespace emulated {

using Clock = std::chrono::steady_clock;
using torch::jit::Stack;
constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kNumDevices = 2;
constexpr int kMaxStreams = 256;
constexpr int kNan = 0xFF;  // a float of any width of all ones

// ---- streams

// Which queues hold their tasks back until somebody waits for them. The main stream is the one with number 0.
enum Order { kEager, kMainLate, kSideLate, kRandom };
std::atomic<int> order{kEager};
std::atomic<uint64_t> random_seed{0};
constexpr int kQueriesBeforeItRuns = 10;  // who only asks must see an end of it, but not at once
constexpr int kLongestNapMicroseconds = 300;

std::mutex failure_mutex;
std::string failure;  // of a kernel, told when the host waits next

void raise_failure() {
  std::lock_guard<std::mutex> lock(failure_mutex);
  TORCH_CHECK(failure.empty(), "emulated: a kernel failed: ", std::exchange(failure, ""));
}

class Queue {
 public:
  explicit Queue(int stream) : stream_(stream), random_(stream) {
    std::thread([this] { run(); }).detach();
  }
  // Returns the position that is reached when the task has run.
  uint64_t put(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
    return ++num_put_;
  }
  uint64_t end() {
    std::lock_guard<std::mutex> lock(mutex_);
    return num_put_;
  }
  bool reached(uint64_t position) {
    std::lock_guard<std::mutex> lock(mutex_);
    return num_done_ >= position;
  }
  void demand(uint64_t position) {
    std::lock_guard<std::mutex> lock(mutex_);
    num_demanded_ = std::max(num_demanded_, position);
    changed_.notify_all();
  }
  void wait(uint64_t position) {
    demand(position);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return num_done_ >= position; });
  }
  void wait() { wait(end()); }
  void order_changed() { changed_.notify_all(); }

 private:
  bool is_late() const { return order == kMainLate ? stream_ == 0 : order == kSideLate && stream_ != 0; }
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !tasks_.empty() && (num_done_ < num_demanded_ || !is_late()); });
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      if (order == kRandom) nap();
      try {
        task();
      } catch (const c10::Error& error) {
        std::lock_guard<std::mutex> failure_lock(failure_mutex);
        if (failure.empty()) failure = error.what_without_backtrace();
      }
      task = nullptr;
      lock.lock();
      ++num_done_;
      changed_.notify_all();
    }
  }
  void nap() {
    if (seed_ != random_seed) random_.seed((seed_ = random_seed) * kMaxStreams + stream_);
    if (random_() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % kLongestNapMicroseconds));
  }
  const int stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  uint64_t num_put_ = 0, num_done_ = 0, num_demanded_ = 0, seed_ = 0;
  std::mt19937_64 random_;
};

std::mutex queues_mutex;
std::array<std::array<Queue*, kMaxStreams>, kNumDevices> queues{};  // they never end, as a device does not
std::array<int, kNumDevices> num_streams{1, 1};
thread_local int current_device = 0;
thread_local std::array<int, kNumDevices> current_stream{};

Queue& queue_of(int device, int64_t stream) {
  std::lock_guard<std::mutex> lock(queues_mutex);
  auto& queue = queues.at(device).at(stream);
  if (queue == nullptr) queue = new Queue(int(stream));
  return *queue;
}
Queue& queue_of(const c10::Stream& stream) { return queue_of(stream.device_index(), stream.id()); }
Queue& current_queue(int device) { return queue_of(device, current_stream[device]); }

std::vector<Queue*> queues_of(int device) {
  std::lock_guard<std::mutex> lock(queues_mutex);
  std::vector<Queue*> found;
  for (auto* queue : queues.at(device))
    if (queue != nullptr) found.push_back(queue);
  return found;
}
void synchronize(int device) {
  for (auto* queue : queues_of(device)) queue->wait();
  raise_failure();
}

// A place in a queue: what an event is once it has been recorded.
struct Mark {
  Queue* queue;
  uint64_t position;
  std::shared_ptr<Clock::time_point> time = std::make_shared<Clock::time_point>();
  int num_queries = 0;

  explicit Mark(Queue& queue) : queue(&queue) {
    position = queue.put([time = time] { *time = Clock::now(); });
  }
  bool reached() {
    if (++num_queries >= kQueriesBeforeItRuns) queue->demand(position);
    return queue->reached(position);
  }
  void wait() const { queue->wait(position); }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static int index(c10::Device device) { return device.has_index() ? device.index() : current_device; }
  static c10::Stream stream(int device, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, c10::DeviceIndex(device)), id);
  }
  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override { return kNumDevices; }
  c10::Device getDevice() const override { return {kType, c10::DeviceIndex(current_device)}; }
  void setDevice(c10::Device device) const override { current_device = index(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = index(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, c10::DeviceIndex(std::exchange(current_device, index(device)))};
  }
  c10::Stream getStream(c10::Device device) const override { return stream(index(device), current_stream.at(index(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(index(device), 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    std::lock_guard<std::mutex> lock(queues_mutex);
    int number = num_streams.at(index(device))++;
    return stream(index(device), 1 + (number - 1) % (kMaxStreams - 1));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(to.device_index(), std::exchange(current_stream.at(to.device_index()), int(to.id())));
  }
  bool queryStream(const c10::Stream& stream) const override {
    auto& queue = queue_of(stream);
    queue.demand(queue.end());
    return queue.reached(queue.end());
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    queue_of(stream).wait();
    raise_failure();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override { synchronize(device); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    auto mark = std::make_unique<Mark>(queue_of(stream));
    delete static_cast<Mark*>(std::exchange(*event, mark.release()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) queue_of(stream).put([mark = *static_cast<Mark*>(event)] { mark.wait(); });
  }
  bool queryEvent(void* event) const override { return event == nullptr || static_cast<Mark*>(event)->reached(); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) static_cast<Mark*>(event)->wait();
    raise_failure();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Mark*>(event); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    auto *from = static_cast<Mark*>(first), *to = static_cast<Mark*>(second);
    bool both = from && to && from->queue->reached(from->position) && to->queue->reached(to->position);
    TORCH_CHECK(both, "emulated: the time between two events was asked for before both had been reached");
    return std::chrono::duration<double, std::milli>(*to->time - *from->time).count();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override;
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---- device memory

// As CUDA's caching allocator: small blocks come from segments of their own, and of a large one the end is cut off only when it is
// worth it. A segment goes back to the device when all of it is free.
constexpr size_t kGrain = 512, kMiB = 1 << 20;
constexpr size_t kSmall = kMiB, kSmallSegment = 2 * kMiB;
constexpr size_t kMedium = 10 * kMiB, kMediumSegment = 20 * kMiB, kLargeGrain = 2 * kMiB;

size_t round_up(size_t nbytes, size_t grain) { return (nbytes + grain - 1) / grain * grain; }
size_t segment_for(size_t nbytes) {
  return nbytes <= kSmall ? kSmallSegment : nbytes < kMedium ? kMediumSegment : round_up(nbytes, kLargeGrain);
}

struct Block {
  char* data;
  size_t nbytes;
  int device, stream;
  bool is_small;  // the segment is one for small blocks
  bool is_free = true;
  Block *before = nullptr, *after = nullptr;  // its neighbours in the same segment
  std::set<int> readers = {};                 // other streams that were told to the allocator
  std::vector<Mark> waits = {};               // for them, once it has been freed

  bool is_segment() const { return before == nullptr && after == nullptr; }
};
struct BySize {
  bool operator()(const Block* a, const Block* b) const { return std::tie(a->nbytes, a->data) < std::tie(b->nbytes, b->data); }
};

using Pool = std::set<Block*, BySize>;  // free ones

// A caching allocator: memory in use is what is held, and what was freed while another stream may still read it. The capacity is
// for what is in use or, as on a real device, for the segments that have been reserved.
class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    auto* block = nbytes == 0 ? nullptr : take(current_device, current_stream[current_device], nbytes);
    return {block ? block->data : nullptr, block, &Allocator::give_back, {kType, c10::DeviceIndex(current_device)}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override { std::memcpy(to, from, nbytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    for (int device = 0; device < kNumDevices; ++device) return_segments(device);
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    auto* block = static_cast<Block*>(data.get_context());
    if (block != nullptr && stream.id() != block->stream) block->readers.insert(int(stream.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    return stats_.at(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    auto& stats = stats_.at(device);
    for (auto* each : {&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes, &stats.inactive_split_bytes})
      (*each)[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    auto capacity = capacity_.at(device);
    return {size_t(std::max<int64_t>(0, capacity - counted(device))), size_t(capacity)};
  }
  void set_capacity(int device, int64_t nbytes, bool of_segments) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    capacity_.at(device) = nbytes, of_segments_ = of_segments;
  }

 private:
  static void give_back(void* context);

  int64_t counted(int device) {
    return of_segments_ ? stats_.at(device).reserved_bytes[0].current : stats_.at(device).active_bytes[0].current;
  }
  Block* take(int device, int stream, size_t asked_nbytes) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    size_t nbytes = round_up(asked_nbytes, kGrain);
    pool_unread(device, false);
    auto* block = find(device, stream, nbytes);
    if (block == nullptr) {  // as CUDA's allocator: wait for readers, return what is free, try once more
      return_segments(device);
      block = find(device, stream, nbytes);
    }
    auto& stats = stats_.at(device);
    TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "emulated: out of memory: ", nbytes, " bytes asked for, ",
                     stats.active_bytes[0].current, " in use, ", stats.reserved_bytes[0].current, " reserved, of ",
                     capacity_.at(device));
    // whoever may still look at what was freed sees it overwritten in the order of its stream, as the next kernel would do
    queue_of(device, stream).put([data = block->data, n = block->nbytes] { std::memset(data, kNan, n); });
    block->is_free = false;
    stats.allocated_bytes[0].increase(block->nbytes);
    stats.active_bytes[0].increase(block->nbytes);
    return block;
  }
  Block* find(int device, int stream, size_t nbytes) {
    if (!of_segments_ && counted(device) + int64_t(nbytes) > capacity_.at(device)) return nullptr;
    bool is_small = nbytes <= kSmall;
    auto& pool = pools_[{device, stream, is_small}];
    Block least{nullptr, nbytes, device, stream, is_small};
    auto found = pool.lower_bound(&least);
    Block* block = found != pool.end() ? *found : nullptr;
    if (block != nullptr) {
      erase(pool, block);
    } else {
      size_t segment_nbytes = segment_for(nbytes);
      if (of_segments_ && counted(device) + int64_t(segment_nbytes) > capacity_.at(device)) return nullptr;
      auto* data = static_cast<char*>(std::aligned_alloc(4096, segment_nbytes));
      block = new Block{data, segment_nbytes, device, stream, is_small};
      stats_.at(device).reserved_bytes[0].increase(segment_nbytes);
    }
    size_t rest_nbytes = block->nbytes - nbytes;
    if (is_small ? rest_nbytes > 0 : rest_nbytes > kSmall) {
      auto* rest = new Block{block->data + nbytes, rest_nbytes, device, stream, is_small, true, block, block->after};
      if (rest->after != nullptr) rest->after->before = rest;
      block->after = rest, block->nbytes = nbytes;
      insert(pool, rest);
    }
    return block;
  }
  void free(Block* block) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    stats_.at(block->device).allocated_bytes[0].decrease(block->nbytes);
    for (int stream : std::exchange(block->readers, {})) block->waits.emplace_back(queue_of(block->device, stream));
    if (block->waits.empty())
      pool(block);
    else
      still_read_.at(block->device).push_back(block);
  }
  void pool(Block* block) {
    stats_.at(block->device).active_bytes[0].decrease(block->nbytes);
    block->is_free = true;
    auto& pool = pools_[{block->device, block->stream, block->is_small}];
    if (block->after != nullptr && block->after->is_free) merge(pool, block, block->after);
    if (block->before != nullptr && block->before->is_free) {
      auto* before = block->before;
      erase(pool, before);
      merge(pool, before, block);
      block = before;
    }
    insert(pool, block);
  }
  // what is free in a segment that is in use in part can be neither returned nor had for what does not fit there
  void insert(Pool& pool, Block* block) {
    pool.insert(block);
    if (!block->is_segment()) stats_.at(block->device).inactive_split_bytes[0].increase(block->nbytes);
  }
  void erase(Pool& pool, Block* block) {
    if (pool.erase(block) && !block->is_segment()) stats_.at(block->device).inactive_split_bytes[0].decrease(block->nbytes);
  }
  void merge(Pool& pool, Block* block, Block* after) {
    erase(pool, after);
    block->nbytes += after->nbytes, block->after = after->after;
    if (block->after != nullptr) block->after->before = block;
    delete after;
  }
  void pool_unread(int device, bool waits) {
    auto& blocks = still_read_.at(device);
    for (auto at = blocks.begin(); at != blocks.end();) {
      auto& marks = (*at)->waits;
      if (waits) std::for_each(marks.begin(), marks.end(), [](Mark& mark) { mark.wait(); });
      if (std::all_of(marks.begin(), marks.end(), [](Mark& mark) { return mark.queue->reached(mark.position); })) {
        marks.clear();
        pool(*at);
        at = blocks.erase(at);
      } else {
        ++at;
      }
    }
  }
  void return_segments(int device) {
    pool_unread(device, true);
    for (auto* queue : queues_of(device)) queue->wait();
    for (auto& [key, pool] : pools_) {
      for (auto at = pool.begin(); std::get<0>(key) == device && at != pool.end();) {
        auto* block = *at;
        bool is_segment = block->is_segment();
        at = is_segment ? pool.erase(at) : std::next(at);
        if (!is_segment) continue;
        stats_.at(device).reserved_bytes[0].decrease(block->nbytes);
        std::free(block->data);
        delete block;
      }
    }
  }

  std::recursive_mutex mutex_;
  std::map<std::tuple<int, int, bool>, Pool> pools_;  // by device, stream and whether for small blocks
  std::array<std::list<Block*>, kNumDevices> still_read_;
  std::array<c10::CachingDeviceAllocator::DeviceStats, kNumDevices> stats_;
  std::array<int64_t, kNumDevices> capacity_{int64_t(1) << 32, int64_t(1) << 32};
  bool of_segments_ = false;
};

Allocator& allocator() {
  static auto* only = new Allocator();
  return *only;
}
void Allocator::give_back(void* context) {
  if (context != nullptr) allocator().free(static_cast<Block*>(context));
}
void Guard::recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const {
  allocator().recordStream(data, stream);
}

// ---- pinned host memory

struct HostBlock {
  char* data;
  size_t nbytes;
  std::vector<Mark> waits;  // for the copies to and from it
};

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    free_unused();
    TORCH_CHECK(num_pinned_ + int64_t(nbytes) <= capacity_, "emulated: no more host memory can be pinned");
    auto* data = static_cast<char*>(std::aligned_alloc(4096, (nbytes + 4095) / 4096 * 4096));
    std::memset(data, kNan, nbytes);
    num_pinned_ += nbytes;
    sizes_[data] = nbytes;
    return {data, new HostBlock{data, nbytes}, &PinnedAllocator::give_back, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override { std::memcpy(to, from, nbytes); }
  bool record_event(void*, void* context, c10::Stream stream) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (context != nullptr) static_cast<HostBlock*>(context)->waits.emplace_back(queue_of(stream));
    return context != nullptr;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
  bool owns(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = sizes_.upper_bound(static_cast<const char*>(data));
    return found != sizes_.begin() && data < std::prev(found)->first + std::prev(found)->second;
  }
  void set_capacity(int64_t nbytes) { capacity_ = nbytes; }

 private:
  static void give_back(void* context);
  void free_unused() {
    for (auto at = freed_.begin(); at != freed_.end();) {
      auto* block = *at;
      bool unused = std::all_of(block->waits.begin(), block->waits.end(), [](Mark& mark) { return mark.reached(); });
      at = unused ? freed_.erase(at) : std::next(at);
      if (!unused) continue;
      std::memset(block->data, kNan, block->nbytes);
      sizes_.erase(block->data);
      num_pinned_ -= block->nbytes;
      std::free(block->data);
      delete block;
    }
  }
  std::mutex mutex_;
  std::map<const char*, size_t> sizes_;
  std::list<HostBlock*> freed_;
  int64_t num_pinned_ = 0;
  std::atomic<int64_t> capacity_{int64_t(1) << 40};
};

PinnedAllocator& pinned() {
  static auto* only = new PinnedAllocator();
  return *only;
}
void PinnedAllocator::give_back(void* context) {
  std::lock_guard<std::mutex> lock(pinned().mutex_);
  pinned().freed_.push_back(static_cast<HostBlock*>(context));
  pinned().free_unused();
}

// ---- random numbers

// As on an accelerator, the state is a seed and an offset: calling an op moves the offset on, whenever its kernel runs.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex index)
      : GeneratorImpl({kType, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  static c10::DeviceType device_type() { return kType; }
  void set_current_seed(uint64_t seed) override { state = {seed, 0}; }
  void set_offset(uint64_t offset) override { state[1] = offset; }
  uint64_t get_offset() const override { return state[1]; }
  uint64_t current_seed() const override { return state[0]; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state[0];
  }
  void set_state(const c10::TensorImpl& from) override { std::memcpy(state.data(), from.data(), sizeof(state)); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto tensor = at::detail::empty_cpu({sizeof(state)}, at::kByte);
    std::memcpy(tensor.data_ptr(), state.data(), sizeof(state));
    return tensor.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device_.index());
    copy->state = state;
    return copy;
  }
  std::array<uint64_t, 2> state{c10::default_rng_seed_val, 0};
};

const at::Generator& default_generator(int device) {
  static auto* all = new std::array<at::Generator, kNumDevices>{at::make_generator<Generator>(0), at::make_generator<Generator>(1)};
  return all->at(device < 0 ? current_device : device);
}

// The CPU's generator for one call of an op.
at::Generator generator_for_call(const c10::IValue& given, int device) {
  const auto& generator = given.isGenerator() ? given.toGenerator() : default_generator(device);
  auto& state = generator.get<Generator>()->state;
  std::seed_seq mixed{uint32_t(state[0]), uint32_t(state[0] >> 32), uint32_t(++state[1])};
  return at::detail::createCPUGenerator(std::mt19937_64(mixed)());
}

// ---- what torch asks of a back end

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return kNumDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  c10::DeviceIndex getCurrentDevice() const override { return c10::DeviceIndex(current_device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return c10::DeviceIndex(std::exchange(current_device, int(device)));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return at::make_generator<Generator>(device); }
  bool isPinnedPtr(const void* data) const override { return pinned().owns(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    c10::DeviceGuard guard(storage.device());
    auto* impl = storage.unsafeGetStorageImpl();
    auto fresh = allocator().allocate(nbytes);
    if (size_t kept = std::min(nbytes, impl->nbytes()))
      current_queue(current_device).put([to = fresh.get(), from = impl->data(), kept] { std::memcpy(to, from, kept); });
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(nbytes);
  }
};

// ---- kernels

bool is_here(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

// The same bytes as a tensor of the CPU that keeps nothing alive.
at::Tensor over_bytes(const at::Tensor& tensor) {
  const auto& block = tensor.storage();
  c10::Storage storage(c10::Storage::use_byte_size_t(), block.nbytes(),
                       c10::DataPtr(const_cast<void*>(block.data()), c10::DeviceType::CPU), nullptr, false);
  auto out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  out.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.is_conj()) out._set_conj(true);
  if (tensor.is_neg()) out._set_neg(true);
  return out;
}
at::Tensor keep_number(const at::Tensor& from, at::Tensor to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) to.unsafeGetTensorImpl()->set_wrapped_number(true);
  return to;
}
at::Tensor as_cpu(const at::Tensor& tensor) {  // what is on the CPU already goes along by value
  return tensor.defined() ? keep_number(tensor, is_here(tensor) ? over_bytes(tensor) : tensor.clone()) : tensor;
}
at::Tensor as_meta(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return keep_number(tensor, at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
}
at::Tensor empty_as(const at::Tensor& meta, int device) {
  if (!meta.defined()) return meta;
  return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(c10::Device(kType, c10::DeviceIndex(device))));
}

template <class Change>
c10::IValue map_tensors(const c10::IValue& value, c10::DeviceType device, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isDevice() && value.toDevice().type() == kType) return c10::Device(device);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& tensor : value.toTensorVector()) list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(change(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}
std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  std::vector<at::Tensor> found;
  map_tensors(value, kType, [&](const at::Tensor& tensor) { return found.push_back(tensor), tensor; });
  return found;
}

void call(const c10::OperatorHandle& op, Stack& stack, bool grad_enabled) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::AutoGradMode mode(grad_enabled);
  op.callBoxed(&stack);
}

bool is_generator(const c10::Argument& argument) {
  auto optional = argument.type()->cast<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

// For every result of an op the argument that it is, or -1 for a new tensor.
std::vector<int> find_written(const c10::FunctionSchema& schema) {
  std::vector<int> found;
  for (const auto& result : schema.returns()) {
    found.push_back(-1);
    for (size_t i = 0; result.alias_info() && i < schema.arguments().size(); ++i) {
      const auto* info = schema.arguments()[i].alias_info();
      if (info && info->beforeSet() == result.alias_info()->beforeSet()) found.back() = int(i);
    }
    bool is_view = found.back() >= 0 && !schema.arguments()[found.back()].alias_info()->isWrite();
    TORCH_CHECK(!is_view || schema.name().rfind("aten::_foreach", 0) == 0, "emulated: no kernel for the view ", schema.name());
  }
  return found;
}

// The device of the tensors among an op's arguments; on another one, only numbers and indices may be.
int find_device(const c10::FunctionSchema& schema, const Stack& args) {
  int device = -1;
  for (const auto& arg : args)
    for (const auto& tensor : tensors_in(arg))
      if (is_here(tensor) && device < 0) device = tensor.device().index();
  for (const auto& arg : args)
    for (const auto& tensor : tensors_in(arg)) {
      bool fits = !tensor.defined() || (is_here(tensor) ? tensor.device().index() == device : tensor.dim() == 0);
      TORCH_CHECK(fits || schema.name().rfind("aten::index", 0) == 0, schema.name(), ": expected all tensors on the same device");
    }
  return device < 0 ? current_device : device;
}

// What the op would return on the meta device; nothing where that is not known before it has run.
std::optional<Stack> find_results(const c10::OperatorHandle& op, const Stack& args) {
  static std::mutex mutex;
  static std::set<std::string> unknown;
  const auto name = c10::toString(op.operator_name());
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (unknown.count(name)) return {};
  }
  Stack metas;
  for (size_t i = 0; i < args.size(); ++i) {
    bool generator = is_generator(op.schema().arguments()[i]);
    metas.push_back(generator ? c10::IValue() : map_tensors(args[i], c10::DeviceType::Meta, as_meta));
  }
  try {
    op.callBoxed(&metas);
    if (std::all_of(metas.begin(), metas.end(), [](auto& meta) { return meta.isTensor() || meta.isTensorList(); })) return metas;
  } catch (const std::exception&) {
  }
  std::lock_guard<std::mutex> lock(mutex);
  unknown.insert(name);
  return {};
}

// Any op that has no kernel of its own here.
void run_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  Stack args(stack->end() - schema.arguments().size(), stack->end());
  torch::jit::drop(*stack, args.size());
  int device = find_device(schema, args);
  c10::DeviceGuard guard(c10::Device(kType, c10::DeviceIndex(device)));
  auto written = find_written(schema);
  bool all_given = std::all_of(written.begin(), written.end(), [](int arg) { return arg >= 0; });
  auto is_unsized = [&](size_t i) { return schema.arguments()[i].is_out() && args[i].isTensor() && args[i].toTensor().numel() == 0; };
  bool known = true;
  for (size_t i = 0; i < args.size(); ++i) known = known && !is_unsized(i);
  std::optional<Stack> metas = known && !all_given ? find_results(op, args) : std::nullopt;
  known = known && (all_given || metas);

  Stack inputs;
  for (size_t i = 0; i < args.size(); ++i) {
    if (is_generator(schema.arguments()[i]))
      inputs.push_back(generator_for_call(args[i], device));
    else if (is_unsized(i))
      inputs.push_back(at::empty({0}, args[i].toTensor().options().device(c10::kCPU)));
    else
      inputs.push_back(map_tensors(args[i], c10::DeviceType::CPU, as_cpu));
  }
  bool grad_enabled = at::GradMode::is_enabled();
  auto& queue = current_queue(device);

  if (!known) {  // the host waits, and makes the results of what the kernel returned
    queue.wait();
    raise_failure();
    call(op, inputs, grad_enabled);
    auto move_here = [&](const at::Tensor& result) { return result.defined() ? result.to(guard.current_device()) : result; };
    for (size_t i = 0; i < written.size(); ++i) {
      if (written[i] >= 0 && is_unsized(written[i])) {
        auto out = args[written[i]].toTensor();
        out.resize_(inputs[i].toTensor().sizes()).copy_(inputs[i].toTensor());
      }
      stack->push_back(written[i] >= 0 ? args[written[i]] : map_tensors(inputs[i], kType, move_here));
    }
    return;
  }

  std::vector<std::vector<at::Tensor>> targets(written.size());
  for (size_t i = 0; i < written.size(); ++i) {
    auto make = [&](const at::Tensor& meta) { return empty_as(meta, device); };
    stack->push_back(written[i] >= 0 ? args[written[i]] : map_tensors((*metas)[i], kType, make));
    if (written[i] < 0)
      for (const auto& made : tensors_in(stack->back())) targets[i].push_back(as_cpu(made));
  }
  queue.put([op, inputs = std::move(inputs), targets = std::move(targets), grad_enabled]() mutable {
    call(op, inputs, grad_enabled);
    for (size_t i = 0; i < targets.size(); ++i) {
      auto results = targets[i].empty() ? targets[i] : tensors_in(inputs[i]);
      for (size_t j = 0; j < targets[i].size(); ++j)
        // a CPU kernel may leave a result empty that the meta device gives a size
        if (targets[i][j].defined() && results[j].defined() && results[j].numel() > 0) targets[i][j].copy_(results[j]);
    }
  });
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &allocator(), keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &allocator(), keys, c10::dtype_or_default(dtype));
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  size_t nbytes = (c10::multiply_integers(size) + impl->storage_offset()) * self.element_size();
  if (nbytes > self.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), nbytes);
  impl->set_sizes_contiguous(size);
  return self;
}

at::Tensor copy_tensor(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.sizes() != to.sizes()) return copy_tensor(from.expand(to.sizes()), to, non_blocking);
  if (is_here(from) && is_here(to) && from.device() != to.device()) current_queue(from.device().index()).wait();
  int device = (is_here(to) ? to : from).device().index();
  bool on_device = is_here(from) && is_here(to);
  const auto& host = is_here(to) ? from : to;
  auto& queue = current_queue(device);
  queue.put([source = over_bytes(from), target = over_bytes(to)] {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    target.copy_(source);
  });
  if (on_device && from.device() == to.device()) return to;
  if (!on_device && non_blocking && pinned().owns(host.storage().data())) {
    const auto& data = host.storage().data_ptr();
    pinned().record_event(data.get(), data.get_context(), Guard::stream(device, current_stream[device]));
    return to;
  }
  queue.wait();
  raise_failure();
  return to;
}

at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) { return copy_tensor(from, to.resize_(from.sizes()), false); }

at::Scalar read_number(const at::Tensor& self) {
  current_queue(self.device().index()).wait();
  raise_failure();
  return over_bytes(self).item();
}

at::Tensor& set_to_nothing(at::Tensor& self) {
  c10::DeviceGuard guard(self.device());
  return self.set_(c10::Storage(c10::Storage::use_byte_size_t(), 0, allocator().allocate(0), &allocator(), true), 0, {0}, {});
}

void record_stream(at::Tensor& self, at::Stream stream) { allocator().recordStream(self.storage().data_ptr(), stream); }

// The CPU's own has no argument for a generator.
std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  bool drops = train.value_or(true) && p > 0;
  auto generator = drops ? generator_for_call({}, input.device().index()) : at::Generator();  // moved on, memory or not
  auto out = at::empty_like(input), mask = at::empty_like(input, input.options().dtype(at::kBool));
  current_queue(input.device().index()).put([=, from = over_bytes(input), to = over_bytes(out), kept = over_bytes(mask)]() mutable {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    drops ? kept.bernoulli_(1 - p, generator) : kept.fill_(true);
    to.copy_(from.mul(kept).mul_(!drops ? 1 : p == 1 ? 0 : 1 / (1 - p)));
  });
  return {out, mask};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::native;
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided_tensorimpl);
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&view));
  m.impl("_reshape_alias", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef, at::IntArrayRef)>(&_reshape_alias));
  m.impl("unfold", &unfold);
  m.impl("view_as_real", &view_as_real);
  m.impl("view_as_complex", &view_as_complex);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&set_));
  m.impl("set_.source_Storage_storage_offset", &set_storage_cpu_);
  m.impl("set_.source_Tensor", &set_tensor_);
  m.impl("set_", &set_to_nothing);
  m.impl("_copy_from", &copy_tensor);
  m.impl("_copy_from_and_resize", &copy_and_resize);
  m.impl("_local_scalar_dense", &read_number);
  m.impl("record_stream", &record_stream);
  m.impl("native_dropout", &dropout);
  // torch would take these apart for a device that has no kernels for them
  for (const char* name : {"convolution", "convolution_backward", "native_layer_norm", "native_group_norm"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

// a copy carries out a conjugate or a negative by itself
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

using namespace at::autocast;
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FULL(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FULL_BY_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(FULL)
  AT_FORALL_FP32_SET_OPT_DTYPE(FULL_BY_DTYPE)
  AT_FORALL_PROMOTE(WIDEST)
}

static bool is_registered = [] {
  c10::SetAllocator(kType, &allocator());
  at::setHostAllocator(kType, &pinned());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace emulated

// ---- what the tests set; see accelerator.py

extern "C" {
int emulated_current_device() { return emulated::current_device; }
void emulated_set_device(int device) { emulated::current_device = device; }
void emulated_set_capacity(int device, int64_t nbytes, bool of_segments) {
  emulated::allocator().set_capacity(device, nbytes, of_segments);
}
void emulated_set_pinned_capacity(int64_t nbytes) { emulated::pinned().set_capacity(nbytes); }
void emulated_set_order(int order, uint64_t seed) {
  emulated::random_seed = seed, emulated::order = order;
  for (int device = 0; device < emulated::kNumDevices; ++device)
    for (auto* queue : emulated::queues_of(device)) queue->order_changed();
}
void emulated_rng_state(int device, uint64_t* state, bool set) {
  auto& own = emulated::default_generator(device).get<emulated::Generator>()->state;
  std::memcpy(set ? own.data() : state, set ? state : own.data(), sizeof(own));
}
}
