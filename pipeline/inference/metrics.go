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
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cfpipe_nnrp_" + name, Help: help}, []string{"outcome"})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cfpipe_nnrp_" + name, Help: help, Buckets: buckets})
	}
	m := &Metrics{
		sessions:  counter("sessions_total", "Sessions by how they began: accepted or busy."),
		frames:    counter("frames_total", "Frames by outcome: result, dropped, busy, or the error's name."),
		open:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "cfpipe_nnrp_sessions", Help: "Sessions that are open."}),
		queue:     histogram("queue_seconds", "Time that frames waited for the engine.", seconds),
		inference: histogram("inference_seconds", "Time of a batch in the engine.", seconds),
		batches:   histogram("batch_frames", "Frames in a batch.", []float64{1, 2, 4, 8, 16, 32}),
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
