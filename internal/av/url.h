// Output to a URL through FFmpeg's protocols.
#ifndef CFPIPE_AV_URL_H
#define CFPIPE_AV_URL_H

#include <libavformat/avio.h>

#define CFAV_REASON_SIZE 256

// why gets the first error that the protocol tells of, in CFAV_REASON_SIZE bytes: it is for the caller's error, and not for the log.
int cfav_url_open(const char *url, volatile int *stop, const char *timeout_us, AVIOContext **pb, char *why);
int cfav_keep_reason(int level, const char *line);
int cfav_url_write(AVIOContext *pb, const uint8_t *b, int size);

#endif
