package main

import (
	"errors"
	"fmt"
	"math/rand"
	"net"
	"strconv"
	"syscall"
	"time"
)

const (
	delta = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
	sotw  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"

	// Envoy's wait before it connects again: random, up to a bound that doubles with each failure.
	firstRetry, lastRetry = 0.5, 30.0
)

// Counts are what clients received since the last reset.
type counts struct {
	Bytes     int            `json:"bytes"`
	Responses int            `json:"responses"`
	Resources int            `json:"resources"`
	Needless  int            `json:"needless"`
	Removed   int            `json:"removed"`
	ByType    map[string]int `json:"by_type"`
}

type condition struct {
	kind   int
	marker string
	count  int
}

// A Swarm is all clients of one process. One goroutine does everything.
type Swarm struct {
	addresses  []syscall.SockaddrInet4
	openings   map[string][]byte
	library    *library
	sets       map[uint64]*nameSet
	initial    map[uint64][]byte
	clients    []*client
	byFd       map[int32]*client
	away       []*client // without a stream, to connect again at their time
	counts     counts
	lost       int // streams that ended by themselves, since the start
	problems   []string
	conditions []condition
	watched    int
	met        int
	heardAt    float64
	epoll      int
	events     []syscall.EpollEvent
	buffer     []byte
	fresh      []int32
}

func newSwarm(addresses []string) (*Swarm, error) {
	s := &Swarm{
		openings: map[string][]byte{}, library: newLibrary(), sets: map[uint64]*nameSet{}, initial: map[uint64][]byte{},
		byFd: map[int32]*client{}, counts: counts{ByType: map[string]int{}},
		events: make([]syscall.EpollEvent, 512), buffer: make([]byte, 256<<10),
	}
	for _, address := range addresses {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		number, err := strconv.Atoi(port)
		ip := net.ParseIP(host).To4()
		if err != nil || ip == nil {
			return nil, fmt.Errorf("%s is not an IPv4 address and a port", address)
		}
		s.addresses = append(s.addresses, syscall.SockaddrInet4{Port: number, Addr: [4]byte(ip)})
	}
	if len(addresses) == 0 {
		return nil, errors.New("needs the addresses of control planes")
	}
	s.openings["sotw"] = opening(sotw, addresses[0])
	s.openings["delta"] = opening(delta, addresses[0])
	s.openings["split"] = s.openings["delta"]
	var err error
	s.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	return s, err
}

func (s *Swarm) do(c command) (any, error) {
	switch c.Do {
	case "open":
		return nil, s.open(c.Count, c.Variant, c.Namespaces)
	case "disconnect":
		for _, each := range s.clients {
			s.drop(each)
		}
		s.away, s.lost = nil, 0
		return nil, nil
	case "reconnect":
		for _, each := range s.clients {
			s.connect(each, c.Keep)
			s.pump(0)
		}
		return nil, nil
	case "expect":
		return nil, s.expect(c.Conditions, c.Namespace)
	case "collect":
		return s.collect(c.Seconds), nil
	case "complete":
		return s.complete(c.Seconds), nil
	case "quiet":
		start := now()
		s.pumpUntil(func() bool { return now()-max(s.heardAt, start) >= c.Quiet }, c.Seconds)
		times := []float64{}
		for _, each := range s.clients {
			if each.lastAt > 0 {
				times = append(times, each.lastAt)
			}
		}
		return map[string]any{"last": times}, nil
	case "count":
		return s.count(c.Reset), nil
	case "check":
		return s.check(), nil
	case "behind":
		return s.behind(c.Names), nil
	}
	return nil, fmt.Errorf("the load program cannot %q", c.Do)
}

// Clients.

func (s *Swarm) open(count int, variant string, namespaces []string) error {
	if s.openings[variant] == nil {
		return fmt.Errorf("no variant %q", variant)
	}
	for range count {
		i := len(s.clients)
		c := &client{index: i, variant: variant, namespace: namespaces[i%len(namespaces)], address: i % len(s.addresses)}
		for kind := range c.types {
			c.types[kind].wanted = nobody
		}
		s.clients = append(s.clients, c)
		s.connect(c, false)
		s.pump(0)
	}
	return nil
}

