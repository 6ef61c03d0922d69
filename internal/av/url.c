#include "url.h"

#include <libavutil/dict.h>
#include <libavutil/log.h>
#include <string.h>

// Where this thread's protocol says why it cannot connect; NULL outside of cfav_url_open.
static _Thread_local char *reason;

int cfav_keep_reason(int level, const char *line)
{
    if (!reason)
        return 0;
    if (level <= AV_LOG_ERROR && !*reason)
        strncat(reason, line, CFAV_REASON_SIZE - 1);
    return 1;
}

static int interrupted(void *stop) { return *(volatile int *)stop; }

int cfav_url_open(const char *url, volatile int *stop, const char *timeout_us, AVIOContext **pb, char *why)
{
    AVIOInterruptCB cb = {interrupted, (void *)stop};
    AVDictionary *options = NULL;
    int ret;

    av_dict_set(&options, "rw_timeout", timeout_us, 0);
    *why = 0;
    reason = why;
    ret = avio_open2(pb, url, AVIO_FLAG_WRITE, &cb, &options);
    reason = NULL;
    av_dict_free(&options);
    return ret;
}

int cfav_url_write(AVIOContext *pb, const uint8_t *b, int size)
{
    avio_write(pb, b, size);
    avio_flush(pb);
    return pb->error;
}
