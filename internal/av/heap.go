package av

/*
#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

static void small_heap(void) {
#ifdef __GLIBC__
	mallopt(M_ARENA_MAX, 1);
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	mallopt(M_TRIM_THRESHOLD, 128 << 10);
#endif
}

#define HUGE_PAGE ((uintptr_t)2 << 20)

static void brief_heap(void) {
#ifdef __GLIBC__
	mallopt(M_ARENA_MAX, 1);
	mallopt(M_MMAP_THRESHOLD, 32 << 20); // the most that every glibc takes
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	mallopt(M_TOP_PAD, 96 << 20); // address space: pages come when they are written
	void *p = malloc(1 << 20);    // makes the heap grow by that
	uintptr_t from = ((uintptr_t)p + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1), to = (uintptr_t)sbrk(0) & ~(HUGE_PAGE - 1);
	if (p && from < to)
		madvise((void *)from, to - from, MADV_HUGEPAGE);
	free(p);
#endif
}
*/
import "C"

// SmallHeap makes FFmpeg's memory go back to the system as it is freed. A process with many files open holds a fragment of each, of
// a size that changes all the time; with glibc's arenas per thread the pieces left between them come to more than what is in use.
// Call it before anything else of this package: arenas that are there stay.
func SmallHeap() { C.small_heap() }

// BriefHeap takes FFmpeg's memory from one heap of huge pages that is never given back, for a process that decodes for a moment and
// ends: there, most of the time went into the page faults of memory that is used once. Call it before anything else of this package.
func BriefHeap() { C.brief_heap() }
