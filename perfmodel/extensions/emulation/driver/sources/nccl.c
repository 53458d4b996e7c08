/* libnccl: collectives are noted with their bytes and group. Small integers are really exchanged
 * between the ranks that run, through files in a folder, because programs act on them (shapes,
 * splits, objects); everything else only counts. A rank that does not run holds what this one has. */
#define _GNU_SOURCE
#include "virtual.h"

#include <alloca.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  char bytes[128];
} Identity;

/* What Python says about the group of the operator that runs, before it runs. */
static __thread struct {
  int64_t number;
  int size;
  const char *runs; /* by place: whether that member runs */
} announced = {-1, 0, NULL};

typedef struct {
  uint64_t key;
  int size, rank;
  unsigned collectives, splits;
  unsigned *sent, *received; /* messages so far with each peer */
} Group;

static char *folder; /* of the messages; without one, nothing is exchanged */
enum { SMALL = 1 << 20 };

void virtual_exchange(const char *path) { folder = strdup(path); }

void virtual_announce(int64_t number, int size, const char *runs) {
  announced.number = number, announced.size = size, announced.runs = runs;
}

static int runs(const Group *g, int member) {
  return member == g->rank || announced.size != g->size || announced.runs[member] == '1';
}

ANSWER(ncclGetVersion, int, 22800)
const char *ncclGetErrorString(Status s) { return s ? "error of the virtual library" : "no error"; }
const char *ncclGetLastError(Handle group) { return ""; }

Status ncclGetUniqueId(Identity *id) {
  int f = open("/dev/urandom", O_RDONLY);
  ssize_t n = read(f, id->bytes, sizeof id->bytes);
  close(f);
  return n == sizeof id->bytes ? 0 : 1;
}

/* --------------------------------------------------------- messages as files */
enum { EVERYONE = -1 };

static void path_of(char *path, const char *end, uint64_t key, int from, int to, unsigned n) {
  snprintf(path, 512, "%s/%llx.%d.%d.%u%s", folder, (unsigned long long)key, from, to, n, end);
}

static void post(Group *g, int to, unsigned n, const void *data, size_t bytes) {
  char temporary[512], path[512];
  path_of(temporary, ".part", g->key, g->rank, to, n);
  path_of(path, "", g->key, g->rank, to, n);
  int f = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (f < 0 || write(f, data, bytes) != (ssize_t)bytes) abort();
  close(f);
  rename(temporary, path);
}

static void fetch(Group *g, int from, int to, unsigned n, void *data, size_t bytes) {
  char path[512];
  path_of(path, "", g->key, from, to, n);
  struct timespec pause = {0, 200000};
  for (int i = 0; i < 3000000; i++, nanosleep(&pause, NULL)) {
    int f = open(path, O_RDONLY);
    if (f < 0) continue;
    if (read(f, data, bytes) != (ssize_t)bytes) memset(data, 0, bytes);
    close(f);
    return;
  }
  abort(); /* ten minutes: a peer is gone */
}

static void exchange(Group *g, const void *own, void *all, size_t bytes) {
  unsigned n = g->collectives;
  own = memcpy(alloca(bytes + 1), own, bytes); /* it may be a part of all */
  post(g, EVERYONE, n, own, bytes);
  for (int i = 0; i < g->size; i++) {
    char *place = (char *)all + (size_t)i * bytes;
    if (runs(g, i)) fetch(g, i, EVERYONE, n, place, bytes);
    else memcpy(place, own, bytes);
  }
}

/* -------------------------------------------------------------------- groups */
static uint64_t mix(uint64_t h, const void *data, size_t n) {
  for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)data)[i]) * 1099511628211ull;
  return h;
}

static Status make(Group **out, int size, int rank, uint64_t key) {
  Group *g = calloc(1, sizeof *g);
  g->size = size, g->rank = rank, g->key = key;
  g->sent = calloc((size_t)size, sizeof(unsigned)), g->received = calloc((size_t)size, sizeof(unsigned));
  *out = g;
  return 0;
}

