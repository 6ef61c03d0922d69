package main

/*
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>

#define HUGE_PAGE ((uintptr_t)2 << 20)

// A snapshot works for a moment and ends, and much of its time would go into the page faults of memory that FFmpeg uses once. It takes that
// from one heap of huge pages, which is never given back. This is done before Go's runtime begins: each of its threads takes an arena of
// its own with its first allocation, and keeps it. With flags in front of the command's name it does without.
__attribute__((constructor)) static void brief_heap(int argc, char **argv)
{
	if (argc < 2 || strcmp(argv[1], "snapshot"))
		return;
	mallopt(M_ARENA_MAX, 1);
	mallopt(M_MMAP_THRESHOLD, 32 << 20); // the most that every glibc takes
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	mallopt(M_TOP_PAD, 96 << 20); // address space: pages come when they are written
	void *p = malloc(1 << 20);    // makes the heap grow by that
	uintptr_t from = ((uintptr_t)p + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1), to = (uintptr_t)sbrk(0) & ~(HUGE_PAGE - 1);
	if (p && from < to)
		madvise((void *)from, to - from, MADV_HUGEPAGE);
	free(p);
}
#endif
*/
import "C"
