/* libcuda: what Triton's launcher and torch's calls of the driver use. */
#define _GNU_SOURCE
#include "virtual.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------- devices and contexts */
NOTHING(cuInit)
NOTHING(cuLogsRegisterCallback)
ANSWER(cuDriverGetVersion, int, CUDA)
ANSWER(cuDeviceGetCount, int, virtual_device.count)
ANSWER(cuCtxGetDevice, int, virtual_current())
/* A context is its device's index plus one. */
ANSWER(cuCtxGetCurrent, Handle, (Handle)(uintptr_t)(virtual_current() + 1))

Status cuDeviceGet(int *device, int index) {
  *device = index;
  return 0;
}

Status cuDeviceGetName(char *name, int size, int device) {
  snprintf(name, (size_t)size, "%s", virtual_device.name);
  return 0;
}

Status cuDeviceGetUuid_v2(char *uuid, int device) {
  memset(uuid, 0, 16);
  uuid[15] = (char)(device + 1);
  return 0;
}
Status cuDeviceGetUuid(char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

ANSWER(cuDeviceTotalMem_v2, size_t, virtual_device.memory)

Status cuDeviceGetAttribute(int *value, int which, int device) {
  *value = virtual_attribute(which);
  return 0;
}

Status cuDevicePrimaryCtxRetain(Handle *context, int device) {
  *context = (Handle)(uintptr_t)(device + 1);
  return 0;
}

Status cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0, *active = 1;
  return 0;
}

Status cuCtxPopCurrent(Handle *context) { return context ? cuCtxGetCurrent(context) : 0; }
Status cuStreamGetCtx(Handle stream, Handle *context) { return cuCtxGetCurrent(context); }
Status cuCtxSetCurrent(Handle c) { return c ? virtual_select((int)(uintptr_t)c - 1) : 0; }
Status cuCtxPushCurrent(Handle context) { return cuCtxSetCurrent(context); }

Status cuGetErrorString(Status status, const char **text) {
  *text = status == OUT_OF_MEMORY ? "out of memory" : "error of the virtual driver";
  return 0;
}

/* ------------------------------------------------------------------- modules
 * A function is its name and the image that it came from. */
typedef struct {
  char *name;
  const char *image;
} Function;

Status cuModuleLoadData(Handle *module, const void *image) {
  *module = (Handle)image;
  return 0;
}
Status cuModuleLoadDataEx(Handle *module, const void *image) { return cuModuleLoadData(module, image); }
Status cuLibraryLoadData(Handle *module, const void *image) { return cuModuleLoadData(module, image); }

Status cuModuleLoad(Handle *module, const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) return NOT_FOUND;
  fseek(file, 0, SEEK_END);
  size_t n = (size_t)ftell(file);
  rewind(file);
  *module = malloc(n);
  n = fread(*module, 1, n, file);
  fclose(file);
  return n ? 0 : NOT_FOUND;
}

Status cuModuleGetFunction(Handle *function, Handle module, const char *name) {
  Function *f = malloc(sizeof *f);
  f->name = strdup(name), f->image = module;
  *function = f;
  return 0;
}
Status cuLibraryGetKernel(Handle *kernel, Handle library, const char *name) {
  return cuModuleGetFunction(kernel, library, name);
}
Status cuKernelGetFunction(Handle *function, Handle kernel) {
  *function = kernel;
  return 0;
}

/* Registers per thread are written in a cubin: the section .text.NAME has them in the upper byte
 * of its sh_info. Static shared memory is the size of .nv.shared.NAME. Both are the compiler's own
 * answers, read from its ELF file. */
static const Elf64_Shdr *section(const Function *f, const char *prefix) {
  const Elf64_Ehdr *elf = (const void *)f->image;
  if (!elf || memcmp(elf->e_ident, ELFMAG, SELFMAG)) return NULL;
  const Elf64_Shdr *all = (const void *)(f->image + elf->e_shoff);
  const char *names = f->image + all[elf->e_shstrndx].sh_offset;
  for (int i = 0; i < elf->e_shnum; i++) {
    const char *name = names + all[i].sh_name;
    if (!strncmp(name, prefix, strlen(prefix)) && !strcmp(name + strlen(prefix), f->name))
      return &all[i];
  }
  return NULL;
}