Status ncclCommInitRankConfig(Group **g, int size, Identity id, int rank) {
  return make(g, size, rank, mix(14695981039346656037ull, &id, sizeof id));
}
Status ncclCommInitRank(Group **g, int size, Identity id, int rank) {
  return ncclCommInitRankConfig(g, size, id, rank);
}
Status ncclCommInitRankScalable(Group **g, int size, int rank, int n, Identity *ids) {
  return ncclCommInitRankConfig(g, size, ids[0], rank);
}

Status ncclCommSplit(Group *parent, int color, int key, Group **out) {
  struct Wish { int color, key; } own = {color, key}, *all = calloc((size_t)parent->size, sizeof own);
  exchange(parent, &own, all, sizeof own);
  parent->collectives++;
  int size = 0, rank = 0;
  for (int i = 0; i < parent->size; i++) {
    if (all[i].color != color) continue;
    size++;
    if (all[i].key < key || (all[i].key == key && i < parent->rank)) rank++;
  }
  free(all);
  uint64_t name = mix(mix(parent->key, &parent->splits, sizeof parent->splits), &color, sizeof color);
  parent->splits++;
  *out = NULL;
  return color < 0 ? 0 : make(out, size, rank, name);
}

ANSWER(ncclCommInitAll, Handle, NULL)
Status ncclCommGetAsyncError(Group *g, int *error) {
  *error = 0;
  return 0;
}
Status ncclCommCount(Group *g, int *n) {
  *n = g->size;
  return 0;
}
Status ncclCommUserRank(Group *g, int *n) {
  *n = g->rank;
  return 0;
}
Status ncclCommCuDevice(Group *g, int *n) {
  *n = virtual_current();
  return 0;
}

/* --------------------------------------------------------------- collectives */
enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, REDUCE, SEND, RECEIVE };
enum { ENTRIES = 65536 };
int64_t virtual_collectives[ENTRIES][5]; /* call, bytes, type, peer or root, number of the group */
static int64_t count;

enum { INT8, UINT8, INT32, UINT32, INT64, UINT64 }; /* then the floating types */

static size_t size_of(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type < 12 ? sizes[type] : 1;
}

/* Notes a call; whether its values are exchanged. */
static int meant(int call, size_t bytes, size_t sent, int type, int peer, Handle stream) {
  int64_t n = __sync_fetch_and_add(&count, 1);
  int64_t *entry = virtual_collectives[n % ENTRIES];
  entry[0] = call, entry[1] = (int64_t)bytes, entry[2] = type, entry[3] = peer;
  entry[4] = announced.number;
  virtual_note(COLLECTIVE, n, stream);
  return folder && type <= UINT64 && sent && sent <= SMALL;
}

/* sum, product, largest, least */
#define EACH(T)                                                                                 \
  for (size_t i = 0; i < n; i++) {                                                              \
    T *a = (T *)to + i, b = ((const T *)from)[i];                                               \
    *a = op == 0 ? (T)(*a + b) : op == 1 ? (T)(*a * b) : (op == 2) == (*a > b) ? *a : b;        \
  }                                                                                             \
  return;

static void combine(void *to, const void *from, size_t n, int type, int op) {
  switch (type) {
    case INT8: EACH(int8_t)
    case UINT8: EACH(uint8_t)
    case INT32: EACH(int32_t)
    case UINT32: EACH(uint32_t)
    case INT64: EACH(int64_t)
    default: EACH(uint64_t)
  }
}

static void reduce(Group *g, const void *from, void *to, size_t n, int type, int op) {
  size_t bytes = n * size_of(type);
  char *all = malloc(bytes * (size_t)g->size);
  exchange(g, from, all, bytes);
  memcpy(to, all, bytes);
  for (int i = 1; i < g->size; i++) combine(to, all + (size_t)i * bytes, n, type, op);
  free(all);
}

Status ncclAllReduce(const void *from, void *to, size_t n, int type, int op, Group *g, Handle stream) {
  size_t bytes = n * size_of(type);
  if (meant(ALL_REDUCE, bytes, bytes, type, 0, stream)) reduce(g, from, to, n, type, op);
  g->collectives++;
  return 0;
}

