// The part of libavcodec that decode needs beyond what astiav offers: planes of a frame, hardware contexts, flushing.
#ifndef CFPIPE_DECODE_NATIVE_H
#define CFPIPE_DECODE_NATIVE_H

#include <stddef.h>
#include <stdint.h>

// cfp_hw is what NVDEC can do for this codec on this GPU, and what get_format found; AVCodecContext.opaque points to it.
typedef struct cfp_hw {
    uint32_t depths;             // bit n: n bits per sample in 4:2:0
    uint32_t max_width, max_height, min_width, min_height;
    int software;                // 1: what NVDEC cannot do is decoded on the CPU in the same context, so that no picture in flight is lost
    int refused;                 // 1: get_format had to refuse the stream
    int chroma_420, depth, width, height; // what was asked of NVDEC last
} cfp_hw;

// cfp_frame is what a decoded frame is.
typedef struct cfp_frame {
    uint8_t *data[4];
    int linesize[4];
    int format;                  // enum AVPixelFormat of the pixels, on the GPU or not
    int on_gpu;
    int crop_left, crop_top;     // what FFmpeg leaves to us: the left and top edge of GPU frames
    int width, height;           // visible
    int64_t pts;
    int key, corrupt;
} cfp_frame;

void *cfp_alloc(void **packet, void **frame);
void cfp_free(void *packet, void *frame);
int cfp_extradata(void *ctx, const uint8_t *data, size_t size);
int cfp_hw_open(void *ctx, int device, uintptr_t stream, cfp_hw *hw);
int cfp_send(void *ctx, void *packet, const uint8_t *data, size_t size, int64_t pts, int64_t dts, int key, int ref_only);
int cfp_receive(void *ctx, void *frame, cfp_frame *out);
void cfp_unref(void *frame);
void cfp_flush(void *ctx);

// Into NV12 and P010, line by line. Widths are in pixels of the picture.
void cfp_copy_plane(uint8_t *dst, size_t dst_pitch, const uint8_t *src, ptrdiff_t src_pitch, size_t bytes, size_t lines);
void cfp_interleave8(uint8_t *dst, size_t dst_pitch, const uint8_t *u, const uint8_t *v, ptrdiff_t u_pitch, ptrdiff_t v_pitch, size_t width, size_t lines);
void cfp_interleave16(uint8_t *dst, size_t dst_pitch, const uint8_t *u, const uint8_t *v, ptrdiff_t u_pitch, ptrdiff_t v_pitch, size_t width, size_t lines, int shift);
void cfp_shift16(uint8_t *dst, size_t dst_pitch, const uint8_t *src, ptrdiff_t src_pitch, size_t width, size_t lines, int shift);
void cfp_fill_plane(uint8_t *dst, size_t dst_pitch, int value, size_t bytes, size_t lines);

// Any other format, by libswscale, without a change of the value range. *scaler is kept for the next call and freed by cfp_scale_free.
int cfp_scale(void **scaler, const cfp_frame *in, int format, uint8_t *y, int y_pitch, uint8_t *uv, int uv_pitch);
void cfp_scale_free(void *scaler);
int cfp_depth(int format);

#endif
