package bench

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cfpipe/cfpipe/nnrp/quictransport"
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

func newGRPCLink(ctx context.Context) (*grpcLink, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return newGRPCLinkOn(ctx, lis, nil)
}

// newGRPCLinkOn serves on lis and reaches it by dial, nil for the usual way.
func newGRPCLinkOn(ctx context.Context, lis net.Listener, dial func(context.Context, string) (net.Conn, error)) (*grpcLink, error) {
	cert, err := quictransport.SelfSigned()
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	l := &grpcLink{server: grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert}})),
		grpc.MaxRecvMsgSize(64<<20), grpc.InitialWindowSize(grpcStreamWindow), grpc.InitialConnWindowSize(grpcConnWindow))}
	l.server.RegisterService(&grpc.ServiceDesc{ServiceName: "bench.Runtime", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{grpcStream}}, nil)
	go func() { _ = l.server.Serve(lis) }()
	ctx, l.cancel = context.WithCancel(ctx)
	var o []grpc.DialOption
	if dial != nil {
		o = append(o, grpc.WithContextDialer(dial))
	}
	l.conn, err = grpc.NewClient("passthrough:///"+lis.Addr().String(), append(o, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "localhost"})),
		grpc.WithInitialWindowSize(grpcStreamWindow), grpc.WithInitialConnWindowSize(grpcConnWindow))...)
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
