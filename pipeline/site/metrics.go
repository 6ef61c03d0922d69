package site

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cfpipe/cfpipe/pipeline"
)

// siteCollector makes the metrics when they are asked for: between two scrapes they cost nothing.
type siteCollector struct{ site *Site }

// metrics is every metric in the order of its definition.
var metrics []*prometheus.Desc

func metric(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("cfpipe_"+name, help, labels, nil)
	metrics = append(metrics, d)
	return d
}

// What does not fit into the table.
const (
	clockHelp = "The camera's clock (RTCP) against this host's: above 0 it is ahead. None where the camera tells no time."
	ageHelp   = "Age of the newest packet by its own time: latency and clock offset of the camera."
)

// The label recording says what a recorder records: "continuous" or "event", as causes has it.
var (
	siteReloads   = metric("site_reloads_total", "Configurations taken over since the start.")
	siteReloadOK  = metric("site_reload_ok", "1 when the newest attempt to load the file was good.")
	siteClock     = metric("site_clock_steps_total", "How often the system's clock was set while the site ran.")
	stageUp       = metric("stage_up", "1 when the stage runs.", "kind", "key")
	stageRestarts = metric("stage_restarts_total", "How often the stage has failed and was started again.", "kind", "key")

	ingestConnected  = metric("ingest_connected", "1 when packets come from the camera.", "key")
	ingestConnects   = metric("ingest_connects_total", "Attempts to connect.", "key")
	ingestReconnects = metric("ingest_reconnects_total", "Connections that delivered after another one had.", "key")
	ingestPackets    = metric("ingest_packets_total", "Access units published.", "key", "track")
	ingestBytes      = metric("ingest_bytes_total", "Bytes published.", "key", "track")
	ingestKeyframes  = metric("ingest_keyframes_total", "Keyframes published.", "key", "track")
	ingestGaps       = metric("ingest_gaps_total", "Access units marked DISCONTINUITY.", "key", "track")
	ingestCorrupt    = metric("ingest_corrupt_total", "Access units marked CORRUPT.", "key", "track")
	ingestOversized  = metric("ingest_oversized_total", "Access units larger than the ring takes, left out.", "key", "track")
	ingestRTP        = metric("ingest_rtp_packets_total", "RTP packets that came from the camera.", "key")
	ingestRTPLost    = metric("ingest_rtp_lost_total", "RTP packets missing between them: what the network has lost.", "key")
	ingestClock      = metric("ingest_clock_offset_seconds", clockHelp, "key")
	ingestAge        = metric("ingest_last_packet_age_seconds", "Since the newest access unit came.", "key", "track")

	decodePictures = metric("decode_pictures_total", "Pictures decoded.", "key")
	decodeLost     = metric("decode_lost_total", "Packets overwritten before they were decoded.", "key")

	publisherRate    = metric("publisher_packets_per_second", "Rate of what the ring holds.", "key")
	publisherBits    = metric("publisher_bits_per_second", "Bit rate of what the ring holds.", "key")
	publisherAge     = metric("publisher_last_packet_age_seconds", ageHelp, "key")
	publisherSeconds = metric("publisher_buffered_seconds", "Time that the ring holds.", "key")
	publisherReaders = metric("publisher_readers", "Readers.", "key")
	readerLag        = metric("reader_lag_packets", "How far the reader is behind.", "key", "reader", "bit")
	readerSeen       = metric("reader_seen_age_seconds", "Since the reader last said how far it is: some seconds, or it hangs.", "key", "reader", "bit")
	readerFill       = metric("reader_lag_ratio", "The same as a part of what the ring holds: at 1 the reader loses packets.", "key", "reader", "bit")

	recordPackets  = metric("record_packets_total", "Access units in files.", "key", "recording")
	recordBytes    = metric("record_bytes_total", "Bytes written into files.", "key", "recording")
	recordFiles    = metric("record_files_total", "Files opened.", "key", "recording")
	recordLost     = metric("record_lost_total", "Access units that the ring had passed on before they were read.", "key", "recording")
	recordOverruns = metric("record_overruns_total", "How often that has happened.", "key", "recording")
	recordDropped  = metric("record_dropped_total", "Access units that were read and that the disk did not take.", "key", "recording")
	recordFailures = metric("record_failures_total", "Errors of the disk.", "key", "recording")
	recordFailing  = metric("record_failing", "1 when the disk does not take the file.", "key", "recording")
	recordWrites   = metric("record_writes_total", "Calls of write.", "key", "recording")
	recordWriteS   = metric("record_write_seconds_total", "Time spent in them.", "key", "recording")
	recordSyncs    = metric("record_fsyncs_total", "Calls of fsync.", "key", "recording")
	recordSyncS    = metric("record_fsync_seconds_total", "Time spent in them.", "key", "recording")
	recordSlowest  = metric("record_slowest_call_seconds", "The longest of all these calls.", "key", "recording")
	recordBusy     = metric("record_busy_seconds", "How long the call that runs now has taken.", "key", "recording")
	recordAge      = metric("record_newest_age_seconds", "Age of the newest access unit written, by its own time.", "key", "recording")
	recordFree     = metric("record_free_bytes", "Space left where the files are written.", "key", "recording")
	keptBytes      = metric("recordings_bytes", "Finished files that retention counts.", "key", "recording")
	keptFiles      = metric("recordings_files", "Finished files that retention counts.", "key", "recording")
	eventCount     = metric("events_total", "Events begun.", "key")
	eventActive    = metric("event_active", "1 while an event is recorded.", "key")

	inferSent      = metric("infer_sent_total", "Pictures sent to the runtime.", "key")
	inferResults   = metric("infer_results_total", "Results that came back.", "key")
	inferLost      = metric("infer_unanswered_total", "Pictures without a result.", "key", "because")
	inferSessions  = metric("infer_sessions_total", "Sessions with the runtime.", "key")
	inferUnwritten = metric("infer_unwritten_total", "Results that the disk did not take.", "key")
	inferTriggers  = metric("infer_triggers_total", "Triggers that recorders took.", "key")
	inferFree      = metric("infer_free_bytes", "Space left where the results are written.", "key")
	inferKeptBytes = metric("infer_results_kept_bytes", "Finished files of results that retention counts.", "key")
	inferKeptFiles = metric("infer_results_kept_files", "Finished files of results that retention counts.", "key")
	pushConnected  = metric("push_connected", "1 while the stream is sent.", "key")
	pushConnects   = metric("push_connects_total", "Connections that were made.", "key")
	pushPackets    = metric("push_packets_total", "Packets sent, of all tracks.", "key")
	pushBytes      = metric("push_bytes_total", "Bytes sent.", "key")
)

