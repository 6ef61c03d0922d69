// A stand-in for libcuda.so.1 with the prototypes of cuda.h, whose "GPU memory" is files in a temporary folder: it proves that
// arguments cross the border to C in the right order and width, and lets processes share "GPU memory" on machines without one.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef struct { int type, id; } CUmemLocation;
typedef struct {
    int type, requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct { unsigned char compressionType, gpuDirectRDMACapable; unsigned short usage; unsigned char reserved[4]; } allocFlags;
} CUmemAllocationProp;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;
typedef struct {
    size_t srcXInBytes, srcY; unsigned int srcMemoryType; const void *srcHost; CUdeviceptr srcDevice; void *srcArray; size_t srcPitch;
    size_t dstXInBytes, dstY; unsigned int dstMemoryType; void *dstHost; CUdeviceptr dstDevice; void *dstArray; size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

#define CONTEXT ((void *)0xC0DE)
static __thread void *current;
#define NEED_CONTEXT do { if (current != CONTEXT) return 201; } while (0)

CUresult cuInit(unsigned int flags) { return flags ? 1 : 0; }
CUresult cuDriverGetVersion(int *v) { *v = 12080; return 0; }
CUresult cuGetErrorName(CUresult e, const char **s) { *s = e == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER"; return 0; }
CUresult cuDeviceGetCount(int *n) { *n = 1; return 0; }
CUresult cuDeviceGet(CUdevice *d, int ordinal) { *d = ordinal; return ordinal ? 101 : 0; }
CUresult cuDeviceGetName(char *name, int len, CUdevice d) { snprintf(name, (size_t)len, "Stand-in %d", d); return 0; }
CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice d) { memset(uuid, 0xAB + d, 16); return 0; }
CUresult cuDeviceGetAttribute(int *v, int attribute, CUdevice d) { *v = attribute == 75 ? 9 : attribute == 102 || attribute == 103 ? 1 : d; return 0; }
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned int *flags, int *active) { *flags = 0; *active = 0; return d; }
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice d, unsigned int flags) { return flags == 4 && d == 0 ? 0 : 1; }
CUresult cuDevicePrimaryCtxRetain(void **ctx, CUdevice d) { *ctx = CONTEXT; return d; }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) { return d; }
CUresult cuCtxSetCurrent(void *ctx) { current = ctx; return 0; }
CUresult cuMemGetInfo_v2(size_t *free, size_t *total) { NEED_CONTEXT; *free = 1 << 30; *total = 2u << 30; return 0; }
CUresult cuMemGetAllocationGranularity(size_t *g, const CUmemAllocationProp *p, int option) { *g = 2 << 20; return p->type == 1 && option == 0 ? 0 : 1; }

