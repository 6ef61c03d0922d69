#include "native.h"

#include <libavutil/error.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

// Full-range formats by name: swscale would squeeze them into the limited range of NV12.
static int full_range(int format)
{
    switch (format) {
    case AV_PIX_FMT_YUVJ420P: case AV_PIX_FMT_YUVJ422P: case AV_PIX_FMT_YUVJ444P: case AV_PIX_FMT_YUVJ440P: case AV_PIX_FMT_YUVJ411P:
        return 1;
    }
    return 0;
}

int cfp_scale(void **scaler, const cfp_frame *in, int format, uint8_t *y, int y_pitch, uint8_t *uv, int uv_pitch)
{
    uint8_t *planes[4] = {y, uv};
    int pitches[4] = {y_pitch, uv_pitch};
    const int *table = sws_getCoefficients(SWS_CS_DEFAULT);
    int range = full_range(in->format), n;
    struct SwsContext *s = sws_getCachedContext(*scaler, in->width, in->height, in->format, in->width, in->height, format,
                                                SWS_BICUBIC, NULL, NULL, NULL);
    *scaler = s;
    if (!s)
        return AVERROR(EINVAL);
    sws_setColorspaceDetails(s, table, range, table, range, 0, 1 << 16, 1 << 16);
    n = sws_scale(s, (const uint8_t *const *)in->data, in->linesize, 0, in->height, planes, pitches);
    return n == in->height ? 0 : n < 0 ? n : AVERROR_UNKNOWN;
}

void cfp_scale_free(void *scaler) { sws_freeContext(scaler); }

int cfp_depth(int format)
{
    const AVPixFmtDescriptor *d = av_pix_fmt_desc_get(format);
    return d ? d->comp[0].depth : 0;
}
