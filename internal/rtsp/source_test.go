package rtsp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

func b64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func sprop() string {
	return "packetization-mode=1; sprop-parameter-sets=" + b64(tinySPS) + "," + b64(tinyPPS)
}

// steady plays pictures until the client goes.
func steady(c *camConn) {
	s := c.stream(0, 96)
	time := uint32(1000)
	for s.c.sleep(5e6) {
		time = s.pictures(time, 10, 0)
	}
}

func begin(t *testing.T, d time.Duration) {
	t.Helper()
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, d)
}

// Case b3, and the whole way: DESCRIBE to TEARDOWN over TCP and UDP.
func TestSourcePlays(t *testing.T) {
	for _, transport := range []Transport{TransportTCP, TransportUDP, TransportAuto} {
		t.Run(string(transport), func(t *testing.T) {
			begin(t, 30*time.Second)
			cam := newFakeCam(t, sdpH264(sprop())+sdpAudio)
			cam.play = func(c *camConn) {
				v, a := c.stream(0, 96), c.stream(1, 8)
				time, audio := uint32(0xFFFFF000), uint32(5)
				for c.sleep(5e6) {
					time = v.pictures(time, 10, 0)
					for range 10 {
						a.send(audio, false, make([]byte, 320)...)
						audio += 320
					}
				}
			}
			cam.start()
			r := runSource(t, SourceOptions{URL: cam.url("/stream?x=1"), Transport: transport})
			got := r.wait(t, 60)
			require.ErrorIs(t, r.stop(t), context.Canceled)
			require.Equal(t, 1, cam.count("TEARDOWN"))
			tracks := r.lastTracks()
			require.Len(t, tracks, 2)
			require.Equal(t, media.H264, tracks[0].CodecID)
			require.Equal(t, join(tinySPS, tinyPPS), tracks[0].Extradata)
			require.Equal(t, media.PCMAlaw, tracks[1].CodecID)
			require.Equal(t, "rate=8000;channels=1", string(tracks[1].Extradata))
			n := 0
			var last [2]int64
			for _, p := range got {
				require.NotZero(t, p.Flags&media.FlagLastInAU)
				require.Greater(t, p.DTS, last[p.track])
				last[p.track] = p.DTS
				if p.track == 1 {
					require.Len(t, p.Data, 320)
					continue
				}
				nal := h264Slice(n%10 == 0, true, byte(n%10), 40)
				if n%10 == 0 {
					require.NotZero(t, p.Flags&media.FlagKey)
					require.Equal(t, join(tinySPS, tinyPPS, nal), p.Data, "parameter sets in front of every keyframe")
				} else {
					require.Equal(t, join(nal), p.Data)
					require.Zero(t, p.Flags&media.FlagKey)
				}
				require.Zero(t, p.Flags&(media.FlagCorrupt|media.FlagDiscontinuity))
				n++
			}
			require.WithinDuration(t, time.Now(), time.Unix(0, got[0].PTS), 30*time.Second)
		})
	}
}

// Case b2: what the description lacks comes from the stream.
func TestParameterSetsFromStream(t *testing.T) {
	for name, fmtp := range map[string]string{
		"no fmtp": "", "no value": "packetization-mode=1", "empty value": "packetization-mode=1;sprop-parameter-sets=",
		"trailing comma": "sprop-parameter-sets=" + b64(tinySPS) + ",", "not base64": "sprop-parameter-sets=!!!,???",
		"start codes": "sprop-parameter-sets=" + b64(join(tinySPS)) + "," + b64([]byte{0}), "no SPS": "sprop-parameter-sets=," + b64(tinyPPS),
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, 30*time.Second)
			cam := newFakeCam(t, sdpH264(fmtp))
			cam.play = func(c *camConn) {
				s := c.stream(0, 96)
				for i := range uint32(20) {
					if i == 10 {
						s.send(i*3600, false, tinySPS...)
						s.send(i*3600, false, tinyPPS...)
					}
					s.send(i*3600, true, h264Slice(i%10 == 0, true, byte(i), 40)...)
				}
				<-c.done
			}
			cam.start()
			r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP})
			got := r.wait(t, 10)
			require.Equal(t, join(tinySPS, tinyPPS, h264Slice(true, true, 10, 40)), got[0].Data)
			require.Equal(t, join(tinySPS, tinyPPS), r.lastTracks()[0].Extradata)
			require.EqualValues(t, 10, r.source.Stats().Waiting)
		})
	}
}

