package bench

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cfpipe/cfpipe/internal/lossylink"
	"github.com/cfpipe/cfpipe/internal/servercert"
)

// grpcLink is the reference: one bidirectional gRPC stream over TLS 1.3, tensors as a bytes field, with windows as large as NNRP's.
type grpcLink struct {
	server *grpc.Server
	conn   *grpc.ClientConn
	stream grpc.ClientStream
	cancel context.CancelFunc
}

const (
	grpcStreamWindow = 8 << 20
	grpcConnWindow   = 32 << 20
)

var grpcStream = grpc.StreamDesc{StreamName: "Infer", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
	var in wrapperspb.BytesValue
	for {
		if err := s.RecvMsg(&in); err != nil {
			return nil //nolint:nilerr // the client has gone
		}
		if err := s.SendMsg(wrapperspb.Bytes(make([]byte, resultBytes))); err != nil {
			return err
		}
	}
}}

// newGRPCLink makes a link over path, or over the loopback interface where that is nil. congestion names TCP's congestion control,
// "" for the system's. Larger read and write buffers than gRPC's own make no difference.
func newGRPCLink(ctx context.Context, path *lossylink.Link, congestion string) (*grpcLink, error) {
	control := func(_, _ string, c syscall.RawConn) error { return setCongestion(c, congestion) }
	var lis net.Listener
	err := onPath(ctx, path, serverEnd, func() (err error) {
		lis, err = (&net.ListenConfig{Control: control}).Listen(ctx, "tcp4", listenAddr(path))
		return err
	})
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, addr string) (c net.Conn, err error) {
		err = onPath(ctx, path, clientEnd, func() (err error) {
			c, err = (&net.Dialer{Control: control}).DialContext(ctx, "tcp4", addr)
			return err
		})
		return c, err
	}
	cert, err := servercert.SelfSigned()
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	secure := credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert}})
	l := &grpcLink{server: grpc.NewServer(grpc.Creds(secure),
		grpc.MaxRecvMsgSize(64<<20), grpc.InitialWindowSize(grpcStreamWindow), grpc.InitialConnWindowSize(grpcConnWindow))}
	l.server.RegisterService(&grpc.ServiceDesc{ServiceName: "bench.Runtime", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{grpcStream}}, nil)
	go func() { _ = l.server.Serve(lis) }()
	ctx, l.cancel = context.WithCancel(ctx)
	l.conn, err = grpc.NewClient("passthrough:///"+lis.Addr().String(), grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "localhost"})),
		grpc.WithInitialWindowSize(grpcStreamWindow), grpc.WithInitialConnWindowSize(grpcConnWindow))
	if err == nil {
		l.stream, err = l.conn.NewStream(ctx, &grpcStream, "/bench.Runtime/Infer")
	}
	if err != nil {
		_ = l.close()
		return nil, err
	}
	return l, nil
}

func (l *grpcLink) exchange(_ context.Context, tensor []byte) (int, error) {
	if err := l.stream.SendMsg(wrapperspb.Bytes(tensor)); err != nil {
		return 0, err
	}
	var out wrapperspb.BytesValue
	return len(tensor), l.stream.RecvMsg(&out)
}

func (l *grpcLink) close() error {
	l.cancel()
	if l.conn != nil {
		_ = l.conn.Close()
	}
	l.server.Stop()
	return nil
}
