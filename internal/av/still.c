#include "still.h"

#include <math.h>

#include <libavcodec/avcodec.h>
#include <libavutil/mem.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>

// The colours of a camera's picture follow BT.709 from so many lines on and BT.601 below, where the stream does not say; JPEG's are
// BT.601 in full range.
#define BT709_LINES 720

static uint8_t clip(int v) { return v < 0 ? 0 : v > 255 ? 255 : v; }

// The camera's usual picture into JPEG's colours, in a third of the time that swscale takes by way of RGB. Grey stays grey in both, so
// that luma is that of the camera, stretched, plus what chroma adds, and chroma depends on chroma alone.
static int convert_nv12(const cfav_picture *in, int from, AVFrame *f)
{
    const double kr = in->height >= BT709_LINES ? 0.2126 : 0.299, kb = in->height >= BT709_LINES ? 0.0722 : 0.114, kg = 1 - kr - kb;
    // What 1 of chroma does to red, green, blue, and they to luma and chroma of BT.601.
    const double rv = 2 * (1 - kr), bu = 2 * (1 - kb), gu = -kb * bu / kg, gv = -kr * rv / kg;
    const double yu = 0.587 * gu + 0.114 * bu, yv = 0.299 * rv + 0.587 * gv;
    const double chroma = 255.0 / 224, luma = 255.0 / 219;
    // Fixed point: 14 bits behind the point for chroma, 4 for luma, whose multiplication keeps to 16 bits.
    const int au = (int)lrint(yu * chroma * (1 << 14)), av = (int)lrint(yv * chroma * (1 << 14));
    const int uu = (int)lrint((bu - yu) / 1.772 * chroma * (1 << 14)), uv = (int)lrint(-yv / 1.772 * chroma * (1 << 14));
    const int vu = (int)lrint(-yu / 1.402 * chroma * (1 << 14)), vv = (int)lrint((rv - yv) / 1.402 * chroma * (1 << 14));
    const int16_t stretch = (int16_t)lrint(luma * (1 << 13)), black = (int16_t)lrint(8 - 16 * luma * 16);
    const int cw = (in->width + 1) / 2, ch = (f->height + 1) / 2;
    int16_t *add = av_malloc_array(cw, 2 * sizeof(*add)); // what chroma adds to each pixel of two lines
    if (!add)
        return AVERROR(ENOMEM);
    for (int j = 0; j < ch; j++) {
        const uint8_t *c = in->data[1] + (ptrdiff_t)(from / 2 + j) * in->linesize[1];
        uint8_t *u = f->data[1] + (ptrdiff_t)j * f->linesize[1], *v = f->data[2] + (ptrdiff_t)j * f->linesize[2];
        for (int i = 0; i < cw; i++) {
            const int du = c[2 * i] - 128, dv = c[2 * i + 1] - 128;
            add[2 * i] = add[2 * i + 1] = (int16_t)(((au * du + av * dv) >> 10) + black);
            u[i] = clip(((uu * du + uv * dv + (1 << 13)) >> 14) + 128);
            v[i] = clip(((vu * du + vv * dv + (1 << 13)) >> 14) + 128);
        }
        for (int line = 2 * j; line < 2 * j + 2 && line < f->height; line++) {
            const uint8_t *y = in->data[0] + (ptrdiff_t)(from + line) * in->linesize[0];
            uint8_t *to = f->data[0] + (ptrdiff_t)line * f->linesize[0];
            for (int i = 0; i < in->width; i++) {
                const int16_t wide = (int16_t)(y[i] << 7);
                to[i] = clip((int16_t)((wide * stretch >> 16) + add[i]) >> 4);
            }
        }
    }
    av_free(add);
    return 0;
}

static int convert(const cfav_picture *in, int from_line, AVFrame *f)
{
    if (in->direct)
        return convert_nv12(in, from_line, f);
    const int *from = sws_getCoefficients(in->height >= BT709_LINES ? SWS_CS_ITU709 : SWS_CS_ITU601);
    const int *to = sws_getCoefficients(SWS_CS_ITU601);
    struct SwsContext *s = sws_getContext(in->width, in->height, in->format, f->width, f->height, f->format, SWS_BILINEAR, NULL, NULL, NULL);
    int n;
    if (!s)
        return AVERROR(EINVAL);
    sws_setColorspaceDetails(s, from, in->full_range, to, 1, 0, 1 << 16, 1 << 16);
    n = sws_scale(s, in->data, in->linesize, 0, in->height, f->data, f->linesize);
    sws_freeContext(s);
    return n < 0 ? n : 0;
}

void *cfav_still(const cfav_picture *in, int from, int lines, int codec_id, int quality, int *err)
{
    const AVCodec *codec = avcodec_find_encoder(codec_id);
    AVCodecContext *c = codec ? avcodec_alloc_context3(codec) : NULL;
    AVFrame *f = av_frame_alloc();
    AVPacket *p = av_packet_alloc();
    *err = codec ? AVERROR(ENOMEM) : AVERROR_ENCODER_NOT_FOUND;
    if (!c || !f || !p)
        goto fail;
    f->format = codec_id == AV_CODEC_ID_PNG ? AV_PIX_FMT_RGB24 : AV_PIX_FMT_YUV420P;
    f->width = in->width;
    f->height = lines;
    f->color_range = AVCOL_RANGE_JPEG;
    if ((*err = av_frame_get_buffer(f, 0)) < 0 || (*err = convert(in, from, f)) < 0)
        goto fail;
    c->width = f->width;
    c->height = f->height;
    c->pix_fmt = f->format;
    c->color_range = AVCOL_RANGE_JPEG;
    c->time_base = (AVRational){1, 25};
    if (codec_id == AV_CODEC_ID_MJPEG) {
        c->flags |= AV_CODEC_FLAG_QSCALE;
        c->global_quality = f->quality = quality * FF_QP2LAMBDA;
        if (lines < in->height) // parts of one JPEG have their tables in common
            av_opt_set(c->priv_data, "huffman", "default", 0);
    } else {
        c->compression_level = 3; // three times as fast as the default for 10 % more bytes
    }
    if ((*err = avcodec_open2(c, codec, NULL)) < 0 || (*err = avcodec_send_frame(c, f)) < 0 || (*err = avcodec_send_frame(c, NULL)) < 0 ||
        (*err = avcodec_receive_packet(c, p)) < 0)
        goto fail;
    avcodec_free_context(&c);
    av_frame_free(&f);
    return p;
fail:
    avcodec_free_context(&c);
    av_frame_free(&f);
    av_packet_free(&p);
    return NULL;
}

uint8_t *cfav_still_data(void *packet, int *size)
{
    AVPacket *p = packet;
    *size = p->size;
    return p->data;
}

void cfav_still_free(void *packet)
{
    AVPacket *p = packet;
    av_packet_free(&p);
}