// Describe implements prometheus.Collector: no other metrics are made than these. Which of them there are depends on the configuration.
func (c *siteCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range metrics {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *siteCollector) Collect(out chan<- prometheus.Metric) {
	e := emitter{out}
	st := c.site.Status()
	e.count(siteReloads, uint64(st.Reloads))
	e.gauge(siteReloadOK, bit(st.ReloadError == ""))
	e.count(siteClock, c.site.keeper.ClockSteps())
	for _, s := range st.Stages {
		e.gauge(stageUp, bit(s.State == StateRunning), s.Kind, s.Key)
		e.count(stageRestarts, uint64(s.Restarts), s.Kind, s.Key)
		if s.Ingest != nil {
			e.ingest(s.Key, *s.Ingest)
		}
		if s.Decode != nil {
			e.count(decodePictures, s.Decode.Pictures, s.Key)
			e.count(decodeLost, s.Decode.Lost, s.Key)
		}
		if s.Record != nil {
			e.record(*s.Record, s.Key, causes[s.Kind])
		}
		if s.Kind == kindEvents {
			e.count(eventCount, s.Record.Events, s.Key)
			e.gauge(eventActive, bit(s.Record.Event), s.Key)
		}
		if s.Infer != nil {
			e.infer(s.Key, *s.Infer)
		}
		if s.Push != nil {
			e.push(s.Key, *s.Push)
		}
	}
	for _, k := range c.site.keeper.Kept() {
		free, bytes, files, labels := recordFree, keptBytes, keptFiles, []string{k.Key, causes[k.Kind]}
		if k.Kind == kindInfer {
			free, bytes, files, labels = inferFree, inferKeptBytes, inferKeptFiles, labels[:1]
		}
		if k.Free >= 0 {
			e.gauge(free, float64(k.Free), labels...)
		}
		if k.Counted {
			e.gauge(bytes, float64(k.Bytes), labels...)
			e.gauge(files, float64(k.Files), labels...)
		}
	}
	keys, err := pipeline.ListKeys(c.site.runtimeDir)
	if err != nil {
		c.site.log.Warn("metrics: the keys of this host cannot be listed", "error", err)
	}
	for _, k := range keys {
		e.publisher(k)
	}
}

type emitter struct{ out chan<- prometheus.Metric }

func (e emitter) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e.send(d, prometheus.GaugeValue, v, labels)
}

func (e emitter) count(d *prometheus.Desc, v uint64, labels ...string) {
	e.send(d, prometheus.CounterValue, float64(v), labels)
}

