/* libcudart: what torch's own kernels and its allocator call. */
#define _GNU_SOURCE
#include "virtual.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- kernels
 * Every kernel of a library announces itself, by the address of its host function, when the
 * library is loaded: that gives launches their names. */
#define KERNELS (1u << 20)
static struct {
  const void *function;
  const char *name;
} kernels[KERNELS];

static unsigned place_of(const void *function) {
  unsigned i = (unsigned)(((uintptr_t)function >> 4) * 2654435761u) % KERNELS;
  while (kernels[i].function && kernels[i].function != function) i = (i + 1) % KERNELS;
  return i;
}

Handle *__cudaRegisterFatBinary(void *binary) { return calloc(1, 16); }

void __cudaRegisterFunction(Handle *binary, const void *function, char *device, const char *name) {
  unsigned i = place_of(function);
  kernels[i].function = function, kernels[i].name = name;
}

/* A launch in the language's own form: grid and block are pushed, then the kernel's host
 * function takes them back. */
typedef struct {
  Extent grid, block;
  size_t shared;
  Handle stream;
} Launch;

static __thread Launch pushed;

unsigned __cudaPushCallConfiguration(Extent grid, Extent block, size_t shared, Handle stream) {
  pushed = (Launch){grid, block, shared, stream};
  return 0;
}

Status __cudaPopCallConfiguration(Extent *grid, Extent *block, size_t *shared, Handle *stream) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *stream = pushed.stream;
  return 0;
}

Status __cudaGetKernel(const void **kernel, const void *function) {
  *kernel = function;
  return 0;
}

Status cudaLaunchKernelExC(const Launch *launch, const void *f, void **arguments) {
  const char *name = kernels[place_of(f)].name;
  virtual_launch(launch->stream, name ? name : "?");
  return 0;
}

#define LAUNCHES(function)                                                                        \
  Status function(const void *f, Extent grid, Extent block, void **arguments, size_t shared,      \
                  Handle stream) {                                                                \
    Launch launch = {grid, block, shared, stream};                                                \
    return cudaLaunchKernelExC(&launch, f, arguments);                                            \
  }
LAUNCHES(cudaLaunchKernel)
LAUNCHES(__cudaLaunchKernel)
LAUNCHES(cudaLaunchCooperativeKernel)

/* cudaFuncAttributes: three sizes, then numbers. */
Status cudaFuncGetAttributes(size_t *attributes, const void *f) {
  memset(attributes, 0, 144);
  int *numbers = (int *)(attributes + 3);
  numbers[0] = 1024;                                     /* threads per block */
  numbers[1] = 32;                                       /* registers, a usual number */
  numbers[2] = numbers[3] = virtual_device.capability;   /* of the code */
  numbers[5] = virtual_attribute(97);                    /* dynamic shared memory */
  return 0;
}

Status cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int block, size_t s) {
  *n = virtual_blocks(block);
  return 0;
}
Status cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, f, block, 0);
}

NOTHING(__cudaRegisterFatBinaryEnd)
NOTHING(__cudaUnregisterFatBinary)
NOTHING(__cudaRegisterVar)

/* ------------------------------------------------------------------- devices */
ANSWER(cudaGetDeviceCount, int, virtual_device.count)
ANSWER(cudaGetDevice, int, virtual_current())
ANSWER(cudaDriverGetVersion, int, CUDA)
ANSWER(cudaRuntimeGetVersion, int, CUDA)
ANSWER(cudaDeviceCanAccessPeer, int, 1)

Status cudaSetDevice(int index) { return virtual_select(index); }

/* The caller's structure is filled by position: fields move between releases, so the positions
 * are a table of CUDA 13 and not a type. Builds for other releases are refused before they run. */
