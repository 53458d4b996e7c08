/* libnvidia-ml: what scripts and torch ask about devices beside their work. */
#include "virtual.h"

#include <stdio.h>
#include <string.h>

typedef struct {
  unsigned long long total, unused, used;
} Memory;
typedef struct {
  unsigned device, memory; /* percent of the time */
} Use;

ANSWER(nvmlDeviceGetCount_v2, unsigned, (unsigned)virtual_device.count)

/* A device is its index plus one. */
Status nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *device) {
  *device = (Handle)(uintptr_t)(index + 1);
  return index < (unsigned)virtual_device.count ? 0 : 6;
}

Status nvmlDeviceGetName(Handle device, char *name, unsigned size) {
  snprintf(name, size, "%s", virtual_device.name);
  return 0;
}

Status nvmlDeviceGetMemoryInfo(Handle device, Memory *memory) {
  memory->total = virtual_device.memory, memory->unused = virtual_unused();
  memory->used = memory->total - memory->unused;
  return 0;
}

Status nvmlDeviceGetUtilizationRates(Handle device, Use *use) {
  use->device = 100, use->memory = 50;
  return 0;
}

Status nvmlDeviceGetComputeRunningProcesses(Handle device, unsigned *count, void *processes) {
  *count = 0;
  return 0;
}
Status nvmlDeviceGetComputeRunningProcesses_v3(Handle d, unsigned *n, void *p) {
  return nvmlDeviceGetComputeRunningProcesses(d, n, p);
}