func (s *Swarm) connect(c *client, keep bool) {
	st, err := connect(&s.addresses[c.address], s.openings[c.variant])
	if err == nil {
		events := syscall.EpollEvent{Events: syscall.EPOLLIN | syscall.EPOLLOUT | edge, Fd: int32(st.fd)}
		err = syscall.EpollCtl(s.epoll, syscall.EPOLL_CTL_ADD, st.fd, &events)
	}
	if err != nil {
		s.retry(c)
		return
	}
	c.stream = st
	s.byFd[int32(st.fd)] = c
	s.connected(c, keep)
}

// Edge-triggered: the number is EPOLLET, whose constant is negative in Go.
const edge = 1 << 31

func (s *Swarm) drop(c *client) {
	if c.stream != nil {
		delete(s.byFd, int32(c.stream.fd))
		_ = syscall.Close(c.stream.fd)
		c.stream = nil
	}
}

// retry has a client connect to the next control plane in a while, as Envoy does.
func (s *Swarm) retry(c *client) {
	c.address = (c.address + 1) % len(s.addresses)
	bound := min(lastRetry, firstRetry*float64(int(1)<<min(c.failures, 10)))
	c.failures++
	c.retryAt = now() + bound*rand.Float64()
	s.away = append(s.away, c)
}

// The loop.

func (s *Swarm) heard() float64 {
	s.heardAt = now()
	return s.heardAt
}

func (s *Swarm) problem(text string) {
	if len(s.problems) < 20 {
		s.problems = append(s.problems, text)
	}
}

// pump takes in what has come, waiting at most so long for it.
func (s *Swarm) pump(wait time.Duration) {
	n, err := syscall.EpollWait(s.epoll, s.events, int(wait/time.Millisecond))
	if err != nil {
		n = 0
	}
	for _, event := range s.events[:max(n, 0)] {
		c := s.byFd[event.Fd]
		if c == nil {
			continue
		}
		st := c.stream
		if event.Events&syscall.EPOLLOUT != 0 {
			st.flush()
		}
		if event.Events&^syscall.EPOLLOUT != 0 {
			for !st.ended {
				if !st.receive(s.buffer, func(data []byte) { s.received(c, data) }) {
					break
				}
			}
		}
		if st.ended {
			s.lost++
			s.drop(c)
			s.retry(c)
		}
	}
	s.comeBack()
}

func (s *Swarm) comeBack() {
	if len(s.away) == 0 {
		return
	}
	at, waiting := now(), s.away
	s.away = nil
	for _, c := range waiting {
		if c.retryAt <= at {
			s.connect(c, true)
		} else {
			s.away = append(s.away, c)
		}
	}
}

func (s *Swarm) pumpUntil(done func() bool, seconds float64) {
	for deadline := now() + seconds; !done() && now() < deadline; {
		s.pump(10 * time.Millisecond)
	}
}

// What may be asked for.

func (s *Swarm) expect(conditions [][3]any, namespace string) error {
	s.conditions = nil
	for _, told := range conditions {
		short, isText := told[0].(string)
		marker, isMarker := told[1].(string)
		count, isNumber := told[2].(float64)
		if !isText || !isMarker || !isNumber {
			return fmt.Errorf("not a condition: %v", told)
		}
		for kind := range shorts {
			if shorts[kind] == short {
				s.conditions = append(s.conditions, condition{kind, marker, int(count)})
			}
		}
		s.library.mark(marker)
	}
	s.watched, s.met = 0, 0
	for _, c := range s.clients {
		c.metAt, c.watched = 0, namespace == "" || namespace == c.namespace
		if c.watched {
			s.watched++
		}
	}
	return nil
}

