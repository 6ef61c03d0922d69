package recordings

import (
	"io"
	"os"

	"github.com/cfpipe/cfpipe/mux"
)

// source is a file that an export reads.
type source struct {
	*mux.Reader
	f *os.File
}

func (s *source) Close() {
	s.Reader.Close()
	s.f.Close()
}

// open opens a recorded file to read its bytes: no link is followed.
func (f *File) open() (*os.File, error) {
	root, name, err := f.at()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return openPlain(root, name)
}

func (e *exporter) open(f File) (*source, error) {
	file, err := f.open()
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, err
	}
	end := info.Size()
	if !f.Finished { // the torn end of a fragment is no access unit
		if s, err := mux.Summarize(e.ctx, file); err == nil {
			end = s.Bytes
		}
	}
	// Not beyond what there was when the file was opened: it may be growing.
	r, err := mux.OpenReader(e.ctx, io.NewSectionReader(file, 0, end), f.Start, e.log)
	if err != nil {
		file.Close()
		return nil, err
	}
	return &source{r, file}, nil
}
