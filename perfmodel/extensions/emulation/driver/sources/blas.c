/* libcublas and libcublasLt: matrix products are launches; their shapes are those of the operator. */
#include "virtual.h"

static __thread struct {
  Handle stream;
  int mode, pointer_mode;
} context; /* torch keeps one per thread and device */

ANSWER(cublasCreate_v2, Handle, &context)
NOTHING(cublasDestroy_v2)
NOTHING(cublasSetWorkspace_v2)

Status cublasSetStream_v2(Handle c, Handle stream) {
  context.stream = stream;
  return 0;
}
Status cublasGetMathMode(Handle c, int *mode) {
  *mode = context.mode;
  return 0;
}
Status cublasSetMathMode(Handle c, int mode) {
  context.mode = mode;
  return 0;
}
Status cublasGetPointerMode_v2(Handle c, int *mode) {
  *mode = context.pointer_mode;
  return 0;
}
Status cublasSetPointerMode_v2(Handle c, int mode) {
  context.pointer_mode = mode;
  return 0;
}
Status cublasGetVersion_v2(Handle c, int *version) {
  *version = CUDA / 1000 * 10000;
  return 0;
}

#define PRODUCT(name)                        \
  Status name(Handle c) {                    \
    virtual_launch(context.stream, "gemm");  \
    return 0;                                \
  }
PRODUCT(cublasGemmEx)
PRODUCT(cublasGemmStridedBatchedEx)
PRODUCT(cublasGemmBatchedEx)
PRODUCT(cublasSgemm_v2)
PRODUCT(cublasDgemm_v2)
PRODUCT(cublasCgemm_v2)
PRODUCT(cublasZgemm_v2)
PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasDgemmStridedBatched)
PRODUCT(cublasSgemmEx)
PRODUCT(cublasSgemv_v2)
PRODUCT(cublasDgemv_v2)
PRODUCT(cublasSdot_v2)
PRODUCT(cublasDdot_v2)
PRODUCT(cublasDotEx)

/* cublasLt: descriptors are only remembered by the caller. */
static char descriptor;
ANSWER(cublasLtCreate, Handle, &descriptor)
ANSWER(cublasLtMatrixLayoutCreate, Handle, &descriptor)
ANSWER(cublasLtMatmulDescCreate, Handle, &descriptor)
ANSWER(cublasLtMatmulPreferenceCreate, Handle, &descriptor)
NOTHING(cublasLtMatrixLayoutSetAttribute)
NOTHING(cublasLtMatrixLayoutDestroy)
NOTHING(cublasLtMatmulDescSetAttribute)
NOTHING(cublasLtMatmulDescDestroy)
NOTHING(cublasLtMatmulPreferenceSetAttribute)
NOTHING(cublasLtMatmulPreferenceDestroy)

Status cublasLtMatmulAlgoGetHeuristic(Handle h, Handle product, Handle a, Handle b, Handle c, Handle d,
                                      Handle preference, int wanted, void *results, int *found) {
  *found = 1; /* the caller zeroed the results: no workspace, success */
  return 0;
}

Status cublasLtMatmul(Handle h, Handle product, const void *alpha, const void *A, Handle a,
                      const void *B, Handle b, const void *beta, const void *C, Handle c, void *D,
                      Handle d, const void *algorithm, void *workspace, size_t bytes, Handle stream) {
  virtual_launch(stream, "gemm");
  return 0;
}

size_t cublasLtGetVersion(void) { return CUDA / 1000 * 10000; }
size_t cublasLtGetCudartVersion(void) { return CUDA; }