// meets is whether a client has now what is waited for.
func (s *Swarm) meets(c *client, kind int) bool {
	isOf := false
	for _, wanted := range s.conditions {
		isOf = isOf || wanted.kind == kind
	}
	if !isOf {
		return false
	}
	for _, wanted := range s.conditions {
		found, items, held := 0, s.library.tables[wanted.kind].items, c.types[wanted.kind].held
		for _, index := range s.library.marked[shorts[wanted.kind]+wanted.marker] {
			if name := int(items[index].name); name < len(held) && held[name] == index {
				found += items[index].marks[wanted.marker]
			}
		}
		if wanted.count == 0 && found > 0 || found < wanted.count {
			return false
		}
	}
	return true
}

func (s *Swarm) collect(seconds float64) any {
	s.pumpUntil(func() bool { return s.met >= s.watched }, seconds)
	times := []float64{}
	for _, c := range s.clients {
		if c.metAt > 0 {
			times = append(times, c.metAt)
		}
		c.watched = false
	}
	return map[string]any{"times": times, "missing": s.watched - len(times)}
}

func (s *Swarm) complete(seconds float64) any {
	s.pumpUntil(func() bool {
		for _, c := range s.clients {
			if c.completeAt == 0 {
				return false
			}
		}
		return true
	}, seconds)
	times := []float64{}
	for _, c := range s.clients {
		if c.completeAt > 0 {
			times = append(times, c.completeAt)
		}
	}
	return map[string]any{"times": times, "missing": len(s.clients) - len(times)}
}

func (s *Swarm) count(reset bool) any {
	told := struct {
		counts
		Duplicates []string `json:"duplicates"`
		Lost       int      `json:"lost"`
		Connected  int      `json:"connected"`
		CPU        float64  `json:"cpu"`
	}{s.counts, []string{}, s.lost, len(s.byFd), cpuSeconds()}
	if reset {
		s.counts = counts{ByType: map[string]int{}}
	}
	return told
}

// check has what is wrong with what clients hold, and how many different states they are in.
func (s *Swarm) check() any {
	states, problems := map[[kinds]uint64]int{}, append([]string{}, s.problems...)
	for _, c := range s.clients {
		var state [kinds]uint64
		for kind := range c.types {
			for _, index := range c.types[kind].held {
				if index != 0 {
					state[kind] += mix(uint64(index))
				}
			}
		}
		states[state]++
		if !s.isComplete(c) && len(problems) < 20 {
			problems = append(problems, fmt.Sprintf("client %d has not all that it was told of", c.index))
		}
	}
	sizes := [][]int{}
	if len(s.clients) > 0 {
		size := []int{}
		for kind := range s.clients[0].types {
			count := 0
			for _, index := range s.clients[0].types[kind].held {
				if index != 0 {
					count++
				}
			}
			size = append(size, count)
		}
		sizes = append(sizes, size)
	}
	return map[string]any{"states": len(states), "sizes": sizes, "problems": problems, "problem_count": len(problems)}
}

// behind has the clients that do not hold these assignments at these sequence numbers or later ones, and examples.
func (s *Swarm) behind(names map[string]int) any {
	type wanted struct {
		number   int32
		sequence uint32
		name     string
	}
	t, all := s.library.tables[eds], []wanted{}
	for name, sequence := range names {
		all = append(all, wanted{t.number(name), uint32(sequence), name})
	}
	count, examples := 0, []string{}
	for _, c := range s.clients {
		held, isBehind := c.types[eds].held, false
		for _, each := range all {
			found := uint32(0)
			if int(each.number) < len(held) {
				found = t.items[held[each.number]].sequence
			}
			if found < each.sequence {
				isBehind = true
				if len(examples) < 5 {
					examples = append(examples, fmt.Sprintf("client %d has %s at %d, not %d", c.index, each.name, found, each.sequence))
				}
				break
			}
		}
		if isBehind {
			count++
		}
	}
	return map[string]any{"behind": count, "examples": examples}
}