Status cudaGetDeviceProperties(char *p, int index) {
  memset(p, 0, 1008);
  strcpy(p, virtual_device.name);
  p[256 + 15] = (char)(index + 1); /* uuid */
  static const struct { int at, attribute; } numbers[] = {
      {304, 12}, {308, 10}, {320, 1},  {324, 2},  {328, 3},  {332, 4},  {336, 5},
      {340, 6},  {344, 7},  {360, 75}, {364, 76}, {384, 16}, {560, 31}, {588, 41},
      {592, 37}, {596, 38}, {604, 39}, {632, 82}, {668, 95}, {688, 106}, {720, 115}, {748, 120}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    *(int *)(p + numbers[i].at) = virtual_attribute(numbers[i].attribute);
  static const struct { int at, attribute; } sizes[] = {
      {296, 8}, {352, 9}, {368, 14}, {624, 81}, {672, 97}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    *(size_t *)(p + sizes[i].at) = (size_t)virtual_attribute(sizes[i].attribute);
  *(size_t *)(p + 288) = virtual_device.memory;
  *(int *)(p + 392) = 1;         /* can map host memory */
  *(int *)(p + 568) = index + 1; /* bus */
  return 0;
}

Status cudaDeviceGetAttribute(int *value, int which, int index) {
  *value = virtual_attribute(which);
  return 0;
}

Status cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return 0;
}

Status cudaDeviceGetPCIBusId(char *text, int size, int index) {
  strncpy(text, "0000:00:00.0", (size_t)size);
  text[6] = "0123456789abcdef"[(index + 1) & 15];
  return 0;
}

NOTHING(cudaGetLastError)
NOTHING(cudaPeekAtLastError)
const char *cudaGetErrorString(Status s) {
  return s == OUT_OF_MEMORY ? "out of memory" : s ? "error of the virtual device" : "no error";
}
const char *cudaGetErrorName(Status s) { return cudaGetErrorString(s); }

/* -------------------------------------------------------------------- memory */
Status cudaMalloc(void **p, size_t n) { return virtual_allocate(p, n); }
Status cudaMallocAsync(void **p, size_t n) { return virtual_allocate(p, n); }
Status cudaMallocManaged(void **p, size_t n) { return virtual_allocate(p, n); }
Status cudaFree(void *p) { return virtual_free(p); }
Status cudaFreeAsync(void *p) { return virtual_free(p); }

Status cudaMemGetInfo(size_t *unused, size_t *total) {
  *unused = virtual_unused(), *total = virtual_device.memory;
  return 0;
}

/* Pinned host memory: a list of ranges, so that questions about pointers are answered. */
static struct {
  char *start;
  size_t bytes;
} pins[65536];
static int pin_count;
static pthread_mutex_t pin_lock = PTHREAD_MUTEX_INITIALIZER;

static int pin_of(const void *p) {
  for (int i = 0; i < pin_count; i++)
    if ((char *)p >= pins[i].start && (char *)p < pins[i].start + pins[i].bytes) return i;
  return -1;
}

Status cudaHostRegister(void *p, size_t n, unsigned flags) {
  pthread_mutex_lock(&pin_lock);
  if (pin_count < 65536) pins[pin_count].start = p, pins[pin_count++].bytes = n;
  pthread_mutex_unlock(&pin_lock);
  return 0;
}

Status cudaHostUnregister(void *p) {
  pthread_mutex_lock(&pin_lock);
  int i = pin_of(p);
  if (i >= 0) pins[i] = pins[--pin_count];
  pthread_mutex_unlock(&pin_lock);
  return 0;
}

Status cudaMallocHost(void **p, size_t n) {
  return posix_memalign(p, 4096, n) ? OUT_OF_MEMORY : cudaHostRegister(*p, n, 0);
}
Status cudaHostAlloc(void **p, size_t n) { return cudaMallocHost(p, n); }

Status cudaFreeHost(void *p) {
  cudaHostUnregister(p);
  free(p);
  return 0;
}

Status cudaHostGetDevicePointer(void **device, void *host) {
  *device = host;
  return 0;
}

Status cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, Handle stream) {
  virtual_copy(stream, to, from, n);
  return 0;
}

Status cudaMemcpy(void *to, const void *from, size_t n) {
  virtual_copy(NULL, to, from, n);
  virtual_note(SYNC_STREAM, 0, NULL);
  return 0;
}

Status cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t n, Handle stream) {
  virtual_copy(stream, to, from, n);
  return 0;
}

Status cudaMemcpy2DAsync(char *to, size_t to_pitch, const char *from, size_t from_pitch,
                         size_t width, size_t height, int kind, Handle stream) {
  for (size_t i = 0; i < height; i++)
    virtual_copy(stream, to + i * to_pitch, from + i * from_pitch, width);
  return 0;
}

Status cudaMemsetAsync(void *to, int value, size_t n, Handle stream) {
  virtual_set(stream, to, value, n, 1);
  return 0;
}
Status cudaMemset(void *to, int value, size_t n) { return cudaMemsetAsync(to, value, n, NULL); }

typedef struct {
  int type, device; /* 0 pageable, 1 pinned, 2 of a device */
  void *device_pointer, *host_pointer;
} PointerAttributes;

Status cudaPointerGetAttributes(PointerAttributes *a, const void *p) {
  int device = virtual_device_of(p), is_pinned = device < 0 && pin_of(p) >= 0;
  a->type = is_pinned ? 1 : device < 0 ? 0 : 2;
  a->device = device < 0 ? 0 : device;
  a->device_pointer = a->type ? (void *)p : NULL;
  a->host_pointer = is_pinned ? (void *)p : NULL;
  return 0;
}

