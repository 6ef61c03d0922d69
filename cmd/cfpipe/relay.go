package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/pipeline"
)

func newRelayCommand(o *globalOptions) *cobra.Command {
	var (
		options      pipeline.RelayOptions
		push         pipeline.PushOptions
		passwordFile string
	)
	c := &cobra.Command{
		Use:   "relay [KEY…]",
		Short: "Serve keys by RTSP, or push one to another server",
		Long: "Serves every key of this host, or those named, at rtsp://HOST:PORT/KEY, as publishers come and go.\n" +
			"KEY-audio is the second track of KEY; KEY-audio and KEY-sub are paths of their own too.\n" +
			"A reader starts at once at the last keyframe; a key that nobody plays is not read.\n\n" +
			"--listen-tls serves rtsps://HOST:PORT/KEY beside it, or alone with --listen off: RTSP and RTP in one TLS connection. Without --cert\n" +
			"a certificate is made for this run; its SHA-256 fingerprint, which clients can pin, is printed. A renewed --cert is noticed.\n\n" +
			"--push sends a key to another server instead: rtsp:// by ANNOUNCE and RECORD, tcp:// and udp:// as an MPEG transport\n" +
			"stream, and any other output of FFmpeg. %{key} in the URL stands for the key.\n" + exitStatusHelp,
		Example: "  cfpipe relay\n  cfpipe relay cam1 cam2 --listen 127.0.0.1:8554 --username viewer --password-file secret\n" +
			"  ffplay -rtsp_transport tcp rtsp://127.0.0.1:8554/cam1\n" +
			"  cfpipe relay --listen off --listen-tls :8322 --cert cert.pem --key-file key.pem --username viewer --password-file secret\n" +
			"  cfpipe relay cam1 --push rtsp://server/live/cam1 --username viewer --password-file secret",
		RunE: func(cmd *cobra.Command, keys []string) error {
			password, err := readPassword(passwordFile)
			if err != nil {
				return err
			}
			if err := checkCredentials(options.Username, passwordFile, password); err != nil {
				return err
			}
			if err := checkKeys(keys...); err != nil {
				return err
			}
			if err := checkRelay(options); err != nil {
				return err
			}
			av.SetLogger(o.Logger)
			if push.URL != "" {
				if cmd.Flags().Changed("listen") || options.ListenTLS != "" {
					return usageError{errors.New("--push and --listen: one relay does one of them; start two")}
				}
				push.RuntimeDir, push.Keys, push.Logger = o.RuntimeDir, keys, o.Logger
				push.Username, push.Password = options.Username, password
				if err := push.Check(); err != nil {
					return usageError{err}
				}
				return pipeline.Push(cmd.Context(), push)
			}
			options.RuntimeDir, options.Keys, options.Password, options.Logger = o.RuntimeDir, keys, password, o.Logger
			var bases []string
			options.OnListen = func(at pipeline.RelayAddress) {
				if at.Plain != nil {
					bases = append(bases, baseURL("rtsp", at.Plain))
				}
				if at.TLS != nil {
					bases = append(bases, baseURL("rtsps", at.TLS))
					fmt.Fprintln(cmd.OutOrStdout(), "fingerprint", at.Fingerprint)
				}
			}
			options.OnStream = func(key string) {
				for _, base := range bases {
					fmt.Fprintln(cmd.OutOrStdout(), base+key)
				}
			}
			return pipeline.Relay(cmd.Context(), options)
		},
	}
	f := c.Flags()
	f.StringVar(&options.Listen, "listen", ":8554", "address to serve RTSP on; port 0 takes a free one; off = none")
	f.StringVar(&options.ListenTLS, "listen-tls", "", "address to serve RTSP over TLS (rtsps) on, for example :8322")
	f.StringVar(&options.CertFile, "cert", "", "PEM certificate chain for --listen-tls (default: one is made)")
	f.StringVar(&options.KeyFile, "key-file", "", "PEM key of --cert")
	f.IntVar(&options.RTPPort, "rtp-port", 0, "first of the two UDP ports for RTP and RTCP; 0 takes free ones, -1 refuses UDP")
	f.StringVar(&options.Multicast, "multicast", "", "serve multicast from this range too, for example 239.255.42.0/24")
	f.IntVar(&options.MulticastPort, "multicast-port", 0, "first of the two UDP ports for multicast; 0 takes free ones")
	f.StringVar(&options.Username, "username", "", "ask readers for this user name; with --push: log in with it")
	f.StringVar(&passwordFile, "password-file", "", "file that holds the password")
	f.StringVar(&push.URL, "push", "", "send the key to this URL instead of serving it")
	return c
}

// checkRelay finds what can be told to be wrong before a port is taken.
func checkRelay(o pipeline.RelayOptions) error {
	for name, address := range map[string]string{"listen": o.Listen, "listen-tls": o.ListenTLS} {
		chosen := name == "listen" && address == "off" || name == "listen-tls" && address == ""
		if _, err := net.ResolveTCPAddr("tcp", address); err != nil && !chosen {
			return usageError{fmt.Errorf("--%s %q: want HOST:PORT, or :PORT for all addresses of this host (%w)", name, address, err)}
		}
	}
	for name, port := range map[string]int{"rtp-port": o.RTPPort, "multicast-port": o.MulticastPort} {
		chosen := port == 0 || name == "rtp-port" && port == -1
		if !chosen && (port < 1024 || port > 65534 || port%2 != 0) {
			return usageError{fmt.Errorf("--%s %d: want an even port from 1024 to 65534", name, port)}
		}
	}
	if o.Multicast != "" {
		r, err := netip.ParsePrefix(o.Multicast)
		if err != nil || !r.Addr().IsMulticast() {
			return usageError{fmt.Errorf("--multicast %q: want a range of multicast addresses, such as 239.255.42.0/24", o.Multicast)}
		}
	}
	if err := o.Check(); err != nil {
		return usageError{err}
	}
	return nil
}

// baseURL is what a reader on another host types in front of the key.
func baseURL(scheme string, addr *net.TCPAddr) string {
	host := addr.IP.String()
	if addr.IP.IsUnspecified() {
		host = "127.0.0.1"
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(addr.Port)) + "/"
}
