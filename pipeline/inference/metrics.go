package inference

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are a runtime's counters. A nil *Metrics counts nothing.
type Metrics struct {
	sessions, frames *prometheus.CounterVec
	open             prometheus.Gauge
	queue, inference prometheus.Histogram
	batches          prometheus.Histogram
}

// NewMetrics makes the counters and registers them.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	seconds := []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5}
	m := &Metrics{
		sessions:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cfpipe_nnrp_sessions_total", Help: "Sessions by how they began: accepted or busy."}, []string{"outcome"}),
		frames:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cfpipe_nnrp_frames_total", Help: "Frames by outcome: result, dropped, busy, or the error's name."}, []string{"outcome"}),
		open:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "cfpipe_nnrp_sessions", Help: "Sessions that are open."}),
		queue:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cfpipe_nnrp_queue_seconds", Help: "Time that frames waited for the engine.", Buckets: seconds}),
		inference: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cfpipe_nnrp_inference_seconds", Help: "Time of a batch in the engine.", Buckets: seconds}),
		batches:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cfpipe_nnrp_batch_frames", Help: "Frames in a batch.", Buckets: []float64{1, 2, 4, 8, 16, 32}}),
	}
	for _, c := range []prometheus.Collector{m.sessions, m.frames, m.open, m.queue, m.inference, m.batches} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) session(d float64) {
	if m == nil {
		return
	}
	m.open.Add(d)
	if d > 0 {
		m.sessions.WithLabelValues("accepted").Inc()
	}
}

func (m *Metrics) refusedSession() {
	if m != nil {
		m.sessions.WithLabelValues("busy").Inc()
	}
}

func (m *Metrics) frame(outcome string, wait, _ time.Duration) {
	if m == nil {
		return
	}
	m.frames.WithLabelValues(outcome).Inc()
	if outcome == "result" {
		m.queue.Observe(wait.Seconds())
	}
}

func (m *Metrics) batch(n int, took time.Duration) {
	if m == nil {
		return
	}
	m.batches.Observe(float64(n))
	m.inference.Observe(took.Seconds())
}
