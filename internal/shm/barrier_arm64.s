#include "textflag.h"

// func LoadBarrier()
TEXT ·LoadBarrier(SB), NOSPLIT|NOFRAME, $0-0
	DMB $0x9 // ISHLD: loads before loads and stores, inner shareable
	RET

// func StoreBarrier()
TEXT ·StoreBarrier(SB), NOSPLIT|NOFRAME, $0-0
	DMB $0xb // ISH: everything before everything, inner shareable
	RET

// func Pause()
TEXT ·Pause(SB), NOSPLIT|NOFRAME, $0-0
	YIELD
	RET

// func prefetchWrite(p unsafe.Pointer, lines int)
TEXT ·prefetchWrite(SB), NOSPLIT|NOFRAME, $0-16
	MOVD p+0(FP), R0
	MOVD lines+8(FP), R1
loop:
	PRFM (R0), PSTL1KEEP
	ADD  $64, R0
	SUBS $1, R1
	BGT  loop
	RET
