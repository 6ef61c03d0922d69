#include "url.h"

#include <libavutil/dict.h>

static int interrupted(void *stop) { return *(volatile int *)stop; }

int cfav_url_open(const char *url, volatile int *stop, const char *timeout_us, AVIOContext **pb)
{
    AVIOInterruptCB cb = {interrupted, (void *)stop};
    AVDictionary *options = NULL;
    int ret;

    av_dict_set(&options, "rw_timeout", timeout_us, 0);
    ret = avio_open2(pb, url, AVIO_FLAG_WRITE, &cb, &options);
    av_dict_free(&options);
    return ret;
}

int cfav_url_write(AVIOContext *pb, const uint8_t *b, int size)
{
    avio_write(pb, b, size);
    avio_flush(pb);
    return pb->error;
}
