// The pool of a software graph: an allocator behind torch's own CPU allocator.
//
// A recorded launch reads and writes fixed addresses. Temporaries inside operators take part in that, so the pool has to be
// the allocator that operators call, not a layer of Python above it. Each thread chooses what its allocations do:
//
//   OFF     torch's default allocator, untouched
//   RECORD  a block of one pool, best fit, logged while that pool is being captured
//   SCRIPT  the addresses of a recording, in order; another size or count is an error
//   STRAY   torch's default allocator, and the address is remembered: host memory made in the middle of a capture
//
// The interface is plain C for ctypes. A pool is named by a small integer; -1 is never a pool.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

namespace {

constexpr size_t kAlignment = 64;  // what torch's own CPU allocator promises
constexpr int kPoison = 0xFF;      // NaN in every float format, -1 in every integer

enum Mode : int { OFF = 0, RECORD = 1, SCRIPT = 2, STRAY = 3 };
enum Kind : int64_t { FREE = 0, ALLOC = 1 };
enum Streams : int { ONE = 0, FORKED = 1, ON_SIDE = 2 };

struct Event {
  int64_t kind;
  void* ptr;
  size_t nbytes;
};

struct Pool {
  char* base = nullptr;
  size_t capacity = 0;
  size_t used = 0;
  size_t peak = 0;
  bool open = false;
  bool logging = false;
  size_t taken = 0;  // blocks handed out and given back while nothing captures into the pool
  size_t taken_bytes = 0;
  size_t returned = 0;
  Streams streams = ONE;
  size_t floor = 0;                      // while forked: above every block held since the fork
  std::map<size_t, size_t> free_blocks;  // offset -> bytes
  std::map<size_t, size_t> live_blocks;
  std::vector<Event> log;
  std::vector<char> snapshot;
};

struct Script {
  const Event* events = nullptr;
  const size_t* bounds = nullptr;  // per launch: first event to poison, first allocation; then the tail's two bounds
  size_t launches = 0;
  size_t next_launch = 0;
  size_t first = 0;  // this launch's first allocation
  size_t cursor = 0;
  size_t end = 0;
};

std::mutex mutex;
std::vector<std::unique_ptr<Pool>> pools;
std::map<char*, Pool*> pools_by_base;
std::atomic<char*> lowest{reinterpret_cast<char*>(UINTPTR_MAX)};
std::atomic<char*> highest{nullptr};
std::atomic<bool> poisoning{true};
c10::Allocator* default_allocator = nullptr;
c10::DeleterFnPtr default_deleter = nullptr;

thread_local Mode mode = OFF;
thread_local Pool* target = nullptr;
thread_local Script script;
thread_local std::unordered_set<void*> strays;
thread_local size_t stray_bytes = 0;

void poison(void* ptr, size_t nbytes) {
  if (poisoning.load(std::memory_order_relaxed)) std::memset(ptr, kPoison, nbytes);
}

Pool* pool_of(void* ptr) {  // callers hold the mutex
  auto after = pools_by_base.upper_bound(static_cast<char*>(ptr));
  if (after == pools_by_base.begin()) return nullptr;
  Pool* pool = std::prev(after)->second;
  return static_cast<char*>(ptr) < pool->base + pool->capacity ? pool : nullptr;
}

void give_pages_back(Pool& pool) {
  // The address range stays reserved: a stale alias then reads zeros and does not take the process down.
  madvise(pool.base, pool.peak, MADV_DONTNEED);
  pool.peak = 0;
}

void release_block(Pool& pool, void* ptr) {
  size_t offset = static_cast<char*>(ptr) - pool.base;
  auto live = pool.live_blocks.find(offset);
  if (live == pool.live_blocks.end()) return;
  size_t nbytes = live->second;
  pool.live_blocks.erase(live);
  pool.used -= nbytes;
  poison(ptr, nbytes);
  if (pool.logging)
    pool.log.push_back({FREE, ptr, nbytes});
  else
    ++pool.returned;
  auto block = pool.free_blocks.emplace(offset, nbytes).first;
  auto next = std::next(block);
  if (next != pool.free_blocks.end() && block->first + block->second == next->first) {
    block->second += next->second;
    pool.free_blocks.erase(next);
  }
  if (block != pool.free_blocks.begin()) {
    auto previous = std::prev(block);
    if (previous->first + previous->second == block->first) {
      previous->second += block->second;
      pool.free_blocks.erase(block);
    }
  }
  if (!pool.open && pool.live_blocks.empty()) give_pages_back(pool);
}

// A kernel that asks the allocator for raw scratch gives it back with the plain deleter, which cannot tell a scripted block
// from a live one at the same address.
bool is_scripted_scratch(void* ptr) {
  if (mode != SCRIPT) return false;
  for (size_t i = script.first; i < script.cursor; ++i)
    if (script.events[i].ptr == ptr) return true;
  return false;
}

void free_any(void* ptr) {
  if (is_scripted_scratch(ptr)) return;
  char* address = static_cast<char*>(ptr);
  if (address >= lowest.load(std::memory_order_relaxed) && address < highest.load(std::memory_order_relaxed)) {
    std::lock_guard<std::mutex> guard(mutex);
    if (Pool* pool = pool_of(ptr)) return release_block(*pool, ptr);
  }
  default_deleter(ptr);
}

void keep(void*) {}  // a scripted block belongs to its recording

c10::DataPtr take_block(Pool& pool, size_t nbytes) {
  std::lock_guard<std::mutex> guard(mutex);
  size_t rounded = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
  auto best = pool.free_blocks.end();
  size_t skip = 0;  // a side stream reuses nothing that the main stream freed beside it
  for (auto block = pool.free_blocks.begin(); block != pool.free_blocks.end(); ++block) {
    size_t below = pool.streams == ON_SIDE && block->first < pool.floor ? pool.floor - block->first : 0;
    if (block->second < below || block->second - below < rounded) continue;
    if (best == pool.free_blocks.end() || block->second < best->second) best = block, skip = below;
  }
  if (best == pool.free_blocks.end())
    throw std::runtime_error("graph pool exhausted: " + std::to_string(nbytes) + " bytes wanted, " +
                             std::to_string(pool.used) + " of " + std::to_string(pool.capacity) + " in use");
  size_t start = best->first, offset = start + skip, remaining = best->second - skip - rounded;
  pool.free_blocks.erase(best);
  if (skip) pool.free_blocks.emplace(start, skip);
  if (remaining) pool.free_blocks.emplace(offset + rounded, remaining);
  pool.live_blocks[offset] = rounded;
  pool.used += rounded;
  if (offset + rounded > pool.peak) pool.peak = offset + rounded;
  if (offset + rounded > pool.floor) pool.floor = offset + rounded;
  void* ptr = pool.base + offset;
  if (pool.logging) {
    pool.log.push_back({ALLOC, ptr, nbytes});
  } else {
    ++pool.taken;
    pool.taken_bytes += nbytes;
  }
  poison(ptr, rounded);
  return {ptr, ptr, &free_any, c10::Device(c10::DeviceType::CPU)};
}

c10::DataPtr take_scripted(size_t nbytes) {
  if (script.cursor >= script.end)
    throw std::runtime_error("replay wants " + std::to_string(nbytes) + " bytes more than were recorded");
  const Event& event = script.events[script.cursor++];
  if (event.nbytes != nbytes)
    throw std::runtime_error("replay wants " + std::to_string(nbytes) + " bytes where " + std::to_string(event.nbytes) +
                             " were recorded");
  poison(event.ptr, nbytes);
  return {event.ptr, event.ptr, &keep, c10::Device(c10::DeviceType::CPU)};
}

struct PoolAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    if (mode == OFF) return default_allocator->allocate(nbytes);
    if (nbytes == 0) return {nullptr, nullptr, &keep, c10::Device(c10::DeviceType::CPU)};
    if (mode == RECORD) return take_block(*target, nbytes);
    if (mode == SCRIPT) return take_scripted(nbytes);
    c10::DataPtr block = default_allocator->allocate(nbytes);
    strays.insert(block.get());
    stray_bytes += nbytes;
    return block;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { std::memcpy(to, from, nbytes); }
};

