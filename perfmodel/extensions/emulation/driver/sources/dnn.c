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
typedef struct {
  int type, dims, lengths[8];
} Tensor;

ANSWER(cudnnCreateTensorDescriptor, Tensor *, calloc(1, sizeof(Tensor)))
NOTHING(cudnnSetTensorNdDescriptor)
Status cudnnDestroyTensorDescriptor(Tensor *t) {
  free(t);
  return 0;
}
Status cudnnGetTensorNdDescriptor(const Tensor *t, int room, int *type, int *dims, int *lengths,
                                  int *strides) {
  *type = t->type, *dims = t->dims;
  for (int i = t->dims - 1, step = 1; i >= 0; step *= lengths[i--])
    lengths[i] = t->lengths[i], strides[i] = step;
  return 0;
}
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

/* ---------------------------------------------------------- recurrent layers
 * Weights lie as torch reads them: layer by layer the matrices of all gates for the input, then
 * those for the state; behind them the biases. */
typedef struct {
  int mode, ways, type, inputs, hidden, layers;
} Recurrent;

ANSWER(cudnnCreateRNNDescriptor, Recurrent *, calloc(1, sizeof(Recurrent)))
Status cudnnDestroyRNNDescriptor(Recurrent *r) {
  free(r);
  return 0;
}
Status cudnnSetRNNDescriptor_v8(Recurrent *r, int algorithm, int mode, int bias, int direction,
                                int input_mode, int type, int precision, int math, int inputs,
                                int hidden, int projected, int layers) {
  *r = (Recurrent){mode, 1 + direction, type, inputs, hidden, layers};
  return 0;
}

static int gates(const Recurrent *r) { return r->mode == 2 ? 4 : r->mode == 3 ? 3 : 1; }

/* Elements of the matrices before those of a layer and direction. */
static size_t start_of(const Recurrent *r, int layer) {
  size_t all = 0;
  for (int i = 0; i < layer; i++)
    all += (i < r->ways ? r->inputs : r->hidden * r->ways) + r->hidden;
  return all * gates(r) * r->hidden;
}
static size_t item(const Recurrent *r) { return r->type == 0 ? 4 : r->type == 1 ? 8 : 2; }

Status cudnnGetRNNWeightSpaceSize(Handle h, const Recurrent *r, size_t *bytes) {
  int count = r->layers * r->ways;
  *bytes = item(r) * (start_of(r, count) + (size_t)count * 2 * gates(r) * r->hidden);
  return 0;
}

Status cudnnGetRNNTempSpaceSizes(Handle h, const Recurrent *r, int mode, Handle x, size_t *work,
                                 size_t *reserve) {
  if (work) *work = 0;
  if (reserve) *reserve = 0;
  return 0;
}

Status cudnnGetRNNWeightParams(Handle h, const Recurrent *r, int layer, size_t bytes, char *space,
                               int number, Tensor *matrix, char **at, Tensor *bias, char **bias_at) {
  int count = gates(r), is_state = number >= count;
  int width = is_state ? r->hidden : layer < r->ways ? r->inputs : r->hidden * r->ways;
  size_t before = start_of(r, layer), biases = start_of(r, r->layers * r->ways);
  if (is_state) before += start_of(r, layer + 1) - before - (size_t)count * r->hidden * r->hidden;
  before += (size_t)(number % count) * r->hidden * width;
  biases += ((size_t)layer * 2 * count + number) * r->hidden;
  if (matrix) *matrix = (Tensor){r->type, 3, {1, r->hidden, width}}, *at = space + before * item(r);
  if (bias) *bias = (Tensor){r->type, 3, {1, r->hidden, 1}}, *bias_at = space + biases * item(r);
  return 0;
}

NO_SPACE(cudnnDropoutGetStatesSize, Handle h, size_t *bytes)
LAUNCH(cudnnRNNForward)
LAUNCH(cudnnRNNBackwardData_v8)
LAUNCH(cudnnRNNBackwardWeights_v8)
