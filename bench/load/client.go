package main

// A client talks xDS as Envoy does: in which order it asks, what it answers, what it presents when it comes back. See
// bench/client.py. What clients have in common (names asked for, encoded requests) is made once.

import (
	"fmt"
	"slices"
	"sort"
)

// A nameSet is what clients ask for of a type; the same object for all that ask for the same.
type nameSet struct {
	numbers []int32 // sorted by name
	has     map[int32]bool
	encoded []byte // as field 3 of a request of either variant
	splits  map[*nameSet]*difference
}

type difference struct {
	gone              []int32
	subscribe, remove []byte
}

type subscription struct {
	held      []int32 // item by number of its name; 0: not held
	wanted    *nameSet
	version   string
	nonce     string
	asked     bool // whether this stream has had a request for the type
	wasAsked  bool
	hasAnswer bool
}

type client struct {
	index      int
	variant    string
	namespace  string
	address    int // it is connected to, or tries next
	stream     *stream
	isFirst    bool
	failures   int
	retryAt    float64
	completeAt float64
	lastAt     float64
	metAt      float64
	watched    bool
	types      [kinds]subscription
}

var nobody = &nameSet{has: map[int32]bool{}, splits: map[*nameSet]*difference{}}

func mix(number uint64) uint64 { // splitmix64, so that sums of few numbers differ
	number += 0x9e3779b97f4a7c15
	number = (number ^ number>>30) * 0xbf58476d1ce4e5b9
	number = (number ^ number>>27) * 0x94d049bb133111eb
	return number ^ number>>31
}

// wantedOf is what held clusters or listeners make a client ask for.
func (s *Swarm) wantedOf(c *client, kind int) *nameSet {
	t, held := s.library.tables[kind], c.types[kind].held
	var key uint64
	for _, index := range held {
		for _, number := range t.items[index].wants {
			key += mix(uint64(number))
		}
	}
	key += uint64(kind)
	if found, ok := s.sets[key]; ok {
		return found
	}
	set := &nameSet{has: map[int32]bool{}, splits: map[*nameSet]*difference{}}
	for _, index := range held {
		for _, number := range t.items[index].wants {
			if !set.has[number] {
				set.has[number] = true
				set.numbers = append(set.numbers, number)
			}
		}
	}
	names := s.library.tables[followers[kind]].names
	sort.Slice(set.numbers, func(i, j int) bool { return names[set.numbers[i]] < names[set.numbers[j]] })
	for _, number := range set.numbers {
		set.encoded = appendField(set.encoded, 3, names[number])
	}
	s.sets[key] = set
	return set
}

func (s *Swarm) difference(before, after *nameSet, kind int) *difference {
	if found, ok := before.splits[after]; ok {
		return found
	}
	d, names := &difference{}, s.library.tables[kind].names
	for _, number := range after.numbers {
		if !before.has[number] {
			d.subscribe = appendField(d.subscribe, 3, names[number])
		}
	}
	for _, number := range before.numbers {
		if !after.has[number] {
			d.gone = append(d.gone, number)
			d.remove = appendField(d.remove, 4, names[number])
		}
	}
	if len(before.splits) > 32 {
		clear(before.splits)
	}
	before.splits[after] = d
	return d
}

// connected begins a new stream: the client asks, and with keep presents what it has from the last.
func (s *Swarm) connected(c *client, keep bool) {
	c.isFirst = true
	c.completeAt, c.lastAt = 0, 0
	for kind := range c.types {
		had := &c.types[kind]
		if !keep {
			*had = subscription{wanted: nobody}
		}
		had.nonce, had.hasAnswer = "", false
		had.wasAsked, had.asked = had.asked || had.wasAsked, false
	}
	for kind := range c.types {
		had := &c.types[kind]
		if kind == cds || had.wasAsked && (unnamed[kind] || len(had.wanted.numbers) > 0) {
			s.ask(c, kind, nil)
		}
	}
}

// received takes a response in and answers it.
func (s *Swarm) received(c *client, data []byte) {
	m := s.library.read(data, c.variant != "sotw")
	if m == nil {
		s.problem(fmt.Sprintf("client %d got a response that cannot be read", c.index))
		return
	}
	at := s.heard()
	c.failures, c.lastAt = 0, at
	counts := &s.counts
	counts.Bytes += len(data)
	counts.Responses++
	counts.Resources += len(m.items)
	counts.Removed += len(m.removed)
	counts.ByType[shorts[m.kind]]++
	had := &c.types[m.kind]
	changed, wants := s.take(c, m)
	if !changed {
		counts.Needless++
	}
	had.nonce, had.version, had.hasAnswer = m.nonce, m.version, true
	s.answer(c, m.kind)
	if follower, ok := followers[m.kind]; ok && wants {
		s.follow(c, m.kind, follower)
	}
	if m.kind == rds && !c.types[vhds].asked && s.hasSplit(c) {
		s.ask(c, vhds, nil)
	}
	if c.types[cds].hasAnswer && !c.types[lds].asked && s.has(c, eds) {
		s.ask(c, lds, nil)
	}
	if c.completeAt == 0 && s.isComplete(c) {
		c.completeAt = at
	}
	if c.watched && c.metAt == 0 && s.meets(c, m.kind) {
		c.metAt = at
		s.met++
	}
}

