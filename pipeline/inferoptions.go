package pipeline

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/quictransport"
)

// SetFormat reads the tensor's size (WxH), dtype and layout; "" leaves the choice to the model. Errors begin with the name of the option.
func (o *InferOptions) SetFormat(size, dtype, layout string) (err error) {
	if size != "" {
		w, h, ok := strings.Cut(size, "x")
		width, werr := strconv.Atoi(w)
		height, herr := strconv.Atoi(h)
		if !ok || werr != nil || herr != nil || width < 1 || height < 1 || width > 65535 || height > 65535 {
			return fmt.Errorf("size %.40q: want WxH, such as 640x640", size)
		}
		o.Format.Width, o.Format.Height = width, height
	}
	if o.DTypeIsSet = dtype != ""; o.DTypeIsSet {
		if o.Format.DType, err = nnrp.ParseDType(dtype); err != nil {
			return fmt.Errorf("dtype: %w", err)
		}
	}
	if o.LayoutIsSet = layout != ""; o.LayoutIsSet {
		if o.Format.Layout, err = nnrp.ParseLayout(layout); err != nil {
			return fmt.Errorf("layout: %w", err)
		}
	}
	return nil
}

// Check finds what can be told to be wrong before anything is connected. Errors begin with the name of the option.
func (o *InferOptions) Check() error {
	if _, _, err := quictransport.ParseURL(o.To); err != nil {
		return fmt.Errorf("to: %w", err)
	}
	switch c := o.Format.Channels; {
	case c != 0 && c != 1 && c != 3:
		return fmt.Errorf("channels: %d: want 1 or 3", c)
	case !(o.FPS >= 0 && o.FPS <= 1000):
		return errors.New("fps: want 0 to 1000")
	case o.Tile < 0 || o.Tile > 65535:
		return errors.New("tile: want 0 to 65535")
	case o.Threshold < 0:
		return errors.New("threshold: it is negative")
	case o.InFlight < 1:
		return errors.New("in-flight: want 1 or more")
	case o.Latency < time.Millisecond || o.Latency > 65*time.Second:
		return errors.New("latency: want 1ms to 65s")
	}
	return nil
}
