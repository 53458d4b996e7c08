/* The state behind every virtual library: ring, devices, memory, streams, events. */
#define _GNU_SOURCE
#include "virtual.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* ------------------------------------------------------------------ the ring
 * An entry is a kind, what it is about, a stream and a thread. The kind is written last: an entry
 * without one is not filled yet. A stream has the number of its device above bit 32. */
enum { ENTRIES = 65536 };
int64_t virtual_log[ENTRIES][4];
int64_t virtual_log_count;
__thread Thread virtual_thread = {0, 1, 0, ""};

Thread *virtual_state(void) { return &virtual_thread; }

void virtual_note(int kind, int64_t what, Handle stream) {
  int64_t *entry = virtual_log[__sync_fetch_and_add(&virtual_log_count, 1) % ENTRIES];
  entry[1] = what;
  entry[2] = (int64_t)stream | (int64_t)virtual_current() << 32;
  entry[3] = (int64_t)pthread_self();
  __atomic_store_n(&entry[0], kind, __ATOMIC_RELEASE);
}

void virtual_launch(Handle stream, const char *kernel) {
  virtual_thread.launches++;
  virtual_thread.stream = (int64_t)stream;
  virtual_thread.kernel = kernel;
}

/* Names of functions that were called and have no body, so that drift is loud. */
char virtual_missing[8192];

void virtual_miss(const char *name) {
  size_t used = strlen(virtual_missing);
  snprintf(virtual_missing + used, sizeof virtual_missing - used, "%s ", name);
}

/* ------------------------------------------------------------------- devices */
Device virtual_device;

__attribute__((constructor)) static void start(void) {
  Device *d = &virtual_device;
  const char *text = getenv("PERFMODEL_GPU");
  if (text)
    sscanf(text, "%d %d %d %d %d %zu %zu %zu %127[^\n]", &d->count, &d->capability, &d->processors,
           &d->threads, &d->clock_khz, &d->memory, &d->l2, &d->shared_memory, d->name);
}

int virtual_current(void) { return (int)(virtual_thread.device >> 8); }

Status virtual_select(int index) {
  if (index < 0 || index >= virtual_device.count) return INVALID_DEVICE;
  virtual_thread.device = (int64_t)index << 8 | 1;
  return 0;
}

int virtual_blocks(int block) {
  int fit = virtual_device.threads / (block > 0 ? block : 1024);
  return fit > 32 ? 32 : fit;
}

int virtual_attribute(int which) {
  const Device *d = &virtual_device;
  switch (which) {
    case 1: case 2: case 3: return 1024;        /* threads per block, block x, y */
    case 4: return 64;                          /* block z */
    case 5: return 2147483647;                  /* grid x */
    case 6: case 7: return 65535;               /* grid y, z */
    case 8: return 49152;                       /* static shared memory per block */
    case 9: return 65536;                       /* constant memory */
    case 10: return 32;                         /* warp */
    case 12: case 82: return 65536;             /* registers per block, processor */
    case 13: return d->clock_khz;
    case 14: return 512;                        /* texture alignment */
    case 16: return d->processors;
    case 36: return 2619000;                    /* memory clock, kHz */
    case 37: return 5120;                       /* memory bus, bits */
    case 38: return (int)d->l2;
    case 39: return d->threads;
    case 40: return 3;                          /* copy engines */
    case 75: return d->capability / 10;
    case 76: return d->capability % 10;
    case 81: return (int)d->shared_memory;      /* per processor */
    case 97: return (int)d->shared_memory - 1024; /* per block that asks for more: 1 KiB less */
    case 106: return 32;                        /* blocks per processor */
    /* concurrent kernels, one address space, stream priorities, cooperative launch, virtual
     * memory, memory pools, clusters (from Hopper on) */
    case 31: case 41: case 78: case 95: case 102: case 115: return 1;
    case 120: return d->capability >= 90;
    default: return 0;
  }
}

/* -------------------------------------------------------------------- memory
 * Each device owns 4 TiB of addresses, mapped once and not backed by pages until written.
 * Addresses are given out in granules, as a real device does, and not used twice, so that a
 * pointer tells its device; freed pages go back to the machine. */
#define SPACE (4ull << 40)
#define GRANULE (2ull << 20)
#define DEVICES 16

static char *base;
static size_t *sizes; /* of the allocation that starts in each granule */
static size_t top[DEVICES];
static int64_t held[DEVICES];
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

static void *map_nothing(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
  if (p == MAP_FAILED) {
    perror("perfmodel: cannot reserve addresses for virtual GPUs (ulimit -v?)");
    abort();
  }
  return p;
}

