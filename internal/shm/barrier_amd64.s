#include "textflag.h"

// func LoadBarrier()
// Loads are ordered on amd64 already; LFENCE costs a few ns and also covers the string instructions of large copies.
TEXT ·LoadBarrier(SB), NOSPLIT|NOFRAME, $0-0
	LFENCE
	RET

// func StoreBarrier()
TEXT ·StoreBarrier(SB), NOSPLIT|NOFRAME, $0-0
	MFENCE
	RET

// func Pause()
TEXT ·Pause(SB), NOSPLIT|NOFRAME, $0-0
	PAUSE
	RET
