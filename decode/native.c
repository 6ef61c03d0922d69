#include "native.h"

#include <stdio.h>
#include <string.h>

#include <libavcodec/avcodec.h>
#include <libavutil/hwcontext.h>
#include <libavutil/mem.h>
#include <libavutil/pixdesc.h>

// The beginning of AVCUDADeviceContext (libavutil/hwcontext_cuda.h), which cannot be included without the CUDA headers.
typedef struct cuda_device_context {
    void *cuda_ctx, *stream, *internal;
} cuda_device_context;

// AV_CUDA_USE_CURRENT_CONTEXT: the primary context, which the caller has made current. FFmpeg's own way to it fails where the context
// is active with other flags than FFmpeg's.
#define USE_CURRENT_CONTEXT 2

void *cfp_alloc(void **packet, void **frame)
{
    AVPacket *p = av_packet_alloc();
    AVFrame *f = av_frame_alloc();
    if (!p || !f) {
        av_packet_free(&p);
        av_frame_free(&f);
        return NULL;
    }
    *packet = p;
    *frame = f;
    return p;
}

void cfp_free(void *packet, void *frame)
{
    AVPacket *p = packet;
    AVFrame *f = frame;
    av_packet_free(&p);
    av_frame_free(&f);
}

int cfp_extradata(void *ctx, const uint8_t *data, size_t size)
{
    AVCodecContext *c = ctx;
    c->extradata = av_mallocz(size + AV_INPUT_BUFFER_PADDING_SIZE);
    if (!c->extradata)
        return AVERROR(ENOMEM);
    memcpy(c->extradata, data, size);
    c->extradata_size = (int)size;
    return 0;
}

// Takes NVDEC where the GPU can do what the stream asks for; else refuses all, so that the caller opens a software decoder with
// threads of its own instead of one that runs in this context. With pictures in parallel (hw->software) that would come too late: the
// refusal is heard of pictures after the one that it is about. The threads are those of the software decoder then.
static enum AVPixelFormat get_format(AVCodecContext *c, const enum AVPixelFormat *offered)
{
    cfp_hw *hw = c->opaque;
    const AVPixFmtDescriptor *d = av_pix_fmt_desc_get(c->sw_pix_fmt);
    int cuda = 0, software = 0;
    for (int i = 0; offered[i] != AV_PIX_FMT_NONE; i++) {
        cuda |= offered[i] == AV_PIX_FMT_CUDA;
        software |= offered[i] == c->sw_pix_fmt;
    }
    hw->width = c->coded_width;
    hw->height = c->coded_height;
    hw->depth = d ? d->comp[0].depth : 0;
    hw->chroma_420 = d && d->nb_components == 3 && d->log2_chroma_w == 1 && d->log2_chroma_h == 1;
    if (cuda && hw->chroma_420 && hw->depth < 32 && (hw->depths >> hw->depth & 1) &&
        c->coded_width <= (int)hw->max_width && c->coded_height <= (int)hw->max_height &&
        c->coded_width >= (int)hw->min_width && c->coded_height >= (int)hw->min_height)
        return AV_PIX_FMT_CUDA;
    if (hw->software && software)
        return c->sw_pix_fmt;
    hw->refused = 1;
    return AV_PIX_FMT_NONE;
}

int cfp_hw_open(void *ctx, int device, uintptr_t stream, cfp_hw *hw)
{
    AVCodecContext *c = ctx;
    AVBufferRef *ref = NULL;
    char name[16];
    int err;
    snprintf(name, sizeof(name), "%d", device);
    err = av_hwdevice_ctx_create(&ref, AV_HWDEVICE_TYPE_CUDA, name, NULL, USE_CURRENT_CONTEXT);
    if (err < 0)
        return err;
    // NVDEC's post-processing then runs on our stream, and our copy behind it needs no other synchronisation.
    ((cuda_device_context *)((AVHWDeviceContext *)ref->data)->hwctx)->stream = (void *)stream;
    c->hw_device_ctx = ref; // owned by the codec context from here on
    c->get_format = get_format;
    c->opaque = hw;
    return 0;
}

int cfp_send(void *ctx, void *packet, const uint8_t *data, size_t size, int64_t pts, int64_t dts, int key, int ref_only)
{
    AVCodecContext *c = ctx;
    AVPacket *p = packet;
    int err;
    if (!data) // drain
        return avcodec_send_packet(ctx, NULL);
    if ((err = av_new_packet(p, (int)size)) < 0)
        return err;
    memcpy(p->data, data, size);
    p->pts = pts;
    p->dts = dts;
    p->flags = key ? AV_PKT_FLAG_KEY : 0;
    c->skip_frame = ref_only ? AVDISCARD_NONREF : AVDISCARD_DEFAULT;
    err = avcodec_send_packet(c, p);
    av_packet_unref(p);
    return err;
}

int cfp_receive(void *ctx, void *frame, cfp_frame *out)
{
    AVFrame *f = frame;
    int err = avcodec_receive_frame(ctx, f);
    if (err < 0)
        return err;
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < 4; i++) {
        out->data[i] = f->data[i];
        out->linesize[i] = f->linesize[i];
    }
    out->format = f->format;
    if (f->format == AV_PIX_FMT_CUDA && f->hw_frames_ctx) {
        out->on_gpu = 1;
        out->format = ((AVHWFramesContext *)f->hw_frames_ctx->data)->sw_format;
        out->crop_left = (int)f->crop_left;
        out->crop_top = (int)f->crop_top;
    }
    out->width = f->width - out->crop_left;
    out->height = f->height - out->crop_top;
    out->pts = f->pts;
    out->key = !!(f->flags & AV_FRAME_FLAG_KEY);
    out->corrupt = (f->flags & AV_FRAME_FLAG_CORRUPT) || f->decode_error_flags;
    return 0;
}

void cfp_unref(void *frame) { av_frame_unref(frame); }

void cfp_flush(void *ctx) { avcodec_flush_buffers(ctx); }