Status cuFuncGetAttribute(int *value, int which, const Function *f) {
  const Elf64_Shdr *s = section(f, which == 1 ? ".nv.shared." : ".text.");
  switch (which) {
    case 0: *value = 1024; break;                             /* threads per block */
    case 1: *value = s ? (int)s->sh_size : 0; break;          /* static shared memory */
    case 4: *value = s ? (int)(s->sh_info >> 24) : 32; break; /* registers */
    case 8: *value = virtual_attribute(97); break;            /* dynamic shared memory */
    default: *value = 0;
  }
  return 0;
}
Status cuKernelGetAttribute(int *value, int which, const Function *f) {
  return cuFuncGetAttribute(value, which, f);
}

Status cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, Handle f, int block) {
  *n = virtual_blocks(block);
  return 0;
}
ANSWER(cuOccupancyMaxActiveClusters, int, virtual_device.processors / 2)

/* ------------------------------------------------------------------ launches */
typedef struct {
  Extent grid, block;
  unsigned shared;
  Handle stream;
} Launch;

Status cuLaunchKernelEx(const Launch *launch, const Function *f) {
  virtual_launch(launch->stream, f->name);
  return 0;
}

Status cuLaunchKernel(const Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                      unsigned by, unsigned bz, unsigned shared, Handle stream) {
  virtual_launch(stream, f->name);
  return 0;
}
Status cuLaunchCooperativeKernel(const Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                 unsigned by, unsigned bz, unsigned shared, Handle stream) {
  virtual_launch(stream, f->name);
  return 0;
}

/* -------------------------------------------------------------------- memory */
Status cuPointerGetAttribute(void *value, int which, uintptr_t pointer) {
  int device = virtual_device_of((void *)pointer);
  if (device < 0) return 1; /* host memory that was never registered */
  switch (which) {
    case 1: *(uintptr_t *)value = (uintptr_t)device + 1; break; /* context */
    case 2: *(int *)value = 2; break;                           /* of a device */
    case 3: *(uintptr_t *)value = pointer; break;
    case 9: *(int *)value = device; break;
    default: *(int *)value = 0;
  }
  return 0;
}

Status cuMemAlloc_v2(void **p, size_t n) { return virtual_allocate(p, n); }
Status cuMemFree_v2(void *p) { return virtual_free(p); }

Status cuMemGetInfo_v2(size_t *unused, size_t *total) {
  *unused = virtual_unused(), *total = virtual_device.memory;
  return 0;
}

Status cuMemsetD32Async(void *p, unsigned value, size_t n, Handle stream) {
  virtual_set(stream, p, (int)value, n, 4);
  return 0;
}
Status cuMemsetD8Async(void *p, unsigned char value, size_t n, Handle stream) {
  virtual_set(stream, p, value, n, 1);
  return 0;
}

/* Virtual memory (expandable segments): addresses are free, pages are counted. */
ANSWER(cuMemGetAllocationGranularity, size_t, 2u << 20)

Status cuMemAddressReserve(void **p, size_t n) {
  *p = virtual_reserve(n);
  return 0;
}

Status cuMemCreate(size_t *handle, size_t bytes) {
  *handle = bytes;
  return virtual_count((int64_t)bytes);
}

Status cuMemRelease(size_t handle) { return virtual_count(-(int64_t)handle); }

/* ------------------------------------------------------------------- by name */
Status cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
  char text[128];
  *function = dlsym(RTLD_DEFAULT, name);
  for (int i = 3; i > 1 && !*function; i--) {
    snprintf(text, sizeof text, "%s_v%d", name, i);
    *function = dlsym(RTLD_DEFAULT, text);
  }
  if (found) *found = *function ? 0 : 1;
  return *function ? 0 : NOT_FOUND;
}
