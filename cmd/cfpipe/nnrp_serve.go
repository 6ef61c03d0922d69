package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/internal/servercert"
	"github.com/cfpipe/cfpipe/nnrp/quictransport"
	"github.com/cfpipe/cfpipe/pipeline/inference"
	"github.com/cfpipe/cfpipe/pipeline/inference/onnx"
)

type nnrpServeOptions struct {
	Listen, Engine, Cert, KeyFile, TokenFile, Metrics string

	ONNX        onnx.Options
	MaxBody     byteSize
	MaxSessions int
	MaxQueue    int
	Concurrent  uint16
	BatchWait   time.Duration
	SDK         bool
	JSON        bool
}

func newNNRPServeCommand(o *globalOptions) *cobra.Command {
	s := nnrpServeOptions{MaxBody: 16 << 20}
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run an NNRP runtime: tensors in, results out",
		Long: "Listens for NNRP sessions over QUIC and runs their tensors through an engine.\n\n" +
			"  motion  mean absolute difference of luma by tile, 0 to 255; needs nothing\n" +
			"  onnx    an ONNX model with one picture as its input; needs the ONNX Runtime library (--onnxruntime)\n\n" +
			"Without --cert a certificate is made for this run. The address and the certificate's SHA-256 fingerprint, which clients can\n" +
			"pin, are printed to stdout. With --token-file only clients that know the token are served.\n" +
			"A frame that cannot be done within its latency budget is refused at once (server_busy), never queued for later.\n" + exitStatusHelp,
		Example: "  cfpipe nnrp serve --listen :4433\n" +
			"  cfpipe nnrp serve --engine onnx --model yolo.onnx --cert cert.pem --key-file key.pem --token-file token",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.run(c, o) },
	}
	f := c.Flags()
	f.StringVar(&s.Listen, "listen", ":4433", "UDP address; port 0 takes a free one")
	f.StringVar(&s.Engine, "engine", "motion", "motion or onnx")
	f.StringVar(&s.ONNX.Model, "model", "", "the .onnx file")
	f.StringVar(&s.ONNX.Library, "onnxruntime", "", "path of libonnxruntime.so (or $CFPIPE_ONNXRUNTIME; default: where the system finds it)")
	f.StringVar(&s.ONNX.Device, "device", "auto", "auto, cpu or cuda")
	f.IntVar(&s.ONNX.MaxBatch, "max-batch", 8, "frames a batch, for models whose batch axis is free")
	f.IntVar(&s.ONNX.Threads, "threads", 0, "CPU threads of the model (default: the library's choice)")
	f.DurationVar(&s.BatchWait, "batch-wait", 0, "how long the first frame of a batch waits for others")
	f.StringVar(&s.Cert, "cert", "", "PEM certificate chain, read again when it is renewed (default: one is made)")
	f.StringVar(&s.KeyFile, "key-file", "", "PEM key of --cert")
	f.StringVar(&s.TokenFile, "token-file", "", "file with the token that clients must show")
	f.Var(&s.MaxBody, "max-body", "largest message body")
	f.IntVar(&s.MaxSessions, "max-sessions", 64, "sessions at a time")
	f.IntVar(&s.MaxQueue, "max-queue", 64, "frames that may wait, over all sessions")
	f.Uint16Var(&s.Concurrent, "concurrent", 8, "frames under way a session")
	f.StringVar(&s.Metrics, "metrics", "", "serve Prometheus metrics over HTTP on this TCP address, at /metrics; port 0 takes a free one")
	f.BoolVar(&s.SDK, "sdk-hello", false, "expect CLIENT_HELLO bodies in the public SDKs' order")
	f.BoolVar(&s.JSON, "json", false, "print address and fingerprint as one line of JSON")
	return c
}

func (s *nnrpServeOptions) run(c *cobra.Command, o *globalOptions) error {
	quietQUIC()
	if (s.Cert == "") != (s.KeyFile == "") {
		return usageError{errors.New("--cert and --key-file go together")}
	}
	if s.Metrics != "" {
		if _, err := net.ResolveTCPAddr("tcp", s.Metrics); err != nil {
			return usageError{fmt.Errorf("--metrics: want HOST:PORT or :PORT: %w", err)}
		}
	}
	if s.MaxBody > 1<<30 || s.MaxBody < 4096 {
		return usageError{errors.New("--max-body: want 4KiB to 1GiB")}
	}
	engine, err := s.engine()
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	so := inference.ServerOptions{Engine: engine, Listen: s.Listen, Concurrent: s.Concurrent, MaxBody: uint32(s.MaxBody), SDK: s.SDK, Logger: o.Logger,
		Scheduler: inference.SchedulerOptions{MaxSessions: s.MaxSessions, MaxQueue: s.MaxQueue, BatchWait: s.BatchWait}}
	if s.Cert != "" {
		files, err := servercert.OpenFiles(s.Cert, s.KeyFile, o.Logger)
		if err != nil {
			return err
		}
		so.Certificate = files.Certificate
	}
	if s.TokenFile != "" {
		if so.Token, err = quictransport.LoadToken(s.TokenFile); err != nil {
			return err
		}
	}
	if s.Metrics != "" {
		stop, err := s.serveMetrics(&so)
		if err != nil {
			return err
		}
		defer stop()
		o.Logger.Info("nnrp metrics", "url", s.metricsURL())
	}
	server, err := inference.NewServer(so)
	if err != nil {
		return err
	}
	spec := engine.Spec()
	o.Logger.Info("nnrp runtime", "address", server.Addr().String(), "engine", spec.Name, "input", spec.String(), "token", s.TokenFile != "")
	if err := s.announce(c, server); err != nil {
		return errors.Join(err, server.Close())
	}
	return server.Run(c.Context())
}

func (s *nnrpServeOptions) announce(c *cobra.Command, server *inference.Server) error {
	url := "nnrps://" + server.Addr().String()
	if s.JSON {
		m := map[string]string{"url": url, "fingerprint": server.Fingerprint()}
		if s.Metrics != "" {
			m["metrics"] = s.metricsURL()
		}
		return json.NewEncoder(c.OutOrStdout()).Encode(m)
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "listening %s\nfingerprint %s\n", url, server.Fingerprint())
	return err
}

func (s *nnrpServeOptions) engine() (inference.Engine, error) {
	switch s.Engine {
	case "motion":
		return inference.Motion{}, nil
	case "onnx":
		if s.ONNX.Model == "" {
			return nil, usageError{errors.New("--engine onnx needs --model FILE")}
		}
		return onnx.Open(s.ONNX)
	}
	return nil, usageError{fmt.Errorf("--engine %q: want motion or onnx", s.Engine)}
}

// serveMetrics registers the runtime's counters and serves them over HTTP.
func (s *nnrpServeOptions) serveMetrics(so *inference.ServerOptions) (stop func(), err error) {
	r := prometheus.NewRegistry()
	if so.Scheduler.Metrics, err = inference.NewMetrics(r); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	l, err := net.Listen("tcp", s.Metrics)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	s.Metrics = l.Addr().String()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	h := &http.Server{Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Serve(l)
	}()
	return func() {
		_ = h.Close()
		<-done
	}, nil
}

func (s *nnrpServeOptions) metricsURL() string { return "http://" + s.Metrics + "/metrics" }

// quietQUIC keeps quic-go from writing about socket buffer sizes past the logger.
func quietQUIC() { _ = os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") }
