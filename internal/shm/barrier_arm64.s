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
