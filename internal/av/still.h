// One picture into a JPEG or PNG file.
#ifndef CFPIPE_AV_STILL_H
#define CFPIPE_AV_STILL_H

#include <stdint.h>

typedef struct {
    int format; // enum AVPixelFormat
    int width, height;
    const uint8_t *data[4];
    int linesize[4];
    int full_range;
    int direct; // NV12 in video range into a JPEG: swscale, which reads beyond the planes, is not needed
} cfav_picture;

// cfav_still encodes lines of a picture from one on: all of them, or a part of an NV12 picture that goes to JPEG directly, of which from is a
// multiple of 16. It returns an AVPacket that cfav_still_free gives back, or NULL and an AVERROR.
void *cfav_still(const cfav_picture *in, int from, int lines, int codec_id, int quality, int *err);
uint8_t *cfav_still_data(void *packet, int *size);
void cfav_still_free(void *packet);

#endif