// A handle is a file descriptor + 1.
CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t size, const CUmemAllocationProp *p, unsigned long long flags)
{
    char name[] = "/var/tmp/standin-XXXXXX";
    int fd = mkostemp(name, O_CLOEXEC);
    if (fd < 0 || p->type != 1 || p->requestedHandleTypes != 1 || p->location.type != 1 || p->location.id != 0 || flags || size % (2 << 20))
        return 1;
    unlink(name);
    if (ftruncate(fd, (off_t)size))
        return 2;
    *h = (CUmemGenericAllocationHandle)fd + 1;
    return 0;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle h) { return close((int)h - 1) ? 1 : 0; }
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *p, CUmemGenericAllocationHandle h) { memset(p, 0, sizeof *p); p->type = 1; p->location.type = 1; return h ? 0 : 1; }
CUresult cuMemAddressReserve(CUdeviceptr *p, size_t size, size_t align, CUdeviceptr addr, unsigned long long flags)
{
    void *m = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *p = (CUdeviceptr)m;
    return m == MAP_FAILED || align || addr || flags ? 1 : 0;
}
CUresult cuMemAddressFree(CUdeviceptr p, size_t size) { return munmap((void *)p, size) ? 1 : 0; }
CUresult cuMemMap(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
    struct stat st;
    if (fstat((int)h - 1, &st) || (size_t)st.st_size < size || offset || flags)
        return 1;
    return mmap((void *)p, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)h - 1, 0) == MAP_FAILED ? 1 : 0;
}
CUresult cuMemUnmap(CUdeviceptr p, size_t size) { return mmap((void *)p, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? 1 : 0; }
CUresult cuMemSetAccess(CUdeviceptr p, size_t size, const CUmemAccessDesc *d, size_t count)
{
    if (count != 1 || d->flags != 3 || d->location.type != 1 || d->location.id != 0)
        return 1;
    return mprotect((void *)p, size, PROT_READ | PROT_WRITE) ? 1 : 0;
}
CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle h, int type, unsigned long long flags)
{
    if (type != 1 || flags)
        return 1;
    *(int *)out = dup((int)h - 1);
    return *(int *)out < 0 ? 1 : 0;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *h, void *os, int type)
{
    struct stat st;
    int fd = (int)(intptr_t)os;
    if (type != 1 || fstat(fd, &st) || !S_ISREG(st.st_mode) || (fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0)
        return 1;
    *h = (CUmemGenericAllocationHandle)fd + 1;
    return 0;
}
// IPC: memory is a file that the handle names by process and descriptor, so that it crosses to whoever sees that process.
typedef struct { char reserved[64]; } CUipcMemHandle, CUipcEventHandle;
static struct { CUdeviceptr p; size_t size; int fd; } allocations[4096];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUresult keep(CUdeviceptr *p, size_t size, int fd)
{
    void *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CUresult r = 2;
    pthread_mutex_lock(&lock);
    for (int i = 0; m != MAP_FAILED && r && i < 4096; i++)
        if (!allocations[i].p) {
            allocations[i].p = *p = (CUdeviceptr)m, allocations[i].size = size, allocations[i].fd = fd;
            r = 0;
        }
    pthread_mutex_unlock(&lock);
    return r;
}
static int find(CUdeviceptr p)
{
    int found = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 4096; i++)
        if (allocations[i].p && p >= allocations[i].p && p < allocations[i].p + allocations[i].size)
            found = i;
    pthread_mutex_unlock(&lock);
    return found;
}
static CUresult drop(CUdeviceptr p)
{
    int i = find(p);
    if (i < 0 || allocations[i].p != p)
        return 1;
    munmap((void *)p, allocations[i].size);
    close(allocations[i].fd);
    pthread_mutex_lock(&lock);
    allocations[i].p = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t size)
{
    NEED_CONTEXT;
    char name[] = "/var/tmp/standin-XXXXXX";
    int fd = mkostemp(name, O_CLOEXEC);
    if (fd < 0)
        return 2;
    unlink(name);
    return ftruncate(fd, (off_t)size) ? 2 : keep(p, size, fd);
}
CUresult cuMemFree_v2(CUdeviceptr p) { NEED_CONTEXT; return drop(p); }
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
    int i = find(p);
    if (i < 0)
        return 1;
    *base = allocations[i].p, *size = allocations[i].size;
    return 0;
}
CUresult cuIpcGetMemHandle(CUipcMemHandle *h, CUdeviceptr p)
{
    int i = find(p);
    NEED_CONTEXT;
    if (i < 0)
        return 1;
    memset(h, 0xEE, sizeof *h);
    snprintf(h->reserved, 60, "/proc/%d/fd/%d", getpid(), allocations[i].fd);
    memcpy(h->reserved + 60, "last", 4); // all 64 bytes must arrive
    return 0;
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle h, unsigned int flags)
{
    struct stat st;
    int fd;
    NEED_CONTEXT;
    if (flags != 1 || memcmp(h.reserved + 60, "last", 4) || (fd = open(h.reserved, O_RDWR | O_CLOEXEC)) < 0)
        return 1;
    return fstat(fd, &st) ? 1 : keep(p, (size_t)st.st_size, fd);
}
CUresult cuIpcCloseMemHandle(CUdeviceptr p) { NEED_CONTEXT; return drop(p); }
CUresult cuIpcGetEventHandle(CUipcEventHandle *h, void *e) { memset(h, 0xE7, sizeof *h); memcpy(h->reserved, &e, sizeof e); return e ? 0 : 1; }
CUresult cuIpcOpenEventHandle(void **e, CUipcEventHandle h)
{
    NEED_CONTEXT;
    for (int i = 8; i < 64; i++)
        if ((unsigned char)h.reserved[i] != 0xE7)
            return 1;
    *e = malloc(1);
    return 0;
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, void *stream)
{
    const char *src = c->srcMemoryType == 1 ? c->srcHost : (const char *)c->srcDevice;
    char *dst = c->dstMemoryType == 1 ? c->dstHost : (char *)c->dstDevice;
    NEED_CONTEXT;
    if (!stream || c->srcXInBytes || c->srcY || c->dstXInBytes || c->dstY)
        return 1;
    for (size_t y = 0; y < c->Height; y++)
        memcpy(dst + y * c->dstPitch, src + y * c->srcPitch, c->WidthInBytes);
    return 0;
}
CUresult cuMemsetD2D8Async(CUdeviceptr p, size_t pitch, unsigned char v, size_t width, size_t height, void *stream)
{
    NEED_CONTEXT;
    for (size_t y = 0; y < height; y++)
        memset((char *)p + y * pitch, v, width);
    return stream ? 0 : 1;
}
CUresult cuStreamCreate(void **s, unsigned int flags) { NEED_CONTEXT; *s = malloc(1); return flags == 1 ? 0 : 1; }
CUresult cuStreamDestroy_v2(void *s) { free(s); return 0; }
CUresult cuStreamSynchronize(void *s) { NEED_CONTEXT; return s ? 0 : 1; }
CUresult cuStreamQuery(void *s) { NEED_CONTEXT; return s ? 0 : 1; }
CUresult cuStreamWaitEvent(void *s, void *e, unsigned int flags) { return s && e && !flags ? 0 : 1; }
CUresult cuEventCreate(void **e, unsigned int flags) { NEED_CONTEXT; *e = malloc(1); return flags & ~7u; }
CUresult cuEventDestroy_v2(void *e) { free(e); return 0; }
CUresult cuEventRecord(void *e, void *s) { return e && s ? 0 : 1; }
CUresult cuEventQuery(void *e) { return e ? 0 : 1; }
CUresult cuEventSynchronize(void *e) { return e ? 0 : 1; }
CUresult cuEventElapsedTime(float *ms, void *a, void *b) { *ms = 1.5f; return a && b ? 0 : 1; }

// What clients/python calls as well.
static __thread void *pushed[8];
static __thread int depth;
CUresult cuCtxPushCurrent_v2(void *ctx) { if (depth == 8) return 1; pushed[depth++] = current; current = ctx; return 0; }
CUresult cuCtxPopCurrent_v2(void **ctx) { if (!depth) return 1; *ctx = current; current = pushed[--depth]; return 0; }
CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n) { NEED_CONTEXT; memcpy(dst, (const void *)src, n); return 0; }
