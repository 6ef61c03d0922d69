// A stand-in for the CUDA runtime on the stand-in for the driver (cudavmm/testdata/libcuda.c): what testdata/legacy_reader.py calls.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long CUdeviceptr;
typedef struct { char reserved[64]; } Handle;
int cuDevicePrimaryCtxRetain(void **ctx, int d);
int cuCtxSetCurrent(void *ctx);
int cuIpcOpenMemHandle_v2(CUdeviceptr *p, Handle h, unsigned int flags);
int cuIpcCloseMemHandle(CUdeviceptr p);
int cuIpcOpenEventHandle(void **e, Handle h);
int cuEventDestroy_v2(void *e);
int cuStreamWaitEvent(void *s, void *e, unsigned int flags);

int cudaSetDevice(int d)
{
    void *ctx;
    return cuDevicePrimaryCtxRetain(&ctx, d) || cuCtxSetCurrent(ctx);
}
int cudaIpcOpenMemHandle(void **p, Handle h, unsigned int flags)
{
    CUdeviceptr d;
    int r = cuIpcOpenMemHandle_v2(&d, h, flags);
    *p = (void *)d;
    return r;
}
int cudaIpcCloseMemHandle(void *p) { return cuIpcCloseMemHandle((CUdeviceptr)p); }
int cudaIpcOpenEventHandle(void **e, Handle h) { return cuIpcOpenEventHandle(e, h); }
int cudaEventDestroy(void *e) { return cuEventDestroy_v2(e); }
int cudaStreamCreate(void **s) { *s = malloc(1); return 0; }
int cudaStreamDestroy(void *s) { free(s); return 0; }
int cudaStreamWaitEvent(void *s, void *e, unsigned int flags) { return cuStreamWaitEvent(s, e, flags); }
int cudaMemcpyAsync(void *dst, const void *src, size_t n, int kind, void *s)
{
    memcpy(dst, src, n);
    return s && kind == 2 ? 0 : 1;
}
int cudaStreamSynchronize(void *s) { return s ? 0 : 1; }
