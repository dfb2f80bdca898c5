package main

// What is read of responses: their fields by hand, and of resources only the names that others are found by. Each
// resource is read once, whoever is sent it; see bench/wire.py.

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"strings"
)

const (
	cds = iota
	eds
	lds
	rds
	vhds
	kinds
)

const prefix = "type.googleapis.com/envoy.config."

var urls = [kinds]string{
	prefix + "cluster.v3.Cluster",
	prefix + "endpoint.v3.ClusterLoadAssignment",
	prefix + "listener.v3.Listener",
	prefix + "route.v3.RouteConfiguration",
	prefix + "route.v3.VirtualHost",
}
var shorts = [kinds]string{"CDS", "EDS", "LDS", "RDS", "VHDS"}

// Types of which everything is asked for.
var unnamed = [kinds]bool{cds: true, lds: true, vhds: true}

// What a resource of a type makes a client ask for.
var followers = map[int]int{cds: eds, lds: rds}

// fields calls f for each field: its number, its content, and its value if it is a number. False for what is not a
// message.
func fields(data []byte, f func(number int, content []byte, value uint64)) bool {
	for len(data) > 0 {
		tag, size := binary.Uvarint(data)
		if size <= 0 {
			return false
		}
		data = data[size:]
		switch tag & 7 {
		case 0:
			value, size := binary.Uvarint(data)
			if size <= 0 {
				return false
			}
			f(int(tag>>3), nil, value)
			data = data[size:]
		case 1, 5:
			size := 4
			if tag&7 == 1 {
				size = 8
			}
			if len(data) < size {
				return false
			}
			data = data[size:]
		case 2:
			length, size := binary.Uvarint(data)
			if size <= 0 || uint64(len(data)-size) < length {
				return false
			}
			f(int(tag>>3), data[size:size+int(length)], 0)
			data = data[size+int(length):]
		default:
			return false
		}
	}
	return true
}

// at is the first content below these fields, one in the other.
func at(data []byte, path ...int) []byte {
	for _, wanted := range path {
		var found []byte
		fields(data, func(number int, content []byte, _ uint64) {
			if number == wanted && found == nil {
				found = content
			}
		})
		data = found
	}
	return data
}

// each calls f for every content at these fields, one in the other.
func each(data []byte, f func([]byte), path ...int) {
	fields(data, func(number int, content []byte, _ uint64) {
		switch {
		case number != path[0]:
		case len(path) == 1:
			f(content)
		default:
			each(content, f, path[1:]...)
		}
	})
}

// An item is one resource as it came once; clients have its number.
type item struct {
	name     int32
	version  string
	sequence uint32 // of an address 198.A.B.C among its bytes: A.B.C as a number
	wants    []int32
	isSplit  bool
	marks    map[string]int // how often each marker is in it that was known when it came
}

// Content is what a response says of resources; one for all clients that were sent the same.
type content struct {
	version string
	items   []int32
	removed []int32
	changes bool // whether any of its resources may make clients ask for others
}

// A table has everything known of one type: names and items by number. Item 0 is none.
type table struct {
	kind    int
	numbers map[string]int32
	names   []string
	found   map[uint64]int32
	items   []item
}

type library struct {
	seed     maphash.Seed
	tables   [kinds]*table
	contents map[uint64]*content
	markers  []string
	marked   map[string][]int32 // items with a marker, per type and marker
}

func newLibrary() *library {
	l := &library{seed: maphash.MakeSeed(), contents: map[uint64]*content{}, marked: map[string][]int32{}}
	for kind := range l.tables {
		l.tables[kind] = &table{kind: kind, numbers: map[string]int32{}, found: map[uint64]int32{}, items: make([]item, 1)}
	}
	return l
}

func (t *table) number(name string) int32 {
	found, ok := t.numbers[name]
	if !ok {
		found = int32(len(t.names))
		t.numbers[name] = found
		t.names = append(t.names, name)
	}
	return found
}

// A message is a response of either variant.
type message struct {
	kind  int
	nonce string
	*content
}

