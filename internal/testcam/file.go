package testcam

import "errors"

// OpenClip reads a clip through FFmpeg.
func OpenClip(path string) (*Clip, error) { return nil, errors.New("--file is not built yet") }