int virtual_device_of(const void *address) {
  const char *p = address;
  return base && p >= base && p < base + DEVICES * SPACE ? (int)((size_t)(p - base) / SPACE) : -1;
}

static size_t *size_at(const void *p) { return &sizes[(size_t)((char *)p - base) / GRANULE]; }

static void *take(size_t bytes) { /* memory_lock is held */
  int device = virtual_current();
  if (!base) {
    sizes = map_nothing(DEVICES * SPACE / GRANULE * sizeof *sizes);
    base = map_nothing(DEVICES * SPACE);
  }
  char *p = base + (size_t)device * SPACE + top[device];
  top[device] += (bytes + GRANULE - 1) / GRANULE * GRANULE;
  if (top[device] > SPACE) abort();
  return p;
}

size_t virtual_unused(void) { return virtual_device.memory - (size_t)held[virtual_current()]; }

Status virtual_count(int64_t bytes) {
  pthread_mutex_lock(&memory_lock);
  int is_full = bytes > (int64_t)virtual_unused();
  if (!is_full) held[virtual_current()] += bytes;
  pthread_mutex_unlock(&memory_lock);
  return is_full ? OUT_OF_MEMORY : 0;
}

void *virtual_reserve(size_t bytes) {
  pthread_mutex_lock(&memory_lock);
  void *p = take(bytes);
  pthread_mutex_unlock(&memory_lock);
  return p;
}

Status virtual_allocate(void **address, size_t bytes) {
  size_t whole = (bytes + GRANULE - 1) / GRANULE * GRANULE;
  Status status = virtual_count((int64_t)whole);
  *address = status ? NULL : virtual_reserve(whole);
  if (!status) *size_at(*address) = whole;
  return status;
}

Status virtual_free(void *address) {
  int device = virtual_device_of(address);
  if (device < 0) return 0;
  pthread_mutex_lock(&memory_lock);
  size_t *size = size_at(address);
  held[device] -= (int64_t)*size;
  if (*size) madvise(address, *size, MADV_DONTNEED);
  *size = 0;
  pthread_mutex_unlock(&memory_lock);
  return 0;
}

/* Small copies are made for real, so that integers (tokens, lengths, indices) keep their values;
 * large ones are not, so that weights cost no pages. Nothing is written to large host memory. */
#define REAL_COPY (4u << 20)

void virtual_copy(Handle stream, void *to, const void *from, size_t bytes) {
  virtual_launch(stream, "copy");
  if (bytes <= REAL_COPY || virtual_device_of(to) < 0) memmove(to, from, bytes);
}

void virtual_set(Handle stream, void *to, int value, size_t count, size_t unit) {
  virtual_launch(stream, "set");
  if (count * unit > REAL_COPY) return;
  for (size_t i = 0; i < count; i++) memcpy((char *)to + i * unit, &value, unit);
}

/* --------------------------------------------------------- streams and events
 * A handle is a small number times 16; 0, 1 and 2 are the default streams. A stream belongs to
 * the capture that it began, or to that of an event that it waited for. */
#define HANDLES (1 << 20)
static int last_handle = 16, last_capture;
static int captures[HANDLES];
static int64_t recorded_ns[HANDLES];

static int slot(Handle h) { return (int)(((uintptr_t)h >> 4) % HANDLES); }

Handle virtual_number(void) {
  return (Handle)((uintptr_t)__sync_add_and_fetch(&last_handle, 1) << 4);
}

int virtual_capture(Handle stream) { return captures[slot(stream)]; }

int virtual_begin_capture(Handle stream) {
  return captures[slot(stream)] = __sync_add_and_fetch(&last_capture, 1);
}

int virtual_end_capture(Handle stream) {
  int capture = virtual_capture(stream);
  for (int i = 0; i <= last_handle && i < HANDLES; i++)
    if (captures[i] == capture) captures[i] = 0;
  return capture;
}

void virtual_record(Handle event, Handle stream) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  virtual_note(RECORD, (int64_t)event, stream);
  captures[slot(event)] = virtual_capture(stream);
  recorded_ns[slot(event)] = t.tv_sec * 1000000000ll + t.tv_nsec;
}

void virtual_wait(Handle stream, Handle event) {
  virtual_note(AWAIT, (int64_t)event, stream);
  if (virtual_capture(event)) captures[slot(stream)] = virtual_capture(event);
}

/* The time of the host: the device has no clock. */
double virtual_elapsed_ms(Handle from, Handle to) {
  return (double)(recorded_ns[slot(to)] - recorded_ns[slot(from)]) / 1e6;
}