ANSWER(cudaGetSymbolAddress, void *, virtual_reserve(4096))

/* --------------------------------------------------------- streams and events
 * All work is done at once, so that every query is answered by success. */
NOTHING(cudaStreamQuery)
NOTHING(cudaStreamDestroy)
NOTHING(cudaEventQuery)
NOTHING(cudaEventDestroy)
ANSWER(cudaStreamCreate, Handle, virtual_number())
ANSWER(cudaStreamCreateWithFlags, Handle, virtual_number())
ANSWER(cudaStreamCreateWithPriority, Handle, virtual_number())
ANSWER(cudaEventCreate, Handle, virtual_number())
ANSWER(cudaEventCreateWithFlags, Handle, virtual_number())

Status cudaStreamGetPriority(Handle stream, int *priority) {
  *priority = 0;
  return 0;
}

Status cudaEventRecord(Handle event, Handle stream) {
  virtual_record(event, stream);
  return 0;
}
Status cudaEventRecordWithFlags(Handle event, Handle stream) { return cudaEventRecord(event, stream); }

Status cudaStreamWaitEvent(Handle stream, Handle event) {
  virtual_wait(stream, event);
  return 0;
}

Status cudaEventElapsedTime(float *ms, Handle from, Handle to) {
  *ms = (float)virtual_elapsed_ms(from, to);
  return 0;
}

Status cudaEventSynchronize(Handle event) {
  virtual_note(SYNC_EVENT, (int64_t)event, NULL);
  return 0;
}

Status cudaStreamSynchronize(Handle stream) {
  virtual_note(SYNC_STREAM, 0, stream);
  return 0;
}

Status cudaDeviceSynchronize(void) {
  virtual_note(SYNC_DEVICE, 0, NULL);
  return 0;
}

Status cudaLaunchHostFunc(Handle stream, void (*function)(void *), void *data) {
  function(data);
  return 0;
}

Status cudaStreamAddCallback(Handle stream, void (*function)(Handle, Status, void *), void *data) {
  function(stream, 0, data);
  return 0;
}

NOTHING(cudaThreadExchangeStreamCaptureMode)

/* -------------------------------------------------------------------- graphs
 * A graph is the number of its capture; what it launches is known to the recorder. */
Status cudaStreamBeginCapture(Handle stream, int mode) {
  virtual_begin_capture(stream);
  return 0;
}

Status cudaStreamIsCapturing(Handle stream, int *status) {
  *status = virtual_capture(stream) ? 1 : 0;
  return 0;
}

Status cudaStreamGetCaptureInfo(Handle stream, int *status, unsigned long long *id, Handle *graph,
                                const Handle **nodes, const Handle **edges, size_t *count) {
  int capture = virtual_capture(stream);
  *status = capture ? 1 : 0;
  if (id) *id = (unsigned long long)capture;
  if (graph) *graph = (Handle)(uintptr_t)capture;
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (count) *count = 0;
  return 0;
}

Status cudaStreamEndCapture(Handle stream, Handle *graph) {
  *graph = (Handle)(uintptr_t)virtual_end_capture(stream);
  return 0;
}

Status cudaGraphInstantiate(Handle *exec, Handle graph) {
  *exec = graph;
  return 0;
}
Status cudaGraphInstantiateWithFlags(Handle *exec, Handle g) { return cudaGraphInstantiate(exec, g); }

Status cudaGraphGetNodes(Handle graph, Handle *nodes, size_t *count) {
  if (!nodes) *count = 1;
  return 0;
}

Status cudaGraphNodeGetDependencies(Handle node, Handle *nodes, Handle *edges, size_t *count) {
  *count = 0;
  return 0;
}

/* ------------------------------------------------ functions asked for by name */
Status cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                        unsigned long long flags, int *result) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  *function = driver ? dlsym(driver, name) : NULL;
  if (result) *result = *function ? 0 : 1;
  return 0;
}

Status cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                               int *result) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, result);
}

ANSWER(cudaLibraryLoadData, Handle, virtual_number())

Status cudaLibraryGetKernel(Handle *kernel, Handle library, const char *name) {
  *kernel = strdup(name);
  __cudaRegisterFunction(NULL, *kernel, NULL, *kernel);
  return 0;
}

/* Limits, such as the device's own heap, are kept and mean nothing. */
static size_t limits[16];
Status cudaDeviceSetLimit(int which, size_t value) {
  limits[which & 15] = value;
  return 0;
}
Status cudaDeviceGetLimit(size_t *value, int which) {
  *value = limits[which & 15];
  return 0;
}
