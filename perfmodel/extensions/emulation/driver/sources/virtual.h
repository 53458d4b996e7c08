/* What all virtual libraries share: the ring of calls, the devices and their memory.
 *
 * Every declaration here is our own and no header of a vendor is included anywhere. Signatures,
 * numbers of attributes and positions of fields are facts of CUDA's binary interface: signatures
 * and numbers are those of the public API reference of CUDA 13 (the older ones have not changed
 * since CUDA 11), positions were found by printing offsets with its toolkit. */
#ifndef VIRTUAL_H
#define VIRTUAL_H

#include <stddef.h>
#include <stdint.h>

typedef void *Handle; /* any opaque object of an API */
typedef int Status;   /* 0 is success in every one of them */

typedef struct {
  unsigned x, y, z;
} Extent; /* grid or block */

enum { OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_FOUND = 500 };

/* A function whose first argument points to its answer, and one that has nothing to do. */
#define ANSWER(name, type, value) \
  Status name(type *answer) {     \
    *answer = (value);            \
    return 0;                     \
  }
#define NOTHING(name) \
  Status name(void) { return 0; }

/* ---- the ring: what the recorder in Python reads, in order; the first five are its own numbers */
enum { RECORD = 1, AWAIT, SYNC_STREAM, SYNC_EVENT, SYNC_DEVICE, COLLECTIVE };
void virtual_note(int kind, int64_t what, Handle stream);
void virtual_launch(Handle stream, const char *kernel);

/* What a thread did last; the recorder reads it between two operators. */
typedef struct {
  int64_t launches, device, stream; /* the device is shifted by 8 bits */
  const char *kernel;
} Thread;
extern __thread Thread virtual_thread;

/* ---- devices, described by the variable PERFMODEL_GPU */
typedef struct {
  int count, capability, processors, threads, clock_khz;
  size_t memory, l2, shared_memory;
  char name[128];
} Device;
extern Device virtual_device;
int virtual_current(void); /* index of the thread's device */
Status virtual_select(int index);
int virtual_attribute(int which); /* CUdevice_attribute and cudaDeviceAttr number alike */
int virtual_blocks(int block);    /* blocks of so many threads that fit on a processor */

/* ---- memory: addresses that read as zero until something is written */
int virtual_device_of(const void *address); /* -1 for host memory */
Status virtual_allocate(void **address, size_t bytes);
Status virtual_free(void *address);
void *virtual_reserve(size_t bytes); /* addresses only, not counted */
Status virtual_count(int64_t bytes); /* count bytes against the device's capacity */
size_t virtual_unused(void);
void virtual_copy(Handle stream, void *to, const void *from, size_t bytes);
void virtual_set(Handle stream, void *to, int value, size_t count, size_t unit);

/* ---- streams, events and captures are numbers */
Handle virtual_number(void);
int virtual_capture(Handle stream);
int virtual_begin_capture(Handle stream);
int virtual_end_capture(Handle stream);
void virtual_record(Handle event, Handle stream);
void virtual_wait(Handle stream, Handle event);
double virtual_elapsed_ms(Handle from, Handle to);

#endif
