/* libcusparse: products with sparse matrices are launches without workspaces. */
#include "virtual.h"

static __thread Handle current_stream;
static char handle;

ANSWER(cusparseCreate, Handle, &handle)
Status cusparseSetStream(Handle h, Handle stream) {
  current_stream = stream;
  return 0;
}

#define PRODUCT(name, ...)                                                                   \
  Status name##_bufferSize(Handle h, __VA_ARGS__, int type, int algorithm, size_t *bytes) { \
    *bytes = 0;                                                                              \
    return 0;                                                                                \
  }                                                                                          \
  Status name(Handle h) {                                                                    \
    virtual_launch(current_stream, #name);                                                   \
    return 0;                                                                                \
  }
PRODUCT(cusparseSpMM, int x, int y, Handle alpha, Handle a, Handle b, Handle beta, Handle c)
PRODUCT(cusparseSDDMM, int x, int y, Handle alpha, Handle a, Handle b, Handle beta, Handle c)
PRODUCT(cusparseSpMV, int x, Handle alpha, Handle a, Handle b, Handle beta, Handle c)

/* Rows of coordinates, which are sorted, to the starts of rows: true values, as programs use them. */
Status cusparseXcoo2csr(Handle h, const int *rows, int entries, int count, int *starts, int base) {
  for (int row = 0, i = 0; row <= count; row++) {
    while (i < entries && rows[i] - base < row) i++;
    starts[row] = i + base;
  }
  virtual_launch(current_stream, "coo2csr");
  return 0;
}
