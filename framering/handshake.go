package framering

import "syscall"

// The two sides of the handshake (§4) as state machines that do no input or output: what came in goes to handle, what is to
// go out comes back. A session and subscribeOver drive them over a conn; the tests drive them by hand.
//
//	subscriber             publisher
//	HELLO_REQ        ──▶
//	                 ◀──   HELLO_RESP        (result < 0: the end)
//	SUBSCRIBE_REQ    ──▶
//	                 ◀──   SUBSCRIBE_RESP    (result < 0: the end)
//	                 ◀──   VMM_FDS + fds     (protocol 4)
//	READY                  READY
//	                 ◀──   EVENT_FD + fd     (protocols 1 and 2; may be left out)
//
// PING is answered in every state and does not extend a deadline.

// conn carries messages of one peer.
type conn interface {
	// receive blocks for the next message. io.EOF says that the peer closed between two messages; an error that Is
	// ErrProtocol says that what came cannot be a message.
	receive() (inbound, error)
	// send writes one message, with descriptors that stay the caller's.
	send(m message, fds []int) error
}

// inbound is a received message. Its descriptors are closed by close unless somebody has taken them (and set fds to nil).
type inbound struct {
	typ     MsgType
	payload []byte // valid until the next receive
	fds     []int
}

func (in *inbound) close() {
	closeFDs(in.fds)
	in.fds = nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}

// outbound is a message to send.
type outbound struct {
	msg message
	fds []int
}
