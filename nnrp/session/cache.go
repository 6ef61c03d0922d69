package session

import (
	"container/list"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// CachePolicy bounds a session's cache. The zero value switches it off.
type CachePolicy struct {
	Entries    uint32
	Bytes      uint32
	Objects    uint16        // object bitmap: bit kind-1
	Namespaces uint16        // namespaces 0 … Namespaces-1
	TTL        time.Duration // upper bound and default of an object's life; 0 = 10 minutes
}

const defaultCacheTTL = 10 * time.Minute

// Enabled tells whether anything can be cached.
func (p CachePolicy) Enabled() bool {
	return p.Entries > 0 && p.Bytes > 0 && p.Objects != 0 && p.Namespaces > 0
}

type cacheID struct {
	namespace uint32
	key       nnrp.CacheKey
}

type cacheEntry struct {
	id     cacheID
	kind   uint32
	object []byte
	ends   time.Time
	pinned bool
}

// Cache is a session's store of low-frequency objects (section 17): content-addressed, bounded in entries and bytes, least recently
// used first out. Pinned objects leave only by TTL or CACHE_INVALIDATE and take at most half of the budget.
type Cache struct {
	policy  CachePolicy
	entries map[cacheID]*list.Element
	order   *list.List // front = most recently used
	bytes   uint64
	pinned  uint64 // bytes
}

// NewCache returns an empty cache.
func NewCache(p CachePolicy) *Cache {
	if p.TTL == 0 {
		p.TTL = defaultCacheTTL
	}
	return &Cache{policy: p, entries: map[cacheID]*list.Element{}, order: list.New()}
}

// Len and Bytes return what is held.
func (c *Cache) Len() int { return len(c.entries) }

// Bytes returns the size of all objects.
func (c *Cache) Bytes() uint64 { return c.bytes }

// Put installs an object, which is copied, and returns the CACHE_ACK. A refusal names its reason in detail_code, an error code of
// section 16.2; the sender goes on with the object inline.
func (c *Cache) Put(m *nnrp.CachePut, now time.Time) nnrp.CacheAck {
	ack := nnrp.CacheAck{Namespace: m.Namespace, Status: nnrp.CacheRejected, CacheKey: m.CacheKey, MaxObjectBytes: c.policy.Bytes}
	refuse := func(code nnrp.ErrorCode) nnrp.CacheAck {
		ack.DetailCode = uint32(code)
		return ack
	}
	size := uint64(len(m.Object))
	pinned := m.Flags&nnrp.CachePinned != 0
	switch {
	case !c.policy.Enabled():
		return refuse(nnrp.CodeUnsupportedCapability)
	case m.ObjectKind == 0 || m.ObjectKind > 16 || c.policy.Objects&(1<<(m.ObjectKind-1)) == 0:
		return refuse(nnrp.CodeUnsupportedCapability)
	case m.Namespace >= uint32(c.policy.Namespaces) || size > uint64(c.policy.Bytes):
		return refuse(nnrp.CodeLimitExceeded)
	case nnrp.KeyOf(m.Object) != m.CacheKey:
		return refuse(nnrp.CodeMalformedBody)
	}
	c.expire(now)
	id := cacheID{m.Namespace, m.CacheKey}
	old := c.entries[id]
	if pinned {
		held := c.pinned
		if old != nil && old.Value.(*cacheEntry).pinned {
			held -= size // the same key is the same object
		}
		if 2*(held+size) > uint64(c.policy.Bytes) {
			return refuse(nnrp.CodeLimitExceeded)
		}
	}
	ack.Status = nnrp.CacheAccepted
	if old != nil {
		c.remove(old)
		ack.Status = nnrp.CacheReplaced
	}
	if c.pinned+size > uint64(c.policy.Bytes) || !c.makeRoom(size) { // pinned objects are in the way
		ack.Status = nnrp.CacheRejected
		return refuse(nnrp.CodeLimitExceeded)
	}
	ttl := c.policy.TTL
	if m.TTLMs > 0 {
		ttl = min(ttl, time.Duration(m.TTLMs)*time.Millisecond)
	}
	e := &cacheEntry{id: id, kind: m.ObjectKind, object: append([]byte(nil), m.Object...), ends: now.Add(ttl), pinned: pinned}
	c.entries[id] = c.order.PushFront(e)
	c.bytes += size
	if pinned {
		c.pinned += size
	}
	ack.AcceptedTTLMs = uint32(ttl.Milliseconds())
	return ack
}

// makeRoom evicts until an object of size fits.
func (c *Cache) makeRoom(size uint64) bool {
	for c.bytes+size > uint64(c.policy.Bytes) || uint64(len(c.entries)) >= uint64(c.policy.Entries) {
		el := c.order.Back()
		for el != nil && el.Value.(*cacheEntry).pinned {
			el = el.Prev()
		}
		if el == nil {
			return false
		}
		c.remove(el)
	}
	return true
}

// Get returns an object; false is a cache miss. The object must not be changed.
func (c *Cache) Get(namespace uint32, key nnrp.CacheKey, now time.Time) ([]byte, bool) {
	el := c.entries[cacheID{namespace, key}]
	if el == nil {
		return nil, false
	}
	e := el.Value.(*cacheEntry)
	if !now.Before(e.ends) {
		c.remove(el)
		return nil, false
	}
	c.order.MoveToFront(el)
	return e.object, true
}

// Invalidate evicts what the message names, pinned or not, and returns how many objects that were.
func (c *Cache) Invalidate(m *nnrp.CacheInvalidate) int {
	n := 0
	for id, el := range c.entries {
		hit := false
		switch m.Scope {
		case nnrp.InvalidateSession:
			hit = true
		case nnrp.InvalidateNamespace:
			hit = id.namespace == m.Namespace
		case nnrp.InvalidateKind:
			hit = id.namespace == m.Namespace && el.Value.(*cacheEntry).kind == m.ObjectKind
		case nnrp.InvalidateKey:
			hit = id.namespace == m.Namespace && id.key == m.CacheKey
		}
		if hit {
			c.remove(el)
			n++
		}
	}
	return n
}

func (c *Cache) expire(now time.Time) {
	for _, el := range c.entries {
		if !now.Before(el.Value.(*cacheEntry).ends) {
			c.remove(el)
		}
	}
}

func (c *Cache) remove(el *list.Element) {
	e := c.order.Remove(el).(*cacheEntry)
	delete(c.entries, e.id)
	c.bytes -= uint64(len(e.object))
	if e.pinned {
		c.pinned -= uint64(len(e.object))
	}
}
