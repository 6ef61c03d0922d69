package framering

import "encoding/binary"

// wakeOnSeq is the fd_purpose of an eventfd that is rung with each publish.
const wakeOnSeq = 1

// eventFD is EVENT_FD (protocol 1, §3.7). The descriptor travels beside it as SCM_RIGHTS.
//
//	4   fd_purpose  1 = wake-up on a new seq
//	12  reserved    0
type eventFD struct{ Purpose uint32 }

func (eventFD) msgType() MsgType { return msgEventFD }

func (m eventFD) appendPayload(b []byte, _ *dialect) []byte {
	return appendReserved(binary.LittleEndian.AppendUint32(b, m.Purpose))
}

func parseEventFD(p []byte) (eventFD, error) {
	c := cursor{b: p}
	m := eventFD{Purpose: c.u32()}
	c.take(reservedSize)
	if err := c.end(msgEventFD); err != nil {
		return eventFD{}, err
	}
	return m, nil
}
