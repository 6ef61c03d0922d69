package av

/*
#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static void small_heap(void) {
#ifdef __GLIBC__
	mallopt(M_ARENA_MAX, 1);
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	mallopt(M_TRIM_THRESHOLD, 128 << 10);
#endif
}
*/
import "C"

// SmallHeap makes FFmpeg's memory go back to the system as it is freed. A process with many files open holds a fragment of each, of
// a size that changes all the time; with glibc's arenas per thread the pieces left between them come to more than what is in use.
// Call it before anything else of this package: arenas that are there stay.
func SmallHeap() { C.small_heap() }