// take changes what a client holds: whether that is something else now, and may want other names.
func (s *Swarm) take(c *client, m *message) (changed, wants bool) {
	t, had := s.library.tables[m.kind], &c.types[m.kind]
	if len(had.held) < len(t.names) {
		had.held = append(make([]int32, 0, len(t.names)), had.held...)[:len(t.names)]
	}
	set := func(number, index int32) {
		before := had.held[number]
		if before != index {
			changed = true
			wants = wants || !slices.Equal(t.items[before].wants, t.items[index].wants)
			had.held[number] = index
		}
	}
	if c.variant == "sotw" && unnamed[m.kind] { // it replaces everything
		s.fresh = append(s.fresh[:0], make([]int32, len(had.held))...)
		for _, index := range m.items {
			s.fresh[t.items[index].name] = index
		}
		for number, index := range s.fresh {
			if index == 0 && had.held[number] != 0 {
				s.counts.Removed++
			}
			set(int32(number), index)
		}
		return changed, wants
	}
	for _, index := range m.items {
		set(t.items[index].name, index)
	}
	for _, number := range m.removed {
		set(number, 0)
	}
	return changed, wants
}

func (s *Swarm) has(c *client, kind int) bool {
	had := &c.types[kind]
	for _, number := range had.wanted.numbers {
		if int(number) >= len(had.held) || had.held[number] == 0 {
			return false
		}
	}
	return true
}

func (s *Swarm) isComplete(c *client) bool {
	if !c.types[lds].hasAny() || !s.has(c, eds) || !s.has(c, rds) {
		return false
	}
	return !s.hasSplit(c) || c.types[vhds].hasAny()
}

func (h *subscription) hasAny() bool {
	return slices.ContainsFunc(h.held, func(index int32) bool { return index != 0 })
}

// hasSplit is whether the virtual hosts of a table that a client holds come by themselves.
func (s *Swarm) hasSplit(c *client) bool {
	items := s.library.tables[rds].items
	return slices.ContainsFunc(c.types[rds].held, func(index int32) bool { return items[index].isSplit })
}

func (s *Swarm) follow(c *client, kind, follower int) {
	had := &c.types[follower]
	before, after := had.wanted, s.wantedOf(c, kind)
	if before == after {
		return
	}
	d := s.difference(before, after, follower)
	had.wanted = after
	for _, number := range d.gone {
		if int(number) < len(had.held) {
			had.held[number] = 0
		}
	}
	s.ask(c, follower, d)
}

// ask sends a request that answers nothing; the first of a type presents what is held of it.
func (s *Swarm) ask(c *client, kind int, d *difference) {
	had := &c.types[kind]
	first := !had.asked
	had.asked = true
	if c.variant == "sotw" {
		s.requestSotw(c, kind)
		return
	}
	request := appendField(s.opened(c), 2, urls[kind])
	switch {
	case unnamed[kind]:
	case first || d == nil:
		request = append(request, had.wanted.encoded...)
	default:
		request = append(append(request, d.subscribe...), d.remove...)
	}
	if first {
		request = append(request, s.versions(c, kind)...)
	}
	c.stream.send(request)
}

func (s *Swarm) answer(c *client, kind int) {
	if c.variant == "sotw" {
		s.requestSotw(c, kind)
		return
	}
	request := appendField(s.opened(c), 2, urls[kind])
	c.stream.send(appendField(request, 6, c.types[kind].nonce))
}

func (s *Swarm) requestSotw(c *client, kind int) {
	had := &c.types[kind]
	request := s.opened(c)
	if had.version != "" {
		request = appendField(request, 1, had.version)
	}
	request = append(appendField(request, 4, urls[kind]), had.wanted.encoded...)
	if had.nonce != "" {
		request = appendField(request, 5, had.nonce)
	}
	c.stream.send(request)
}

// versions are the initial versions of Delta: the same bytes for all that hold the same.
func (s *Swarm) versions(c *client, kind int) []byte {
	t, key := s.library.tables[kind], uint64(kind)
	for _, index := range c.types[kind].held {
		if index != 0 {
			key += mix(uint64(index))
		}
	}
	if found, ok := s.initial[key]; ok {
		return found
	}
	var data []byte
	for _, index := range c.types[kind].held {
		if index != 0 {
			entry := appendField(nil, 1, t.names[t.items[index].name])
			data = appendField(data, 5, string(appendField(entry, 2, t.items[index].version)))
		}
	}
	if len(s.initial) > 256 {
		clear(s.initial)
	}
	s.initial[key] = data
	return data
}

// opened is a request with the node in it, if it is the first of its stream.
func (s *Swarm) opened(c *client) []byte {
	if !c.isFirst {
		return nil
	}
	c.isFirst = false
	i := c.index
	ip := fmt.Sprintf("172.%d.%d.%d", 16+i/62500, i/250%250, i%250+1)
	node := appendField(nil, 1, fmt.Sprintf("sidecar~%s~client%d.%s~%s.svc.cluster.local", ip, i, c.namespace, c.namespace))
	node = appendField(node, 2, "client")
	labels := appendField(nil, 5, string(structField("app", text("client"))))
	metadata := structField("NAMESPACE", text(c.namespace))
	metadata = append(metadata, structField("LABELS", labels)...)
	metadata = append(metadata, structField("INSTANCE_IPS", text(ip))...)
	metadata = append(metadata, structField("ISTIO_VERSION", text("1.14.6"))...)
	if c.variant == "split" {
		metadata = append(metadata, structField("VIRTUAL_HOSTS", text("split"))...)
	}
	node = appendField(node, 3, string(metadata))
	if c.variant == "sotw" {
		return appendField(nil, 2, string(node))
	}
	return appendField(nil, 1, string(node))
}