// Cases b3 and b4 with H.265: sets in the description, or in an aggregation packet with its own timestamp.
func TestH265ParameterSets(t *testing.T) {
	vps, pps := []byte{0x40, 1, 0x0C, 1}, []byte{0x44, 1, 0xC0, 0xF1}
	sps := []byte{0x42, 1, 1, 1, 0x60, 0, 0, 3, 0, 0x90, 0, 0, 3, 0, 0, 3, 0, 0x5D, 0xA0, 2, 0x80, 0x80, 0x2E, 0x1F, 0x13}
	for name, inBand := range map[string]bool{"description": false, "stream": true} {
		t.Run(name, func(t *testing.T) {
			begin(t, 30*time.Second)
			sdp := sdpHead + "m=video 0 RTP/AVP 97\r\na=rtpmap:97 H265/90000\r\n"
			if !inBand {
				sdp += "a=fmtp:97 sprop-vps=" + b64(vps) + ";sprop-sps=" + b64(sps) + ";sprop-pps=" + b64(pps) + "\r\n"
			}
			cam := newFakeCam(t, sdp)
			cam.play = func(c *camConn) {
				s := c.stream(0, 97)
				if inBand {
					s.send(100, true, aggregate(true, vps, sps, pps)...)
				}
				s.send(3700, true, h265Slice(19, 1, true, 40)...)
				s.send(7300, true, h265Slice(1, 2, true, 40)...)
				<-c.done
			}
			cam.start()
			r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP})
			got := r.wait(t, 2)
			require.Equal(t, join(vps, sps, pps, h265Slice(19, 1, true, 40)), got[0].Data)
			require.Equal(t, join(vps, sps, pps), r.lastTracks()[0].Extradata)
		})
	}
}

// Case b1: the SPS alternates, the pictures stay the same: no discontinuity, the new set is in front. Case b10: another size is
// a discontinuity and is announced.
func TestSPSChanges(t *testing.T) {
	begin(t, 30*time.Second)
	other := append([]byte{}, tinySPS...)
	other[len(other)-2] ^= 0x10 // inside the VUI
	small := []byte{0x67, 0x42, 0xC0, 0x0A, 0xD9, 0x0B, 0x13, 0x20}
	cam := newFakeCam(t, sdpH264(sprop()))
	cam.play = func(c *camConn) {
		s := c.stream(0, 96)
		for i, sps := range [][]byte{tinySPS, other, tinySPS, other, small} {
			s.send(uint32(i*3600), false, aggregate(false, sps, tinyPPS)...)
			s.send(uint32(i*3600), true, h264Slice(true, true, byte(i), 40)...)
		}
		<-c.done
	}
	cam.start()
	r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP})
	got := r.wait(t, 5)
	for i, p := range got {
		require.Equal(t, i == 4, p.Flags&media.FlagDiscontinuity != 0, i)
		require.NotZero(t, p.Flags&media.FlagKey)
	}
	require.Contains(t, string(got[1].Data), string(other))
	require.Equal(t, join(small, tinyPPS), r.lastTracks()[0].Extradata)
}

// Case b6: with a right marker nothing waits for the next frame.
func TestNoFrameOfLatency(t *testing.T) {
	begin(t, 30*time.Second)
	cam := newFakeCam(t, sdpH264(sprop()))
	next := make(chan bool)
	cam.play = func(c *camConn) {
		s := c.stream(0, 96)
		for i := range uint32(5) {
			s.send(i*3600, true, h264Slice(i == 0, true, byte(i), 40)...)
			<-next
		}
		<-c.done
	}
	cam.start()
	r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP})
	for i := range 5 {
		r.wait(t, i+1) // the next frame is not sent before this one is through
		next <- true
	}
}

var digest = "Digest realm=\"IP Camera(12345)\", nonce=\"%s\""

