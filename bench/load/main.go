// The load program: thousands of xDS clients in one process, told what to do by lines of JSON on standard input, one
// answer a line. It does what bench/swarm.py does and takes the same commands, but keeps no resource, only which one each
// client has, and its clients come back by themselves when a stream ends. Linux only, as the rest of the bench.
//
// bench/load_program.py builds it; nothing of it is installed. Times are of CLOCK_MONOTONIC, as Python's
// time.monotonic().
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// A command of any kind; each reads its own fields.
type command struct {
	Do         string
	Count      int
	Variant    string
	Namespaces []string
	Addresses  []string
	Keep       bool
	Conditions [][3]any
	Namespace  string
	Seconds    float64
	Quiet      float64 `json:"quiet_seconds"`
	Reset      bool
	Names      map[string]int
}

func main() {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	}
	swarm, err := newSwarm(os.Args[1:])
	if err != nil {
		fail(err)
	}
	commands := make(chan command)
	go readCommands(commands)
	out := json.NewEncoder(os.Stdout)
	for {
		select {
		case c, ok := <-commands:
			if !ok {
				return
			}
			answer, err := swarm.do(c)
			if err != nil {
				fail(err)
			}
			if err := out.Encode(answer); err != nil {
				return
			}
		default:
			swarm.pump(10 * time.Millisecond)
		}
	}
}

func readCommands(commands chan<- command) {
	defer close(commands)
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			fail(err)
		}
		commands <- c
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "load:", err)
	os.Exit(1)
}

// now is CLOCK_MONOTONIC in seconds.
func now() float64 {
	return clock(1)
}

// cpuSeconds is CLOCK_PROCESS_CPUTIME_ID in seconds.
func cpuSeconds() float64 {
	return clock(2)
}

func clock(id uintptr) float64 {
	var t syscall.Timespec
	_, _, _ = syscall.Syscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&t)), 0)
	return float64(t.Sec) + float64(t.Nsec)/1e9
}
