// Output to a URL through FFmpeg's protocols.
#ifndef CFPIPE_AV_URL_H
#define CFPIPE_AV_URL_H

#include <libavformat/avio.h>

int cfav_url_open(const char *url, volatile int *stop, const char *timeout_us, AVIOContext **pb);
int cfav_url_write(AVIOContext *pb, const uint8_t *b, int size);

#endif
