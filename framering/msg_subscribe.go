package framering

import "encoding/binary"

// subscribeRequest is SUBSCRIBE_REQ (§3.5).
//
//	4   proto_version  again, as a check
//	12  reserved       0
type subscribeRequest struct{ Version uint32 }

func (subscribeRequest) msgType() MsgType { return msgSubscribeReq }

func (m subscribeRequest) appendPayload(b []byte, _ *dialect) []byte {
	return appendReserved(binary.LittleEndian.AppendUint32(b, m.Version))
}

func parseSubscribeRequest(p []byte) (subscribeRequest, error) {
	c := cursor{b: p}
	m := subscribeRequest{Version: c.u32()}
	c.take(reservedSize)
	if err := c.end(msgSubscribeReq); err != nil {
		return subscribeRequest{}, err
	}
	return m, nil
}

// subscribeResponse is SUBSCRIBE_RESP (§3.6).
//
//	4   result        i32; when negative, 12 zero bytes follow and nothing else
//	4   assigned_bit  1…31
//	8   initial_seq   global_seq of the frame ring now
//	12  reserved      0
type subscribeResponse struct {
	Result     Code
	Bit        uint32
	InitialSeq uint64
}

func (subscribeResponse) msgType() MsgType { return msgSubscribeResp }

func (m subscribeResponse) appendPayload(b []byte, _ *dialect) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Result))
	if m.Result < 0 {
		return appendReserved(b)
	}
	b = binary.LittleEndian.AppendUint32(b, m.Bit)
	b = binary.LittleEndian.AppendUint64(b, m.InitialSeq)
	return appendReserved(b)
}

func parseSubscribeResponse(p []byte, d *dialect) (subscribeResponse, error) {
	const short = 4 + 4 + 4 + reservedSize // initial_seq in 32 bits
	c := cursor{b: p}
	m := subscribeResponse{Result: Code(c.u32())}
	if err := c.end(msgSubscribeResp); err != nil || m.Result < 0 {
		return m, err
	}
	m.Bit = c.u32()
	if d.shortInitialSeq && len(p) == short {
		m.InitialSeq = uint64(c.u32())
	} else {
		m.InitialSeq = c.u64()
	}
	c.take(reservedSize)
	if err := c.end(msgSubscribeResp); err != nil {
		return subscribeResponse{}, err
	}
	if m.Result > 0 || m.Bit < 1 || m.Bit > MaxSubscribers {
		return subscribeResponse{}, malformed(msgSubscribeResp, "result %d, assigned_bit %d", m.Result, m.Bit)
	}
	return m, nil
}