Status ncclReduce(const void *from, void *to, size_t n, int type, int op, int root, Group *g,
                  Handle stream) {
  size_t bytes = n * size_of(type);
  if (meant(REDUCE, bytes, bytes, type, root, stream))
    reduce(g, from, g->rank == root ? to : alloca(SMALL), n, type, op);
  g->collectives++;
  return 0;
}

Status ncclAllGather(const void *from, void *to, size_t n, int type, Group *g, Handle stream) {
  size_t bytes = n * size_of(type);
  if (meant(ALL_GATHER, bytes * (size_t)g->size, bytes, type, 0, stream)) exchange(g, from, to, bytes);
  g->collectives++;
  return 0;
}

Status ncclReduceScatter(const void *from, void *to, size_t n, int type, int op, Group *g,
                         Handle stream) {
  meant(REDUCE_SCATTER, n * size_of(type) * (size_t)g->size, 0, type, 0, stream);
  g->collectives++;
  return 0;
}

/* Within a group call sends go out at once and receives wait for its end. */
static __thread int depth, waiting;
static __thread const void *given; /* what this rank broadcasts: torch gathers lists that way */
static __thread struct {
  Group *group;
  void *to;
  size_t bytes;
  int peer;
} receives[4096];

NOTHING(ncclCommFinalize)
NOTHING(ncclCommDestroy)
NOTHING(ncclCommAbort)
NOTHING(ncclCommRegister)
NOTHING(ncclCommDeregister)
Status ncclGroupStart(void) {
  depth++;
  return 0;
}
Status ncclGroupEnd(void) {
  if (depth && --depth) return 0;
  for (int i = 0; i < waiting; i++) {
    Group *g = receives[i].group;
    int peer = receives[i].peer;
    if (runs(g, peer)) fetch(g, peer, g->rank, g->received[peer]++, receives[i].to, receives[i].bytes);
    else if (given) memcpy(receives[i].to, given, receives[i].bytes);
  }
  given = NULL;
  return waiting = 0;
}

static void take(Group *g, int peer, void *to, size_t bytes) {
  if (waiting == 4096) return;
  receives[waiting].group = g, receives[waiting].to = to;
  receives[waiting].bytes = bytes, receives[waiting++].peer = peer;
}

Status ncclBroadcast(const void *from, void *to, size_t n, int type, int root, Group *g, Handle stream) {
  size_t bytes = n * size_of(type);
  if (meant(BROADCAST, bytes, bytes, type, root, stream)) {
    if (g->rank == root) post(g, EVERYONE, g->collectives, given = from, bytes);
    if (runs(g, root)) fetch(g, root, EVERYONE, g->collectives, to, bytes);
    else if (depth) take(g, root, to, bytes);
  }
  g->collectives++;
  return 0;
}
Status ncclBcast(void *data, size_t n, int type, int root, Group *g, Handle stream) {
  return ncclBroadcast(data, data, n, type, root, g, stream);
}

Status ncclSend(const void *from, size_t n, int type, int peer, Group *g, Handle stream) {
  size_t bytes = n * size_of(type);
  if (meant(SEND, bytes, bytes, type, peer, stream)) post(g, peer, g->sent[peer]++, from, bytes);
  return 0;
}

Status ncclRecv(void *to, size_t n, int type, int peer, Group *g, Handle stream) {
  size_t bytes = n * size_of(type);
  if (meant(RECEIVE, bytes, bytes, type, peer, stream)) take(g, peer, to, bytes);
  if (!depth) ncclGroupEnd();
  return 0;
}

Status ncclAlltoAll(const void *from, void *to, size_t n, int type, Group *g, Handle stream) {
  size_t bytes = n * size_of(type);
  if (!meant(ALL_TO_ALL, bytes * (size_t)g->size, bytes, type, 0, stream)) return 0;
  ncclGroupStart();
  for (int i = 0; i < g->size; i++) {
    post(g, i, g->sent[i]++, (const char *)from + (size_t)i * bytes, bytes);
    take(g, i, (char *)to + (size_t)i * bytes, bytes);
  }
  return ncclGroupEnd();
}