// read takes a response apart; nil if it is none of the types here.
func (l *library) read(data []byte, delta bool) *message {
	m := &message{kind: -1}
	var hash maphash.Hash
	hash.SetSeed(l.seed)
	ok := fields(data, func(number int, content []byte, _ uint64) {
		switch number {
		case 4:
			for kind, url := range urls {
				if url == string(content) {
					m.kind = kind
				}
			}
		case 5:
			m.nonce = string(content)
			return
		}
		_ = hash.WriteByte(byte(number))
		_, _ = hash.Write(content)
	})
	if !ok || m.kind < 0 {
		return nil
	}
	if delta {
		_ = hash.WriteByte(1)
	}
	key := hash.Sum64()
	if m.content = l.contents[key]; m.content == nil {
		if len(l.contents) >= 512 {
			clear(l.contents)
		}
		m.content = l.readContent(l.tables[m.kind], data, delta)
		l.contents[key] = m.content
	}
	return m
}

func (l *library) readContent(t *table, data []byte, delta bool) *content {
	c := &content{}
	fields(data, func(number int, part []byte, _ uint64) {
		switch {
		case number == 1:
			c.version = string(part)
		case number == 2 && delta:
			name, version := string(at(part, 3)), string(at(part, 1))
			c.items = append(c.items, l.readItem(t, name, version, at(part, 2, 2)))
		case number == 2:
			c.items = append(c.items, l.readItem(t, "", "", at(part, 2)))
		case number == 6 && delta:
			c.removed = append(c.removed, t.number(string(part)))
		}
	})
	return c
}

func (l *library) readItem(t *table, name, version string, body []byte) int32 {
	if name == "" {
		name = string(at(body, 1)) // every type of resource has its name there
	}
	number := t.number(name)
	var hash maphash.Hash
	hash.SetSeed(l.seed)
	_ = binary.Write(&hash, binary.LittleEndian, number)
	_, _ = hash.WriteString(version)
	_, _ = hash.Write(body)
	key := hash.Sum64()
	if found, ok := t.found[key]; ok {
		return found
	}
	it := item{name: number, version: version, sequence: sequence(body)}
	switch t.kind {
	case cds:
		it.wants = l.clusterWants(name, body)
	case lds:
		it.wants = l.listenerWants(body)
	case rds:
		it.isSplit = at(body, 9) != nil
	}
	index := int32(len(t.items))
	for _, marker := range l.markers {
		if count := bytes.Count(body, []byte(marker)); count > 0 {
			if it.marks == nil {
				it.marks = map[string]int{}
			}
			it.marks[marker] = count
			l.marked[shorts[t.kind]+marker] = append(l.marked[shorts[t.kind]+marker], index)
		}
	}
	t.items = append(t.items, it)
	t.found[key] = index
	return index
}

// mark makes a text known; resources that came before do not tell whether they have it.
func (l *library) mark(marker string) {
	for _, known := range l.markers {
		if known == marker {
			return
		}
	}
	l.markers = append(l.markers, marker)
}

func (l *library) clusterWants(name string, body []byte) []int32 {
	isEds := false
	fields(body, func(number int, _ []byte, value uint64) { isEds = isEds || number == 2 && value == 3 })
	if !isEds {
		return nil
	}
	if service := at(body, 3, 2); service != nil {
		name = string(service)
	}
	return []int32{l.tables[eds].number(name)}
}

func (l *library) listenerWants(body []byte) []int32 {
	var found []int32
	filter := func(config []byte) {
		if strings.HasSuffix(string(at(config, 1)), ".HttpConnectionManager") {
			if name := at(config, 2, 3, 2); name != nil {
				found = append(found, l.tables[rds].number(string(name)))
			}
		}
	}
	each(body, filter, 3, 3, 4)
	each(body, filter, 25, 3, 4)
	return found
}

// sequence is the largest number that an address 198.A.B.C has in a resource.
func sequence(body []byte) uint32 {
	var largest uint32
	for {
		start := bytes.Index(body, []byte("198."))
		if start < 0 {
			return largest
		}
		body = body[start+4:]
		var value, part uint32
		for _, digit := range body {
			if digit == '.' {
				value, part = value<<8|part, 0
			} else if '0' <= digit && digit <= '9' {
				part = part*10 + uint32(digit-'0')
			} else {
				break
			}
		}
		largest = max(largest, value<<8|part)
	}
}

// Below, what is written.

func appendField(data []byte, number int, content string) []byte {
	data = binary.AppendUvarint(data, uint64(number)<<3|2)
	data = binary.AppendUvarint(data, uint64(len(content)))
	return append(data, content...)
}

func structField(key string, value []byte) []byte {
	entry := appendField(nil, 1, key)
	return appendField(nil, 1, string(appendField(entry, 2, string(value))))
}

func text(value string) []byte {
	return appendField(nil, 3, value)
}