// Case r1: any characters, in the URL (escaped or not) and beside it, through Basic and Digest; never in a log or an error.
func TestCredentials(t *testing.T) {
	const nasty = "`~!@#$%^&*()-_;',.<>:\"{}[]@ "
	for _, c := range []struct {
		name, challenge string
		sha             bool
		qop             string
	}{
		{"basic", `Basic realm="x"`, false, ""},
		{"md5", fmt.Sprintf(digest, "n1"), false, ""},
		{"md5 named", fmt.Sprintf(digest, "n1") + `, algorithm="MD5", stale=FALSE`, false, ""},
		{"md5 qop", fmt.Sprintf(digest, "n1") + `, qop="auth,auth-int", opaque="op, aque"`, false, "auth"},
		{"sha-256", fmt.Sprintf(digest, "n1") + `, algorithm=SHA-256`, true, ""},
		{"sha-256 qop", fmt.Sprintf(digest, "n1") + `, algorithm=SHA-256, qop="auth"`, true, "auth"},
	} {
		for _, form := range []string{"plain", "escaped", "flags"} {
			t.Run(c.name+" "+form, func(t *testing.T) {
				begin(t, 30*time.Second)
				cam := newFakeCam(t, sdpH264(sprop()))
				cam.play = steady
				const path = "/cam/realmonitor?channel=1&subtype=0"
				counts := map[string]bool{}
				cam.answer = func(conn *camConn, r *camRequest) bool {
					if strings.Contains(r.raw, "@") && !strings.Contains(r.header["authorization"], "@") {
						t.Errorf("credentials in %q", r.raw)
					}
					switch a := r.header["authorization"]; {
					case a == "":
						conn.reply(r, "401 Unauthorized", "WWW-Authenticate: "+c.challenge)
						return true
					case c.name == "basic":
						if a != "Basic "+b64([]byte("admin:"+nasty)) {
							t.Errorf("authorization %q", a)
						}
					default:
						p := authParams(strings.TrimPrefix(a, "Digest "))
						want := digestOf(c.sha, "admin", "IP Camera(12345)", nasty, r.method, r.uri, "n1", p["nc"], p["cnonce"], c.qop)
						if p["response"] != want || p["uri"] != r.uri || p["username"] != "admin" || p["qop"] != c.qop {
							t.Errorf("authorization %q for %s %s", a, r.method, r.uri)
						}
						if c.qop != "" && (p["opaque"] != "op, aque" && c.name == "md5 qop" || counts[p["nc"]] || len(p["nc"]) != 8) {
							t.Errorf("authorization %q: opaque or counter", a)
						}
						counts[p["nc"]] = true
					}
					return false
				}
				cam.start()
				o := SourceOptions{Transport: TransportTCP}
				switch form {
				case "plain":
					o.URL = strings.Replace(cam.url(path), "rtsp://", "rtsp://admin:"+nasty+"@", 1)
				case "escaped":
					esc := ""
					for _, b := range []byte(nasty) {
						esc += fmt.Sprintf("%%%02X", b)
					}
					o.URL = strings.Replace(cam.url(path), "rtsp://", "rtsp://admin:"+esc+"@", 1)
				default:
					o.URL, o.Username, o.Password = cam.url(path), "admin", nasty
				}
				r := runSource(t, o)
				r.wait(t, 5)
				require.ErrorIs(t, r.stop(t), context.Canceled)
				require.Equal(t, cam.url(path), r.source.Name())
				require.NotContains(t, r.log.String(), nasty)
				require.NotContains(t, fmt.Sprintf("%v", r.source.Name()), "admin")
				for _, req := range cam.requests {
					if req.method == "SETUP" {
						require.Equal(t, cam.url(path)+"/trackID=0", req.uri, "the query stays in the URI")
					}
				}
			})
		}
	}
}

func TestWrongPassword(t *testing.T) {
	begin(t, 30*time.Second)
	cam := newFakeCam(t, sdpH264(sprop()))
	cam.answer = func(c *camConn, r *camRequest) bool {
		c.reply(r, "401 Unauthorized", "WWW-Authenticate: "+fmt.Sprintf(digest, "same"))
		return true
	}
	cam.start()
	asked := 0
	for _, c := range []struct{ login, hint string }{
		{"bob:secret@", "(user name or password)"},
		{"bob@", "(user name or password)"},
		{":secret@", "a password and no user name"},
		{"", "no user name and no password"},
	} {
		r := runSource(t, SourceOptions{URL: strings.Replace(cam.url("/x"), "rtsp://", "rtsp://"+c.login, 1), Transport: TransportTCP})
		err := r.ended(t)
		require.ErrorContains(t, err, "401")
		require.ErrorContains(t, err, c.hint)
		require.ErrorIs(t, err, media.ErrLogin)
		require.NotContains(t, err.Error(), "secret")
		require.LessOrEqual(t, len(cam.requests), asked+4, "not tried again and again: cameras lock out")
		asked = len(cam.requests)
	}
}

// A nonce that has become stale, also for keepalives, is replaced.
func TestStaleNonce(t *testing.T) {
	begin(t, 30*time.Second)
	cam := newFakeCam(t, sdpH264(sprop()))
	cam.play = steady
	cam.timeout = 2
	n := 0
	cam.answer = func(c *camConn, r *camRequest) bool {
		n++
		nonce := fmt.Sprintf("n%d", n/3)
		if p := authParams(strings.TrimPrefix(r.header["authorization"], "Digest ")); p["nonce"] != nonce {
			c.reply(r, "401 Unauthorized", "WWW-Authenticate: "+fmt.Sprintf(digest, nonce)+", stale=true")
			return true
		}
		return false
	}
	cam.start()
	r := runSource(t, SourceOptions{URL: strings.Replace(cam.url("/x"), "rtsp://", "rtsp://bob:secret@", 1), Transport: TransportTCP})
	r.wait(t, 5)
	testenv.Eventually(t, 10*time.Second, func() error {
		if cam.count("GET_PARAMETER") < 3 {
			return errors.New("no keepalive")
		}
		return nil
	})
	require.ErrorIs(t, r.stop(t), context.Canceled)
}

