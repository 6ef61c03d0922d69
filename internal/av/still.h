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
} cfav_picture;

// cfav_still returns an AVPacket that cfav_still_free gives back, or NULL and an AVERROR.
void *cfav_still(const cfav_picture *in, int codec_id, int quality, int *err);
uint8_t *cfav_still_data(void *packet, int *size);
void cfav_still_free(void *packet);

#endif
