#include "native.h"

#include <string.h>

// Plain loops: the compiler turns them into vector code at -O3. The pictures of decoders and the slots never overlap.

void cfp_copy_plane(uint8_t *dst, size_t dst_pitch, const uint8_t *src, ptrdiff_t src_pitch, size_t bytes, size_t lines)
{
    for (size_t y = 0; y < lines; y++)
        memcpy(dst + y * dst_pitch, src + (ptrdiff_t)y * src_pitch, bytes);
}

void cfp_interleave8(uint8_t *dst, size_t dst_pitch, const uint8_t *u, const uint8_t *v, ptrdiff_t u_pitch, ptrdiff_t v_pitch, size_t width, size_t lines)
{
    for (size_t y = 0; y < lines; y++) {
        uint8_t *restrict d = dst + y * dst_pitch;
        const uint8_t *restrict a = u + (ptrdiff_t)y * u_pitch;
        const uint8_t *restrict b = v + (ptrdiff_t)y * v_pitch;
        for (size_t x = 0; x < width; x++) {
            d[2 * x] = a[x];
            d[2 * x + 1] = b[x];
        }
    }
}

void cfp_interleave16(uint8_t *dst, size_t dst_pitch, const uint8_t *u, const uint8_t *v, ptrdiff_t u_pitch, ptrdiff_t v_pitch, size_t width, size_t lines, int shift)
{
    for (size_t y = 0; y < lines; y++) {
        uint16_t *restrict d = (uint16_t *)(dst + y * dst_pitch);
        const uint16_t *restrict a = (const uint16_t *)(u + (ptrdiff_t)y * u_pitch);
        const uint16_t *restrict b = (const uint16_t *)(v + (ptrdiff_t)y * v_pitch);
        for (size_t x = 0; x < width; x++) {
            d[2 * x] = (uint16_t)(a[x] << shift);
            d[2 * x + 1] = (uint16_t)(b[x] << shift);
        }
    }
}

void cfp_shift16(uint8_t *dst, size_t dst_pitch, const uint8_t *src, ptrdiff_t src_pitch, size_t width, size_t lines, int shift)
{
    for (size_t y = 0; y < lines; y++) {
        uint16_t *restrict d = (uint16_t *)(dst + y * dst_pitch);
        const uint16_t *restrict s = (const uint16_t *)(src + (ptrdiff_t)y * src_pitch);
        for (size_t x = 0; x < width; x++)
            d[x] = (uint16_t)(s[x] << shift);
    }
}

void cfp_fill_plane(uint8_t *dst, size_t dst_pitch, int value, size_t bytes, size_t lines)
{
    for (size_t y = 0; y < lines; y++)
        memset(dst + y * dst_pitch, value, bytes);
}
