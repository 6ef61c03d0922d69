#include "still.h"

#include <libavcodec/avcodec.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>

// The colours of a camera's picture follow BT.709 from 720 lines on and BT.601 below, where the stream does not say; JPEG's are
// BT.601 in full range.
static int convert(const cfav_picture *in, AVFrame *f)
{
    const int *from = sws_getCoefficients(in->height >= 720 ? SWS_CS_ITU709 : SWS_CS_ITU601);
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

void *cfav_still(const cfav_picture *in, int codec_id, int quality, int *err)
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
    f->height = in->height;
    f->color_range = AVCOL_RANGE_JPEG;
    if ((*err = av_frame_get_buffer(f, 0)) < 0 || (*err = convert(in, f)) < 0)
        goto fail;
    c->width = f->width;
    c->height = f->height;
    c->pix_fmt = f->format;
    c->color_range = AVCOL_RANGE_JPEG;
    c->time_base = (AVRational){1, 25};
    if (codec_id == AV_CODEC_ID_MJPEG) {
        c->flags |= AV_CODEC_FLAG_QSCALE;
        c->global_quality = f->quality = quality * FF_QP2LAMBDA;
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