func (e emitter) seconds(d *prometheus.Desc, v pipeline.Seconds, labels ...string) {
	e.send(d, prometheus.CounterValue, v.Seconds(), labels)
}

func (e emitter) send(d *prometheus.Desc, t prometheus.ValueType, v float64, labels []string) {
	if m, err := prometheus.NewConstMetric(d, t, v, labels...); err == nil { // a reader's name that is no UTF-8 is left out
		e.out <- m
	}
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (e emitter) ingest(key string, s pipeline.IngestStats) {
	e.gauge(ingestConnected, bit(s.Connected), key)
	if n := s.Network; n != nil {
		e.count(ingestRTP, n.Packets, key)
		e.count(ingestRTPLost, n.Lost, key)
		if n.Clocked {
			e.gauge(ingestClock, n.Ahead.Seconds(), key)
		}
	}
	e.count(ingestConnects, s.Connects, key)
	e.count(ingestReconnects, s.Reconnects, key)
	for _, t := range []struct {
		name string
		pipeline.IngestTrackStats
	}{{"video", s.Video}, {"audio", s.Audio}} {
		if t.Codec == "" {
			continue
		}
		e.count(ingestPackets, t.Packets, key, t.name)
		e.count(ingestBytes, t.Bytes, key, t.name)
		e.count(ingestKeyframes, t.Keyframes, key, t.name)
		e.count(ingestGaps, t.Gaps, key, t.name)
		e.count(ingestCorrupt, t.Corrupt, key, t.name)
		e.count(ingestOversized, t.Oversized, key, t.name)
		e.gauge(ingestAge, t.Age().Seconds(), key, t.name)
	}
}

func (e emitter) record(s pipeline.RecordStats, labels ...string) {
	e.count(recordPackets, s.Packets, labels...)
	e.count(recordBytes, s.FileBytes, labels...)
	e.count(recordFiles, s.Files, labels...)
	e.count(recordLost, s.Lost, labels...)
	e.count(recordOverruns, s.Overruns, labels...)
	e.count(recordDropped, s.Dropped, labels...)
	e.count(recordFailures, s.Failures, labels...)
	e.gauge(recordFailing, bit(s.Failing), labels...)
	e.count(recordWrites, s.Writes, labels...)
	e.seconds(recordWriteS, s.WriteTime, labels...)
	e.count(recordSyncs, s.Syncs, labels...)
	e.seconds(recordSyncS, s.SyncTime, labels...)
	e.gauge(recordSlowest, s.Slowest.Seconds(), labels...)
	e.gauge(recordBusy, s.Busy.Seconds(), labels...)
	if !s.Newest.IsZero() {
		e.gauge(recordAge, time.Since(s.Newest).Seconds(), labels...)
	}
}

func (e emitter) infer(key string, s InferStats) {
	e.count(inferSent, s.Sent, key)
	e.count(inferResults, s.Results, key)
	e.count(inferLost, s.Dropped, key, "dropped")
	e.count(inferLost, s.Expired, key, "expired")
	e.count(inferLost, s.Refused, key, "refused")
	e.count(inferSessions, s.Sessions, key)
	e.count(inferUnwritten, s.Unwritten, key)
	e.count(inferTriggers, s.Triggers, key)
}

func (e emitter) push(key string, s pipeline.PushStats) {
	e.gauge(pushConnected, bit(s.Connections > 0), key)
	e.count(pushConnects, s.Connects, key)
	e.count(pushPackets, s.Packets, key)
	e.count(pushBytes, s.Bytes, key)
}

func (e emitter) publisher(k pipeline.KeyStatus) {
	if !k.Alive {
		return
	}
	e.gauge(publisherReaders, float64(len(k.Readers)), k.Key)
	if k.AgeSeconds != nil {
		e.gauge(publisherAge, *k.AgeSeconds, k.Key)
	}
	if k.Packets == nil {
		return
	}
	e.gauge(publisherRate, k.PacketsPerSecond, k.Key)
	e.gauge(publisherBits, k.KbitPerSecond*1000, k.Key)
	e.gauge(publisherSeconds, k.Packets.BufferedSeconds, k.Key)
	for _, r := range k.Readers {
		if r.Lag == nil {
			continue
		}
		at := strconv.Itoa(r.Bit)
		e.gauge(readerLag, float64(*r.Lag), k.Key, r.Name, at)
		e.gauge(readerSeen, *r.SeenSeconds, k.Key, r.Name, at)
		if n := k.Packets.BufferedPackets; n > 0 && !r.Frames {
			e.gauge(readerFill, float64(*r.Lag)/float64(n), k.Key, r.Name, at)
		}
	}
}
