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

// func prefetchWrite(p unsafe.Pointer, lines int)
TEXT ·prefetchWrite(SB), NOSPLIT|NOFRAME, $0-16
	MOVQ p+0(FP), AX
	MOVQ lines+8(FP), CX
loop:
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08 // PREFETCHW (AX), which the assembler does not know; where a processor does not, it does nothing
	ADDQ $64, AX
	SUBQ $1, CX
	JGT  loop
	RET
