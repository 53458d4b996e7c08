/* libnvrtc: compiles nothing; it has a version. */
#include "virtual.h"

Status nvrtcVersion(int *major, int *minor) {
  *major = CUDA / 1000, *minor = CUDA % 1000 / 10;
  return 0;
}
const char *nvrtcGetErrorString(Status s) { return s ? "error of the virtual compiler" : "success"; }
