// What astiav does not offer: packets without copies, output through a Go writer without copies, bounded log lines.
#ifndef CFPIPE_AV_NATIVE_H
#define CFPIPE_AV_NATIVE_H

#include <libavformat/avformat.h>
#include <stdint.h>

// Parameters of one stream of an output.
typedef struct {
    int codec_type, codec_id;
    int width, height;
    int sample_rate, channels, bits_per_coded_sample, frame_size;
} cfav_params;

void cfav_install_log(int level);
void cfav_set_log_level(int level);

AVIOContext *cfav_open_io(uintptr_t handle, int buffer_size, int seekable);
void cfav_close_io(AVIOContext *pb);
void cfav_attach(AVFormatContext *s, AVIOContext *pb);
int cfav_set_params(AVStream *st, const cfav_params *p);
int cfav_write(AVFormatContext *s, AVPacket *pkt, uint8_t *data, int size, int stream, int64_t pts, int64_t dts,
               int64_t duration, int flags);
int cfav_flush(AVFormatContext *s);
int cfav_metadata(AVFormatContext *s, const char *key, const char *value);

// Nothing is opened by name: what a file refers to is not read.
void cfav_refuse_io(AVFormatContext *s);

// The stream parameters that astiav does not show.
int cfav_bits_per_coded_sample(const AVStream *st);
int cfav_channels(const AVStream *st);
int cfav_is_attached_pic(const AVStream *st);
int cfav_duration_is_guess(const AVFormatContext *s);
const char *cfav_tag(const AVFormatContext *s, const char *key);
const uint8_t *cfav_new_extradata(const AVPacket *pkt, int *size);

#endif