// Case r2: channels renumbered by the server, ssrc in front of interleaved.
func TestOddSetup(t *testing.T) {
	for name, answers := range map[string][]string{
		"renumbered":          {"RTP/AVP/TCP;unicast;interleaved=4-5", "RTP/AVP/TCP;unicast;interleaved=2-3"},
		"swapped":             {"RTP/AVP/TCP;unicast;interleaved=2-3", "RTP/AVP/TCP;unicast;interleaved=0-1"},
		"ssrc in front":       {"RTP/AVP/TCP;unicast;ssrc=CAFE0000;interleaved=0-1", "RTP/AVP/TCP;ssrc=1;unicast;interleaved=2-3;mode=\"PLAY\""},
		"spaces, bad ssrc":    {"RTP/AVP/TCP; unicast; ssrc= zzz; interleaved=0-1", "RTP/AVP/TCP; unicast; interleaved=2-3; ssrc="},
		"one number":          {"RTP/AVP/TCP;unicast;interleaved=0", "RTP/AVP/TCP;unicast;interleaved=2"},
		"not confirmed":       {"RTP/AVP/TCP;unicast", ""},
		"destination, source": {"RTP/AVP/TCP;unicast;destination=10.0.0.1;source=10.0.0.2;interleaved=0-1", "RTP/AVP/TCP;unicast;interleaved=2-3"},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, 30*time.Second)
			cam := newFakeCam(t, sdpH264(sprop())+sdpAudio)
			cam.base = "" // request URL
			n := 0
			cam.setup = func(c *camConn, r *camRequest) string {
				if !strings.Contains(answers[n], "interleaved") {
					c.channels = append(c.channels, 2*n)
				}
				n++
				return answers[n-1]
			}
			cam.play = func(c *camConn) {
				v, a := c.stream(0, 96), c.stream(1, 8)
				for i := uint32(0); c.sleep(2e6); i++ {
					v.send(i*3600, true, h264Slice(i%5 == 0, true, byte(i), 40)...)
					a.send(i*320, false, make([]byte, 320)...)
				}
			}
			cam.start()
			r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP})
			got := r.wait(t, 20)
			seen := map[int]int{}
			for _, p := range got {
				seen[p.track]++
				require.Equal(t, p.track == 1, len(p.Data) == 320)
			}
			require.Greater(t, seen[0], 5)
			require.Greater(t, seen[1], 5)
		})
	}
}

// Media may come in front of the answer to PLAY, and a server may ask things.
func TestEarlyMediaAndServerRequests(t *testing.T) {
	begin(t, 30*time.Second)
	cam := newFakeCam(t, sdpH264(sprop()))
	cam.answer = func(c *camConn, r *camRequest) bool {
		if r.method != "PLAY" {
			return false
		}
		s := c.stream(0, 96)
		s.pictures(0, 3, 0)
		c.write([]byte("OPTIONS rtsp://x/ RTSP/1.0\r\nCSeq: 77\r\n\r\n"))
		c.write([]byte("\r\n\x00junk\r\nJUNK\r\n"))
		s.send(3*3600, true, h264Slice(false, true, 3, 40)...)
		c.reply(r, "200 OK")
		s.pictures(4*3600, 2, 0)
		return true
	}
	cam.start()
	r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP})
	r.wait(t, 6)
}

// Case r3: the session lives by GET_PARAMETER alone.
func TestKeepAlive(t *testing.T) {
	begin(t, 40*time.Second)
	var cams []*fakeCam
	var runs []*running
	for _, public := range []string{"OPTIONS, DESCRIBE, SETUP, PLAY, GET_PARAMETER", "OPTIONS, DESCRIBE, SETUP, PLAY"} { // named, and not named
		cam := newFakeCam(t, sdpH264(sprop()))
		cam.public = public
		cam.timeout = 2
		cam.play = func(c *camConn) {
			s := c.stream(0, 96)
			time0, seen := time.Now(), 0
			for i := uint32(0); c.sleep(10e6); i++ {
				if n := cam.count("GET_PARAMETER"); n > seen {
					seen, time0 = n, time.Now()
				}
				if time.Since(time0) > 2*time.Second {
					c.nc.Close()
					return
				}
				s.send(i*900, true, h264Slice(i%10 == 0, true, byte(i), 40)...)
			}
		}
		cam.start()
		cams = append(cams, cam)
		runs = append(runs, runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP}))
	}
	for i, cam := range cams {
		testenv.Eventually(t, 20*time.Second, func() error {
			if n := cam.count("GET_PARAMETER"); n < 3 {
				return fmt.Errorf("%d keepalives", n)
			}
			return nil
		})
		require.ErrorIs(t, runs[i].stop(t), context.Canceled, "the camera has not closed the session")
	}
}

// Case r5: silence without a closed connection ends the run, and TEARDOWN is sent all the same (r4).
func TestSilence(t *testing.T) {
	begin(t, 30*time.Second)
	cam := newFakeCam(t, sdpH264(sprop()))
	cam.play = func(c *camConn) {
		c.stream(0, 96).pictures(0, 5, 0)
		<-c.done
	}
	cam.start()
	r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP, Timeout: 400 * time.Millisecond})
	begun := time.Now()
	err := r.ended(t)
	require.ErrorIs(t, err, errSilent)
	require.Less(t, time.Since(begun), 8*time.Second) // the default is 10 s
	require.Equal(t, 1, cam.count("TEARDOWN"))
}

