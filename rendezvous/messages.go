// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

// stepKind tells the collective steps apart.
type stepKind uint8

const (
	stepGather stepKind = iota
	stepBarrier
	stepHosts // the host identities that came with each rank's Hello
)

func (k stepKind) String() string {
	switch k {
	case stepGather:
		return "all-gather"
	case stepBarrier:
		return "barrier"
	case stepHosts:
		return "host identities"
	}
	return "unknown step"
}

// rejectCode says why a Hello was refused.
type rejectCode uint8

const (
	rejectDuplicate rejectCode = iota + 1
	rejectGone
	rejectWorld
	rejectJob
)

// msgHello is a rank's first frame.
type msgHello struct {
	job, session string // session: empty unless the address was published with one
	rank, size   int
	nonce        uint64 // one per Open: a repeated Hello of the same Open is no duplicate
	pid          int
	host         string // host name, for people
	identity     string // the same on all ranks of one host
}

// msgWelcome accepts a Hello.
type msgWelcome struct {
	pid  int
	host string
}

// msgReject refuses a Hello.
type msgReject struct {
	code     rejectCode
	expected int    // rejectWorld: the job's world size
	pid      int    // rejectDuplicate, rejectGone: of the first claimant
	addr     string // the same
	text     string
}

// msgGather is a rank's contribution to step seq.
type msgGather struct {
	seq  uint32
	step stepKind
	what string
	blob []byte
}

// msgPart is one rank's blob of step seq on its way back.
type msgPart struct {
	seq  uint32
	rank int
	blob []byte
}

// absentee is a rank that did not contribute to a step.
type absentee struct {
	rank  int
	state rankState
	why   string
}

// msgEnd closes the answer to step seq.
type msgEnd struct {
	seq     uint32
	missing []absentee
}

// msgMismatch answers step seq when two ranks called different steps.
type msgMismatch struct {
	seq         uint32
	rank, other int
	what, seen  string
}

// msgCut asks for what has arrived of step seq: the caller's deadline passed.
type msgCut struct{ seq uint32 }

// msgLost tells that a rank has gone without Bye.
type msgLost struct {
	rank int
	why  string
}

// msgBye announces a normal end; the coordinator answers by closing.
type msgBye struct{}

// msgShutdown tells that the coordinator ends although ranks are still connected.
type msgShutdown struct{ why string }

func newMessage(t frameType) message {
	switch t {
	case typeHello:
		return &msgHello{}
	case typeWelcome:
		return &msgWelcome{}
	case typeReject:
		return &msgReject{}
	case typeGather:
		return &msgGather{}
	case typePart:
		return &msgPart{}
	case typeEnd:
		return &msgEnd{}
	case typeMismatch:
		return &msgMismatch{}
	case typeCut:
		return &msgCut{}
	case typeLost:
		return &msgLost{}
	case typeBye:
		return &msgBye{}
	case typeShutdown:
		return &msgShutdown{}
	}
	return nil
}

func (*msgHello) kind() frameType    { return typeHello }
func (*msgWelcome) kind() frameType  { return typeWelcome }
func (*msgReject) kind() frameType   { return typeReject }
func (*msgGather) kind() frameType   { return typeGather }
func (*msgPart) kind() frameType     { return typePart }
func (*msgEnd) kind() frameType      { return typeEnd }
func (*msgMismatch) kind() frameType { return typeMismatch }
func (*msgCut) kind() frameType      { return typeCut }
func (*msgLost) kind() frameType     { return typeLost }
func (*msgBye) kind() frameType      { return typeBye }
func (*msgShutdown) kind() frameType { return typeShutdown }

func (m *msgHello) encode(e *encoder) {
	e.text(m.job, maxName)
	e.text(m.session, maxName)
	e.int(m.rank)
	e.int(m.size)
	e.u64(m.nonce)
	e.int(m.pid)
	e.text(m.host, maxName)
	e.text(m.identity, maxName)
}

func (m *msgHello) decode(d *decoder) {
	m.job = d.text(maxName)
	m.session = d.text(maxName)
	m.rank = d.int(maxRanks)
	m.size = d.int(maxRanks)
	m.nonce = d.u64()
	m.pid = d.int(1 << 30)
	m.host = d.text(maxName)
	m.identity = d.text(maxName)
}

func (m *msgWelcome) encode(e *encoder) {
	e.int(m.pid)
	e.text(m.host, maxName)
}

func (m *msgWelcome) decode(d *decoder) {
	m.pid = d.int(1 << 30)
	m.host = d.text(maxName)
}

func (m *msgReject) encode(e *encoder) {
	e.u8(uint8(m.code))
	e.int(m.expected)
	e.int(m.pid)
	e.text(m.addr, maxText)
	e.text(m.text, maxText)
}

func (m *msgReject) decode(d *decoder) {
	m.code = rejectCode(d.u8())
	m.expected = d.int(maxRanks)
	m.pid = d.int(1 << 30)
	m.addr = d.text(maxText)
	m.text = d.text(maxText)
}

func (m *msgGather) encode(e *encoder) {
	e.u32(m.seq)
	e.u8(uint8(m.step))
	e.text(m.what, maxName)
	e.bytes(m.blob)
}

func (m *msgGather) decode(d *decoder) {
	m.seq = d.u32()
	m.step = stepKind(d.u8())
	m.what = d.text(maxName)
	m.blob = d.bytes(MaxBlob)
}

func (m *msgPart) encode(e *encoder) {
	e.u32(m.seq)
	e.int(m.rank)
	e.bytes(m.blob)
}

func (m *msgPart) decode(d *decoder) {
	m.seq = d.u32()
	m.rank = d.int(maxRanks)
	m.blob = d.bytes(MaxBlob)
}

// maxReasons bounds an End frame in a large world: beyond it absentees are named without a reason.
const maxReasons = 500

func (m *msgEnd) encode(e *encoder) {
	e.u32(m.seq)
	e.int(len(m.missing))
	for i, a := range m.missing {
		e.int(a.rank)
		e.u8(uint8(a.state))
		if i >= maxReasons {
			a.why = ""
		}
		e.text(a.why, maxText)
	}
}

func (m *msgEnd) decode(d *decoder) {
	m.seq = d.u32()
	n := d.int(maxRanks)
	for i := 0; i < n && d.err == nil; i++ {
		a := absentee{rank: d.int(maxRanks), state: rankState(d.u8()), why: d.text(maxText)}
		m.missing = append(m.missing, a)
	}
}

func (m *msgMismatch) encode(e *encoder) {
	e.u32(m.seq)
	e.int(m.rank)
	e.int(m.other)
	e.text(m.what, maxText)
	e.text(m.seen, maxText)
}

func (m *msgMismatch) decode(d *decoder) {
	m.seq = d.u32()
	m.rank = d.int(maxRanks)
	m.other = d.int(maxRanks)
	m.what = d.text(maxText)
	m.seen = d.text(maxText)
}

func (m *msgCut) encode(e *encoder) { e.u32(m.seq) }
func (m *msgCut) decode(d *decoder) { m.seq = d.u32() }

func (m *msgLost) encode(e *encoder) {
	e.int(m.rank)
	e.text(m.why, maxText)
}

func (m *msgLost) decode(d *decoder) {
	m.rank = d.int(maxRanks)
	m.why = d.text(maxText)
}

func (*msgBye) encode(*encoder) {}
func (*msgBye) decode(*decoder) {}

func (m *msgShutdown) encode(e *encoder) { e.text(m.why, maxText) }
func (m *msgShutdown) decode(d *decoder) { m.why = d.text(maxText) }
