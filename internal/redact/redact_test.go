package redact

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMask(t *testing.T) {
	s := New([]string{"p@ss/w\"rd", "hunter", "hunter2", "abc", "rtsp://u:inner@cam/live/key1?k=query1", "a%20b%20c", "half% way", "first#second"})
	for text, want := range map[string]string{
		"it is p@ss/w\"rd":                "it is ***",
		fmt.Sprintf("%q", "p@ss/w\"rd"):   `"***"`,
		"http://x/p%40ss%2Fw%22rd?":       "http://x/***?",
		"hunter2 and hunter":              "*** and ***",
		"abc is too short":                "abc is too short",
		"rtsp://u@cam/live/key1":          "rtsp://u@cam/***",
		"password inner, query1":          "password ***, ***",
		"open rtsp://cam/live/key1?k=no:": "open rtsp://cam/***?k=no:",
		"rtsp://cam/half%%20way":          "rtsp://cam/***",
		"http://x/first":                  "http://x/***",
		"a b c":                           "***",
	} {
		require.Equal(t, want, s.Mask(text))
	}
	err := s.Error(fmt.Errorf("stat /hunter2: %w", fs.ErrNotExist))
	require.EqualError(t, err, "stat /***: file does not exist")
	require.ErrorIs(t, err, fs.ErrNotExist)

	s.Use([]string{"newer"})
	require.Equal(t, "*** ***", s.Mask("hunter2 newer"), "what was begun with the old ones may speak still")
	s.Use(nil)
	s.Use(nil)
	require.Equal(t, "hunter2 newer", s.Mask("hunter2 newer"))
	var none *Set
	require.Equal(t, "hunter2", none.Mask("hunter2"))
}

func TestLogger(t *testing.T) {
	var b bytes.Buffer
	s := &Set{}
	log := s.Logger(slog.New(slog.NewJSONHandler(&b, nil)))
	s.Use([]string{"hunter2"})
	log.With("to", "http://x/hunter2").WithGroup("g").Error("open hunter2", "error", errors.New("no hunter2"), "list", []string{"hunter2"},
		slog.Group("in", "side", "hunter2"), "n", 7, "left", []string{"alone"})
	require.NotContains(t, b.String(), "hunter2")
	for _, part := range []string{`"msg":"open ***"`, `"to":"http://x/***"`, `"g":{"error":"no ***"`, `"in":{"side":"***"}`,
		`"n":7`, `"left":["alone"]`} {
		require.Contains(t, b.String(), part)
	}
}