PoolAllocator allocator;

}  // namespace

extern "C" {

void arena_install() {
  std::lock_guard<std::mutex> guard(mutex);
  if (default_allocator) return;
  default_allocator = c10::GetCPUAllocator();
  default_deleter = default_allocator->raw_deleter();
  c10::SetCPUAllocator(&allocator, 255);
}

void arena_poison(int on) { poisoning = on != 0; }

// Returns the mode to pass back later: pool * 4 + mode, with pool -1 as 0.
int64_t arena_mode(int64_t encoded) {
  int64_t previous = mode;
  if (mode == RECORD)
    for (size_t id = 0; id < pools.size(); ++id)
      if (pools[id].get() == target) previous += static_cast<int64_t>(id + 1) * 4;
  mode = static_cast<Mode>(encoded % 4);
  target = mode == RECORD ? pools[encoded / 4 - 1].get() : nullptr;
  return previous;
}

int64_t pool_create(size_t capacity) {
  std::lock_guard<std::mutex> guard(mutex);
  for (size_t id = 0; id < pools.size(); ++id) {
    Pool& pool = *pools[id];
    if (pool.open || !pool.live_blocks.empty() || pool.capacity != capacity) continue;
    pool.open = true;
    return static_cast<int64_t>(id);
  }
  void* base = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return -1;
  auto pool = std::make_unique<Pool>();
  pool->base = static_cast<char*>(base);
  pool->capacity = capacity;
  pool->open = true;
  pool->free_blocks[0] = capacity;
  pools_by_base[pool->base] = pool.get();
  if (pool->base < lowest.load()) lowest = pool->base;
  if (pool->base + capacity > highest.load()) highest = pool->base + capacity;
  pools.push_back(std::move(pool));
  return static_cast<int64_t>(pools.size() - 1);
}

void pool_close(int64_t id) {
  std::lock_guard<std::mutex> guard(mutex);
  Pool& pool = *pools[id];
  pool.open = false;
  pool.logging = false;
  std::vector<Event>().swap(pool.log);
  std::vector<char>().swap(pool.snapshot);
  if (pool.live_blocks.empty()) give_pages_back(pool);
}

// The pool that holds `ptr`, or -1.
int64_t pool_find(void* ptr) {
  std::lock_guard<std::mutex> guard(mutex);
  Pool* pool = pool_of(ptr);
  for (size_t id = 0; pool && id < pools.size(); ++id)
    if (pools[id].get() == pool) return static_cast<int64_t>(id);
  return -1;
}

// Whether side streams run beside the main one, and whether what comes next is for a side stream.
void pool_streams(int64_t id, int streams) {
  std::lock_guard<std::mutex> guard(mutex);
  Pool& pool = *pools[id];
  if (pool.streams == ONE && !pool.live_blocks.empty())
    pool.floor = pool.live_blocks.rbegin()->first + pool.live_blocks.rbegin()->second;
  else if (pool.streams == ONE)
    pool.floor = 0;
  pool.streams = static_cast<Streams>(streams);
}

void* pool_base(int64_t id) { return pools[id]->base; }
size_t pool_peak(int64_t id) { return pools[id]->peak; }
size_t pool_used(int64_t id) { return pools[id]->used; }
size_t pool_taken(int64_t id) { return pools[id]->taken; }
size_t pool_taken_bytes(int64_t id) { return pools[id]->taken_bytes; }
size_t pool_returned(int64_t id) { return pools[id]->returned; }

// A capture starts: log from here, and remember every byte that the pool holds.
int pool_capture_begin(int64_t id) {
  std::lock_guard<std::mutex> guard(mutex);
  Pool& pool = *pools[id];
  if (pool.logging) return 0;
  pool.logging = true;
  pool.log.clear();
  pool.snapshot.assign(pool.base, pool.base + pool.peak);
  return 1;
}

// A capture ends: stop the log and give the pool the bytes it had. What it grew by is poisoned.
void pool_capture_end(int64_t id) {
  std::lock_guard<std::mutex> guard(mutex);
  Pool& pool = *pools[id];
  pool.logging = false;
  pool.streams = ONE;
  std::memcpy(pool.base, pool.snapshot.data(), pool.snapshot.size());
  if (pool.peak > pool.snapshot.size()) poison(pool.base + pool.snapshot.size(), pool.peak - pool.snapshot.size());
  std::vector<char>().swap(pool.snapshot);
}

size_t pool_log_size(int64_t id) { return pools[id]->log.size(); }
const Event* pool_log_data(int64_t id) { return pools[id]->log.data(); }

// Fill every free block below the high-water mark, whatever the poison switch says. Returns the bytes filled.
size_t pool_poison_free(int64_t id) {
  std::lock_guard<std::mutex> guard(mutex);
  Pool& pool = *pools[id];
  size_t filled = 0;
  for (auto [offset, nbytes] : pool.free_blocks) {
    if (offset >= pool.peak) continue;
    size_t below = std::min(nbytes, pool.peak - offset);
    std::memset(pool.base + offset, kPoison, below);
    filled += below;
  }
  return filled;
}

// What a kernel with raw scratch does; lets a test have one on every machine.
void use_raw_scratch(size_t nbytes) {
  c10::Allocator* torch_allocator = c10::GetCPUAllocator();
  torch_allocator->raw_deallocate(torch_allocator->raw_allocate(nbytes));
}

void stray_reset() {
  strays.clear();
  stray_bytes = 0;
}
int stray_contains(void* ptr) { return strays.count(ptr) != 0; }
size_t stray_total() { return stray_bytes; }

void replay_begin(const Event* events, const size_t* bounds, size_t launches) {
  script = {events, bounds, launches, 0, 0, 0, 0};
  mode = SCRIPT;
}

// Move to the next launch: poison what was freed before it, then script its allocations. Returns 0 when the launch before
// allocated less than it was recorded with.
int replay_step() {
  bool complete = script.cursor == script.end;
  const size_t* bounds = script.bounds + 2 * script.next_launch;
  bool tail = script.next_launch == script.launches;
  for (size_t i = bounds[0]; i < bounds[1]; ++i) poison(script.events[i].ptr, script.events[i].nbytes);
  script.first = script.cursor = bounds[1];
  script.end = tail ? bounds[1] : bounds[2];
  if (!tail) ++script.next_launch;
  return complete;
}

void replay_end() {
  script = Script();
  mode = OFF;
}

}  // extern "C"
