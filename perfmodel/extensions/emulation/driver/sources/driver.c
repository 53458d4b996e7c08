/* libcuda: what torch calls of the driver itself. */
#define _GNU_SOURCE
#include "virtual.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------- devices and contexts */
NOTHING(cuInit)
ANSWER(cuDriverGetVersion, int, CUDA)
ANSWER(cuDeviceGetCount, int, virtual_device.count)
/* A context is its device's index plus one. */
ANSWER(cuCtxGetCurrent, Handle, (Handle)(uintptr_t)(virtual_current() + 1))

Status cuDeviceGet(int *device, int index) {
  *device = index;
  return 0;
}

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

Status cuCtxSetCurrent(Handle c) { return c ? virtual_select((int)(uintptr_t)c - 1) : 0; }

Status cuGetErrorString(Status status, const char **text) {
  *text = status == OUT_OF_MEMORY ? "out of memory" : "error of the virtual driver";
  return 0;
}

/* ---------------------------------------- kernels that torch compiles: a function is its name */
Status cuModuleLoadData(Handle *module, const void *image) {
  *module = (Handle)image;
  return 0;
}

Status cuModuleGetFunction(char **function, Handle module, const char *name) {
  *function = strdup(name);
  return 0;
}

ANSWER(cuFuncGetAttribute, int, 0)

Status cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, Handle f, int block) {
  *n = virtual_blocks(block);
  return 0;
}

Status cuLaunchKernel(const char *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                      unsigned by, unsigned bz, unsigned shared, Handle stream) {
  virtual_launch(stream, f);
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