// A server that answers nothing is given up after the timeout, in every phase.
func TestNoAnswer(t *testing.T) {
	for _, method := range []string{"OPTIONS", "DESCRIBE", "SETUP", "PLAY"} {
		t.Run(method, func(t *testing.T) {
			begin(t, 30*time.Second)
			cam := newFakeCam(t, sdpH264(sprop()))
			cam.answer = func(_ *camConn, r *camRequest) bool { return r.method == method }
			cam.start()
			r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP, Timeout: 200 * time.Millisecond})
			require.ErrorContains(t, r.ended(t), method)
		})
	}
}

// Case r4: TEARDOWN reaches the camera while it sends at full rate, and when the sink refuses.
func TestTeardown(t *testing.T) {
	for _, sinkFails := range []bool{false, true} {
		begin(t, 30*time.Second)
		cam := newFakeCam(t, sdpH264(sprop()))
		cam.play = func(c *camConn) {
			s := c.stream(0, 96)
			for i := uint32(0); ; i++ {
				if !s.send(i*3600, true, h264Slice(i%10 == 0, true, byte(i), 1400)...) {
					return
				}
			}
		}
		cam.start()
		r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP})
		r.wait(t, 100)
		if sinkFails {
			r.mu.Lock()
			r.onPacket = func(int, media.Packet) error { return errFromSink }
			r.mu.Unlock()
			require.ErrorIs(t, r.ended(t), errFromSink)
		} else {
			require.ErrorIs(t, r.stop(t), context.Canceled)
		}
		require.Equal(t, 1, cam.count("TEARDOWN"))
	}
}

// Case r6: swapped datagrams are put in order; a missing one is waited for, but not for long, and costs its unit alone.
func TestDatagramOrder(t *testing.T) {
	begin(t, 30*time.Second)
	cam := newFakeCam(t, sdpH264(sprop()))
	lostAt := make(chan time.Time, 1)
	cam.play = func(c *camConn) {
		s := c.stream(0, 96)
		var list [][]byte
		for i := range uint32(60) {
			for _, fu := range fragments(h264Slice(i%10 == 0, true, byte(i), 300), false, 60) {
				list = append(list, s.packet(i*3600, fu[1]&0x40 != 0, fu))
			}
		}
		for i := 1; i+3 < len(list); i += 4 { // by one, then by two
			list[i], list[i+1] = list[i+1], list[i]
			if i%8 == 1 {
				list[i+1], list[i+3] = list[i+3], list[i+1]
			}
		}
		for _, p := range list {
			s.raw(p)
			if !c.sleep(time.Millisecond / 2) {
				return
			}
		}
		s.raw(list[7]) // a duplicate from long ago
		s.seq++        // one is lost, and only one more comes
		lostAt <- time.Now()
		s.send(60*3600, true, h264Slice(false, true, 60, 40)...)
		<-c.done
	}
	cam.start()
	r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportUDP, ReorderWait: time.Second})
	got := r.wait(t, 61)
	for i, p := range got[:60] {
		want := join(h264Slice(i%10 == 0, true, byte(i), 300))
		if i%10 == 0 {
			want = join(tinySPS, tinyPPS, h264Slice(true, true, byte(i), 300))
		}
		require.Equal(t, want, p.Data, i)
		require.Zero(t, p.Flags&(media.FlagCorrupt|media.FlagDiscontinuity), i)
	}
	last := got[60]
	require.NotZero(t, last.Flags&media.FlagDiscontinuity)
	require.Less(t, last.at.Sub(<-lostAt), 5*time.Second)
	require.ErrorIs(t, r.stop(t), context.Canceled)
	require.GreaterOrEqual(t, r.source.Stats().RTPLost, uint64(1))
}

// A source in the answer to SETUP that is not the server: nothing is sent there, the server's own datagrams are taken.
func TestSourceElsewhere(t *testing.T) {
	begin(t, 30*time.Second)
	cam := newFakeCam(t, sdpH264(sprop()))
	cam.setup = func(c *camConn, r *camRequest) string {
		return c.listen(r.header["transport"]) + ";source=127.0.0.2"
	}
	var punched atomic.Bool
	cam.play = func(c *camConn) {
		_ = c.udp[0].rtp.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, _, err := c.udp[0].rtp.ReadFromUDP(make([]byte, 100))
		punched.Store(err == nil)
		c.stream(0, 96).pictures(0, 20, 1e6)
		<-c.done
	}
	cam.start()
	r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportUDP})
	r.wait(t, 10)
	require.True(t, punched.Load(), "the server itself gets the packet that opens the way")
	_ = r.stop(t)
	require.Contains(t, r.log.String(), "another source")
}

