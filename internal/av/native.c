#include "native.h"
#include "url.h"

#include <libavutil/channel_layout.h>
#include <libavutil/dict.h>
#include <libavutil/log.h>
#include <libavutil/mem.h>
#include <stdio.h>

#include "_cgo_export.h"

static void log_callback(void *object, int level, const char *format, va_list values)
{
    char line[2048]; // longer lines are cut: a stream may put text of any length into a message
    const char *name = NULL;

    level &= 0xff; // the bits above are a colour
    if (level > AV_LOG_ERROR && level > av_log_get_level())
        return;
    if (vsnprintf(line, sizeof(line), format, values) >= (int)sizeof(line))
        line[sizeof(line) - 2] = '\n';
    if (cfav_keep_reason(level, line) && level < AV_LOG_VERBOSE)
        level = AV_LOG_VERBOSE;
    if (level > av_log_get_level())
        return;
    if (object) {
        const AVClass *class = *(const AVClass **)object;
        if (class)
            name = class->item_name ? class->item_name(object) : class->class_name;
    }
    cfavLog((uintptr_t)object, level, (char *)name, line);
}

void cfav_install_log(int level)
{
    av_log_set_level(level);
    av_log_set_callback(log_callback);
}

void cfav_set_log_level(int level) { av_log_set_level(level); }

static int io_write(void *opaque, const uint8_t *buf, int size) { return cfavWrite((uintptr_t)opaque, (uint8_t *)buf, size); }

static int64_t io_seek(void *opaque, int64_t offset, int whence) { return cfavSeek((uintptr_t)opaque, offset, whence); }

AVIOContext *cfav_open_io(uintptr_t handle, int buffer_size, int seekable)
{
    AVIOContext *pb;
    uint8_t *buffer = av_malloc(buffer_size);

    if (!buffer)
        return NULL;
    pb = avio_alloc_context(buffer, buffer_size, 1, (void *)handle, NULL, io_write, seekable ? io_seek : NULL);
    if (!pb) {
        av_free(buffer);
        return NULL;
    }
    pb->seekable = seekable ? AVIO_SEEKABLE_NORMAL : 0;
    return pb;
}

void cfav_close_io(AVIOContext *pb)
{
    if (pb)
        av_freep(&pb->buffer);
    avio_context_free(&pb);
}

void cfav_attach(AVFormatContext *s, AVIOContext *pb)
{
    s->pb = pb;
    s->flags |= AVFMT_FLAG_CUSTOM_IO;
    s->flush_packets = 0; // Output.Flush says when
}

int cfav_set_params(AVStream *st, const cfav_params *p)
{
    AVCodecParameters *par = st->codecpar;

    par->codec_type = p->codec_type;
    par->codec_id = p->codec_id;
    if (p->codec_type == AVMEDIA_TYPE_VIDEO) {
        par->width = p->width;
        par->height = p->height;
        st->time_base = (AVRational){1, 90000};
        return 0;
    }
    par->sample_rate = p->sample_rate;
    par->frame_size = p->frame_size;
    av_channel_layout_default(&par->ch_layout, p->channels);
    par->bits_per_coded_sample = p->bits_per_coded_sample ? p->bits_per_coded_sample : av_get_bits_per_sample(p->codec_id);
    par->block_align = par->bits_per_coded_sample * p->channels / 8;
    if (par->codec_id == AV_CODEC_ID_ADPCM_G726)
        par->bit_rate = (int64_t)p->sample_rate * par->bits_per_coded_sample, par->block_align = 1;
    st->time_base = (AVRational){1, p->sample_rate};
    return 0;
}

// The data is not the packet's own: av_write_frame copies what it keeps.
int cfav_write(AVFormatContext *s, AVPacket *pkt, uint8_t *data, int size, int stream, int64_t pts, int64_t dts,
               int64_t duration, int flags)
{
    int err;

    pkt->data = data;
    pkt->size = size;
    pkt->stream_index = stream;
    pkt->pts = pts;
    pkt->dts = dts;
    pkt->duration = duration;
    pkt->flags = flags;
    err = av_write_frame(s, pkt);
    pkt->data = NULL;
    pkt->size = 0;
    return err;
}

// Ends the fragment or cluster that is being written and hands all bytes to the writer.
int cfav_flush(AVFormatContext *s)
{
    int err = av_write_frame(s, NULL);

    if (err < 0)
        return err;
    avio_flush(s->pb);
    return s->pb->error;
}

int cfav_metadata(AVFormatContext *s, const char *key, const char *value) { return av_dict_set(&s->metadata, key, value, 0); }

int cfav_bits_per_coded_sample(const AVStream *st) { return st->codecpar->bits_per_coded_sample; }

int cfav_channels(const AVStream *st) { return st->codecpar->ch_layout.nb_channels; }

int cfav_is_attached_pic(const AVStream *st) { return !!(st->disposition & AV_DISPOSITION_ATTACHED_PIC); }

int cfav_duration_is_guess(const AVFormatContext *s) { return s->duration_estimation_method == AVFMT_DURATION_FROM_BITRATE; }

// An entry of the metadata of an input, or of the first of its programs that has it.
const char *cfav_tag(const AVFormatContext *s, const char *key)
{
    const AVDictionaryEntry *e = av_dict_get(s->metadata, key, NULL, 0);

    for (unsigned i = 0; !e && i < s->nb_programs; i++)
        e = av_dict_get(s->programs[i]->metadata, key, NULL, 0);
    return e ? e->value : NULL;
}

const uint8_t *cfav_new_extradata(const AVPacket *pkt, int *size)
{
    size_t n = 0;
    const uint8_t *b = av_packet_get_side_data(pkt, AV_PKT_DATA_NEW_EXTRADATA, &n);

    *size = (int)n;
    return b;
}

static int refuse_io(AVFormatContext *s, AVIOContext **pb, const char *url, int flags, AVDictionary **options)
{
    (void)s, (void)url, (void)flags, (void)options;
    *pb = NULL;
    return AVERROR(EPERM);
}

void cfav_refuse_io(AVFormatContext *s) { s->io_open = refuse_io; }
