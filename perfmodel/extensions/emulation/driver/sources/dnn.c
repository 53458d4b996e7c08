/* libcudnn: the graph API (convolutions, attention) keeps what it is told and gives it back; the
 * older API for batch norm answers sizes. A plan that runs is a launch. */
#include "virtual.h"

#include <stdlib.h>
#include <string.h>

static __thread Handle current_stream;
static char handle;

ANSWER(cudnnCreate, Handle, &handle)
Status cudnnSetStream(Handle h, Handle stream) {
  current_stream = stream;
  return 0;
}
Status cudnnGetStream(Handle h, Handle *stream) {
  *stream = current_stream;
  return 0;
}
/* The release that torch was built against, as its package states it: 92600 is 9.26.0. */
size_t cudnnGetVersion(void) { return CUDNN; }
Status cudnnGetProperty(int which, int *value) {
  int parts[] = {CUDNN / 10000, CUDNN / 100 % 100, CUDNN % 100};
  *value = parts[which];
  return 0;
}
size_t cudnnGetCudartVersion(void) { return CUDA; }
const char *cudnnGetErrorString(Status s) { return s ? "error of the virtual library" : "success"; }

/* ----------------------------------------------------------------- graph API */
typedef struct {
  int name, type;
  int64_t count;
  char *values;
} Attribute;

typedef struct {
  int kind, used;
  Attribute attributes[40];
} Descriptor;

enum { INT64 = 3, DESCRIPTOR = 15, INT32 = 23 }; /* cudnnBackendAttributeType_t */

static size_t size_of(int type) { /* of one value of an attribute */
  switch (type) {
    case 0: case 3: case 4: case 6: case 15: return 8; /* handle, int64, double, pointer, descriptor */
    case 2: case 26: return 1;                         /* bool, char */
    case 25: return 16;                                /* fraction */
    default: return 4;                                 /* float and enumerations */
  }
}

Status cudnnBackendCreateDescriptor(int kind, Descriptor **out) {
  *out = calloc(1, sizeof **out);
  (*out)->kind = kind;
  return 0;
}
NOTHING(cudnnBackendDestroyDescriptor) /* plans still refer to it */
NOTHING(cudnnBackendFinalize)

Status cudnnBackendSetAttribute(Descriptor *d, int name, int type, int64_t count, const void *values) {
  int i = 0;
  while (i < d->used && d->attributes[i].name != name) i++;
  if (i == 40) return 1;
  if (i == d->used) d->used++;
  Attribute *a = &d->attributes[i];
  a->name = name, a->type = type, a->count = count;
  a->values = realloc(a->values, (size_t)count * size_of(type) + 1);
  memcpy(a->values, values, (size_t)count * size_of(type));
  return 0;
}

/* What was set is given back. A heuristic proposes one engine, without knobs or notes; numbers
 * that nobody set are 0. */
enum { HEURISTIC_RESULTS = 202, CONFIG_ENGINE = 300 };

Status cudnnBackendGetAttribute(Descriptor *d, int name, int type, int64_t room, int64_t *count,
                                void *values) {
  for (int i = 0; i < d->used; i++) {
    Attribute *a = &d->attributes[i];
    if (a->name != name || a->type != type) continue;
    if (count) *count = a->count;
    if (values && room)
      memcpy(values, a->values, (size_t)(a->count < room ? a->count : room) * size_of(type));
    return 0;
  }
  int is_one = type == INT64 || type == INT32;
  int is_known = type == DESCRIPTOR && (name == HEURISTIC_RESULTS || name == CONFIG_ENGINE);
  if (count) *count = is_one || is_known;
  if (values && room && is_one) memset(values, 0, size_of(type));
  return 0;
}

#define LAUNCH(name)                         \
  Status name(Handle h) {                    \
    virtual_launch(current_stream, "cudnn"); \
    return 0;                                \
  }
LAUNCH(cudnnBackendExecute)

/* ------------------------------------------------------------- the older API */
ANSWER(cudnnCreateTensorDescriptor, Handle, &handle)
NOTHING(cudnnSetTensorNdDescriptor)
NOTHING(cudnnDestroyTensorDescriptor)
LAUNCH(cudnnBatchNormalizationForwardTrainingEx)
LAUNCH(cudnnBatchNormalizationForwardInference)
LAUNCH(cudnnBatchNormalizationBackwardEx)

#define NO_SPACE(name, ...)         \
  Status name(__VA_ARGS__) {        \
    *bytes = 0;                     \
    return 0;                       \
  }
NO_SPACE(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, Handle h, int mode, int ops, Handle x,
         Handle z, Handle y, Handle scale, Handle activation, size_t *bytes)
NO_SPACE(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, Handle h, int mode, int ops,
         Handle activation, Handle x, size_t *bytes)
NO_SPACE(cudnnGetBatchNormalizationBackwardExWorkspaceSize, Handle h, int mode, int ops, Handle x,
         Handle y, Handle dy, Handle dz, Handle dx, Handle scale, Handle activation, size_t *bytes)