// A server that refuses one transport gets the other.
func TestAutomaticTransport(t *testing.T) {
	for name, refuse := range map[string]func(c *camConn, r *camRequest) bool{
		"461": func(c *camConn, r *camRequest) bool {
			if r.method == "SETUP" && strings.Contains(r.header["transport"], "TCP") {
				c.reply(r, "461 Unsupported Transport")
				return true
			}
			return false
		},
		"answers with UDP": func(c *camConn, r *camRequest) bool {
			if r.method == "SETUP" && strings.Contains(r.header["transport"], "TCP") {
				c.reply(r, "200 OK", "Session: 9", "Transport: RTP/AVP;unicast;client_port=5000-5001;server_port=6000-6001")
				return true
			}
			if r.method == "TEARDOWN" && r.header["session"] == "9" {
				c.reply(r, "200 OK")
				return true
			}
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, 30*time.Second)
			cam := newFakeCam(t, sdpH264(sprop()))
			cam.play = steady
			cam.answer = refuse
			cam.start()
			r := runSource(t, SourceOptions{URL: cam.url("/")})
			r.wait(t, 20)
			require.NotEmpty(t, cam.conns[0].udp)
		})
	}
	t.Run("tcp asked for", func(t *testing.T) {
		begin(t, 30*time.Second)
		cam := newFakeCam(t, sdpH264(sprop()))
		cam.answer = func(c *camConn, r *camRequest) bool {
			if r.method == "SETUP" {
				c.reply(r, "461 Unsupported Transport")
				return true
			}
			return false
		}
		cam.start()
		r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP})
		require.ErrorIs(t, r.ended(t), errOtherTransport)
	})
}

// With TCP that brings nothing, the next connection tries UDP.
func TestSilentTCPThenUDP(t *testing.T) {
	begin(t, 30*time.Second)
	cam := newFakeCam(t, sdpH264(sprop()))
	cam.play = func(c *camConn) {
		if len(c.udp) > 0 {
			steady(c)
		}
		<-c.done
	}
	cam.start()
	r := runSource(t, SourceOptions{URL: cam.url("/"), Timeout: 400 * time.Millisecond})
	require.ErrorIs(t, r.ended(t), errSilent)
	<-r.done
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() { r.done <- r.source.Run(ctx, r.collector) }()
	r.wait(t, 20)
}

func TestMulticast(t *testing.T) {
	begin(t, 30*time.Second)
	group := &net.UDPAddr{IP: net.IPv4(239, 255, 77, 7), Port: 30000 + int(time.Now().UnixNano()/1000%1000)*2}
	out, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, group)
	if err != nil {
		t.Skipf("no multicast here: %v", err)
	}
	t.Cleanup(func() { out.Close() })
	cam := newFakeCam(t, sdpH264(sprop()))
	cam.setup = func(_ *camConn, r *camRequest) string {
		if !strings.Contains(r.header["transport"], "multicast") {
			t.Errorf("asked for %q", r.header["transport"])
		}
		return fmt.Sprintf("RTP/AVP;multicast;destination=%s;port=%d-%d;ttl=1", group.IP, group.Port, group.Port+1)
	}
	cam.play = func(c *camConn) {
		s := c.stream(0, 96)
		for i := uint32(0); c.sleep(2e6); i++ {
			_, _ = out.Write(s.packet(i*3600, true, h264Slice(i%10 == 0, true, byte(i), 40)))
		}
	}
	cam.start()
	r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportMulticast})
	r.wait(t, 20)
}

// A redirect is followed; credentials do not go to another host.
func TestRedirect(t *testing.T) {
	begin(t, 30*time.Second)
	to := newFakeCam(t, sdpH264(sprop()))
	to.play = steady
	to.start()
	cam := newFakeCam(t, "")
	cam.answer = func(c *camConn, r *camRequest) bool {
		if r.method == "DESCRIBE" {
			c.reply(r, "302 Moved", "Location: "+to.url("/other"))
			return true
		}
		return false
	}
	cam.start()
	r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP})
	r.wait(t, 5)
	require.Equal(t, to.url("/other"), to.requests[0].uri)
}

// A redirect to what is no camera is this connection's failure, not the end of the source.
func TestRedirectElsewhere(t *testing.T) {
	begin(t, 30*time.Second)
	cam := newFakeCam(t, "")
	cam.answer = func(c *camConn, r *camRequest) bool {
		if r.method == "DESCRIBE" {
			c.reply(r, "302 Moved", "Location: http://user:hidden@127.0.0.1/setup")
			return true
		}
		return false
	}
	cam.start()
	s, err := NewSource(SourceOptions{URL: cam.url("/"), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	err = s.Run(t.Context(), discard{})
	require.ErrorContains(t, err, "redirect")
	require.NotErrorIs(t, err, media.ErrUnsupported)
	require.NotContains(t, err.Error(), "hidden")
}

// Cases t2, t3: the time of day goes on when RTP time jumps. The sender reports' time is what counts.
func TestRTPTimeJumps(t *testing.T) {
	begin(t, 30*time.Second)
	cam := newFakeCam(t, sdpH264(sprop()))
	wall := time.Now().Add(-time.Hour)
	cam.play = func(c *camConn) {
		s := c.stream(0, 96)
		s.report(ntpTime(wall.UnixNano()), 4000000)
		next := s.pictures(4000000, 20, 5e6)
		next = s.pictures(next-2500000, 20, 5e6)
		s.pictures(next+8520*90000, 20, 5e6)
		<-c.done
	}
	cam.start()
	r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP})
	got := r.wait(t, 60)
	require.WithinDuration(t, wall, time.Unix(0, got[0].PTS), 10*time.Millisecond)
	for i, p := range got {
		require.Equal(t, i == 20 || i == 40, p.Flags&media.FlagDiscontinuity != 0, i)
		if i > 0 {
			require.Less(t, p.PTS-got[i-1].PTS, int64(5*time.Second), "no sample of hours")
			require.Greater(t, p.PTS, got[i-1].PTS)
		}
	}
}

