//go:build deps

// Package deps pins the modules that are chosen but not imported yet.
package deps

import (
	_ "github.com/HdrHistogram/hdrhistogram-go"
	_ "github.com/asticode/go-astiav"
	_ "github.com/bluenviron/gortsplib/v4"
	_ "github.com/bluenviron/mediacommon/v2/pkg/codecs/h264"
	_ "github.com/ebitengine/purego"
	_ "github.com/goccy/go-yaml"
	_ "github.com/pierrec/lz4/v4"
	_ "github.com/pion/rtcp"
	_ "github.com/pion/rtp"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/quic-go/quic-go"
	_ "github.com/spf13/cobra"
	_ "github.com/stretchr/testify/require"
	_ "github.com/thejerf/suture/v4"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sys/unix"
	_ "google.golang.org/grpc"
	_ "github.com/yalue/onnxruntime_go"
)
