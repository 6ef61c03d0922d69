package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/nnrp"
)

type nnrpDumpOptions struct {
	Reencode bool
	SDK      bool
}

func newNNRPDumpCommand(*globalOptions) *cobra.Command {
	var d nnrpDumpOptions
	c := &cobra.Command{
		Use:   "dump FILE|-",
		Short: "Print captured NNRP messages as JSON lines",
		Long: "Reads captured NNRP bytes, messages one after another, and prints each as one line of JSON with every field by its name in\n" +
			"the specification. Large blocks are shown by their SHA-256, the auth_block by its length alone.\n" +
			"A malformed message ends it with status 1; the error's name and the byte's offset in the input go to stderr.\n" + exitStatusHelp,
		Example: "  cfpipe nnrp dump capture.bin | jq 'select(.message == \"FRAME_SUBMIT\") | .metadata'\n" +
			"  cfpipe nnrp dump --reencode - < capture.bin | cmp - capture.bin",
		Args: oneFile,
		RunE: func(c *cobra.Command, a []string) error {
			in := c.InOrStdin()
			if a[0] != "-" {
				f, err := os.Open(a[0])
				if err != nil {
					return fmt.Errorf("nnrp dump: %w", err)
				}
				defer f.Close()
				in = f
			}
			out := bufio.NewWriter(c.OutOrStdout())
			err := d.run(in, out)
			return errors.Join(err, out.Flush()) // what came before a malformed message is still shown
		},
	}
	c.Flags().BoolVar(&d.Reencode, "reencode", false, "write the messages back to stdout, encoded anew, instead of JSON")
	c.Flags().BoolVar(&d.SDK, "sdk-hello", false, "CLIENT_HELLO bodies are in the public SDKs' order: extensions, then auth, without padding")
	return c
}

func (d *nnrpDumpOptions) run(in io.Reader, out io.Writer) error {
	r := nnrp.NewCaptureReader(in, nnrp.Limits{SDK: d.SDK})
	var buf []byte
	for {
		m, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return dumpError(err)
		case d.Reencode:
			buf, err = m.Message.Append(buf[:0], m.Header)
		default:
			if buf, err = nnrp.Describe(m.Offset, m.Wire, m.Message); err == nil {
				buf = append(buf, '\n')
			}
		}
		if err == nil {
			_, err = out.Write(buf)
		}
		if err != nil {
			return fmt.Errorf("nnrp dump: %w", err)
		}
	}
}

// dumpError names the error and the offset, also where that is 0.
func dumpError(err error) error {
	var e *nnrp.Error
	if errors.As(err, &e) {
		return fmt.Errorf("nnrp dump: %s at byte %d: %s", e.Code, e.Offset, e.Detail)
	}
	return fmt.Errorf("nnrp dump: %w", err)
}