// RTP timestamps that stand still: the pictures are as far apart as they arrive, and the log says so once.
func TestRTPTimeStandsStill(t *testing.T) {
	begin(t, 30*time.Second)
	cam := newFakeCam(t, sdpH264(sprop()))
	cam.play = func(c *camConn) {
		s := c.stream(0, 96)
		for i := 0; c.sleep(20 * time.Millisecond); i++ { // the camera's pace
			s.send(4000000, true, h264Slice(i%25 == 0, true, byte(i), 40)...)
		}
	}
	cam.start()
	r := runSource(t, SourceOptions{URL: cam.url("/"), Transport: TransportTCP})
	got := r.wait(t, 150)
	breaks := 0
	for i, p := range got[1:] {
		if p.Flags&media.FlagDiscontinuity != 0 {
			breaks++
			require.Less(t, i, 110, "once it is found out there is no further break")
		} else {
			require.Greater(t, p.DTS, got[i].DTS)
		}
	}
	require.LessOrEqual(t, breaks, 5)
	require.Greater(t, got[149].PTS-got[119].PTS, int64(30*20*time.Millisecond)*9/10)
	_ = r.stop(t)
	require.Equal(t, 1, strings.Count(r.log.String(), "time of arrival is taken"))
}

func TestDescriptions(t *testing.T) {
	for name, c := range map[string]struct {
		sdp  string
		want []uint32
	}{
		"video and audio":       {sdpH264("") + sdpAudio, []uint32{media.H264, media.PCMAlaw}},
		"metadata in front":     {sdpHead + "m=application 0 RTP/AVP 107\r\na=rtpmap:107 vnd.onvif.metadata/90000\r\na=control:m\r\n" + sdpH264("")[len(sdpHead):], []uint32{media.H264}},
		"back channel":          {sdpHead + sdpAudio + "a=sendonly\r\n" + sdpH264("")[len(sdpHead):], []uint32{media.H264}},
		"unknown codec left":    {sdpHead + "m=audio 0 RTP/AVP 99\r\na=rtpmap:99 SPEEX/8000\r\n" + sdpH264("")[len(sdpHead):], []uint32{media.H264}},
		"two formats":           {sdpHead + "m=video 0 RTP/AVP 98 96\r\na=rtpmap:98 rtx/90000\r\na=rtpmap:96 H265/90000\r\n", []uint32{media.HEVC}},
		"jpeg":                  {sdpHead + "m=video 0 RTP/AVP 26\r\n", []uint32{media.MJPEG}},
		"lines that are broken": {"v=0\nnonsense\n=\nm=\nm=video\nm=video 0 RTP/AVP 96\na=rtpmap:96 H264/90000\na=fmtp\na=rtpmap\n", []uint32{media.H264}},
		"opus":                  {sdpHead + "m=audio 0 RTP/AVP 111\r\na=rtpmap:111 opus/48000/2\r\n", []uint32{media.Opus}},
		"aac":                   {sdpHead + "m=audio 0 RTP/AVP 97\r\na=rtpmap:97 mpeg4-generic/16000\r\na=fmtp:97 mode=AAC-hbr;config=1408\r\n", []uint32{media.AAC}},
		"l16, static":           {sdpHead + "m=audio 0 RTP/AVP 10\r\n", []uint32{media.PCMS16BE}},
		"g726":                  {sdpHead + "m=audio 0 RTP/AVP 97\r\na=rtpmap:97 G726-32/8000\r\n", []uint32{media.G726}},
	} {
		_, list, err := parseSDP([]byte(c.sdp))
		require.NoError(t, err, name)
		var got []uint32
		for _, m := range list {
			if m.inactive || m.kind == "application" {
				continue
			}
			if f, err := m.format(); err == nil {
				got = append(got, f.track.CodecID)
			}
		}
		require.Equal(t, c.want, got, name)
	}
	_, _, err := parseSDP([]byte("v=0\r\n"))
	require.ErrorIs(t, err, errMalformed)
}

func TestAddresses(t *testing.T) {
	for raw, want := range map[string]address{
		"rtsp://cam/":                      {scheme: "rtsp", host: "cam", path: "/"},
		"RTSP://cam":                       {scheme: "rtsp", host: "cam", path: "/"},
		"rtsp://u:p@10.0.0.1:8554/a?b=c@d": {scheme: "rtsp", user: "u", password: "p", host: "10.0.0.1:8554", path: "/a?b=c@d"},
		"rtsp://u@host/x@y":                {scheme: "rtsp", user: "u", host: "host", path: "/x@y"},
		"rtsps://u:p%40ss@[fe80::1]:322/x": {scheme: "rtsps", user: "u", password: "p@ss", host: "[fe80::1]:322", path: "/x"},
		"rtsp://u:a/b?c#d@host/x":          {scheme: "rtsp", user: "u", password: "a/b?c#d", host: "host", path: "/x"},
		"rtsp://u:100%@host/x":             {scheme: "rtsp", user: "u", password: "100%", host: "host", path: "/x"},
		"rtsp://u:p:q@host?x=1":            {scheme: "rtsp", user: "u", password: "p:q", host: "host", path: "/?x=1"},
		"rtsp://u:`~!@#$%^&*()-_;',.<>:\"{}[]@@192.168.1.5:554/s": {scheme: "rtsp", user: "u", password: "`~!@#$%^&*()-_;',.<>:\"{}[]@", host: "192.168.1.5:554", path: "/s"},
	} {
		got, err := parseAddress(raw)
		require.NoError(t, err, raw)
		require.Equal(t, want, got, raw)
		require.NotContains(t, Redact(raw), "u:")
	}
	for _, bad := range []string{"http://x/", "rtsp://", "rtsp:///x", "rtsp://u:p@/x", "rtsp://host:99999/", "x"} {
		_, err := parseAddress(bad)
		require.ErrorIs(t, err, media.ErrUnsupported, bad)
	}
	require.Equal(t, "rtsp://cam/user=a_password=…&x=1", Redact("rtsp://cam/user=a_password=hunter2_channel=1&x=1"))
	require.Equal(t, "rtsp://cam/?token=…", Redact("rtsp://bob:pw@cam/?token=abc"))
	require.NotContains(t, Redact("rtsp://bob:pw@:/"), "pw")
	require.NotContains(t, Redact("rtsp:/bob:pw@cam/"), "pw")
	require.Equal(t, "rtmp://site/live/…", Redact("rtmp://bob:pw@site/live/abcd?x=y"))
	require.Equal(t, "rtsp://cam/?passphrase=…", Redact("rtsp://cam/?passphrase=abc"))
	a, _ := parseAddress("rtsp://cam/")
	require.Equal(t, "cam:554", a.dial())
	a, _ = parseAddress("rtsps://[::1]/")
	require.Equal(t, "[::1]:322", a.dial())
}

func FuzzAddress(f *testing.F) {
	f.Add("rtsp://u:p@host:1/x?y#z")
	f.Add("rtsp://u:`~!@#$%^&*()-_;',.<>:\"{}[]@@192.168.1.5:554/s")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseAddress(s)
		Redact(s)
		authParams(s)
		parseTransport(s)
		_, list, _ := parseSDP([]byte(s))
		for _, m := range list {
			_, _ = m.format()
		}
		if err == nil && a.password != "" && len(a.password) > 8 && !strings.Contains(a.uri(), a.password) {
			require.NotContains(t, Redact(s), a.password)
		}
	})
}

// A server's bytes may be anything.
func FuzzConnection(f *testing.F) {
	f.Add([]byte("RTSP/1.0 200 OK\r\nCSeq: 1\r\nContent-Length: 3\r\n\r\nabc$\x00\x00\x02ab"))
	f.Add([]byte("OPTIONS * RTSP/1.0\r\nCSeq: 5\r\n\r\n"))
	f.Add([]byte("RTSP/1.0 401 Unauthorized\r\nWWW-Authenticate: Digest realm=\"a\", nonce=\"b\", qop=\"auth\"\r\nSession: 1;timeout=5\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		near, far := net.Pipe()
		defer far.Close()
		go io.Copy(io.Discard, far) //nolint:errcheck // what the client answers
		defer near.Close()
		c := &clientConn{nc: near, br: bufio.NewReaderSize(bytes.NewReader(b), readBuffer), timeout: time.Second}
		c.auth.user = "u"
		ss := &clientSession{conn: c}
		for {
			r, err := c.read(func(_ int, payload []byte) error {
				var p rtpPacket
				parseRTP(payload, &p)
				parseRTCP(payload)
				return nil
			})
			if err != nil {
				return
			}
			c.auth.challenge(r.header["www-authenticate"])
			c.auth.header("PLAY", "rtsp://x/")
			ss.sessionHeader(r.get("session"))
			sessionBase("rtsp://x/", "*", r)
		}
	})
}
