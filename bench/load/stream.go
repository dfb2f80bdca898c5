package main

// One gRPC stream on a connection of its own, with as little HTTP/2 as that takes. Windows are opened as far as they go
// at the start, response headers are not decoded. Source of the framing: RFC 9113; of the messages in it: the document
// "gRPC over HTTP2".

import (
	"encoding/binary"
	"syscall"
)

const (
	frameData, frameHeaders, frameReset, frameSettings, framePing, frameAway, frameWindow = 0, 1, 3, 4, 6, 7, 8

	endStream, endHeaders, ack = 1, 4, 1

	largestWindow = 1<<31 - 1
	topUp         = 1 << 29 // bytes received after which the windows are opened again
	largestFrame  = 16384
)

type stream struct {
	fd       int
	ended    bool
	partial  []byte // of a frame
	message  []byte // of a message, with its prefix
	waiting  []byte // for the socket
	queued   [][]byte
	received int

	connectionWindow, streamWindow, initialWindow int
}

func frame(to []byte, kind, flags byte, id uint32, payload []byte) []byte {
	size := len(payload)
	to = append(to, byte(size>>16), byte(size>>8), byte(size), kind, flags)
	return append(binary.BigEndian.AppendUint32(to, id), payload...)
}

func opening(path, authority string) []byte {
	settings := binary.BigEndian.AppendUint32([]byte{0, 4}, largestWindow)
	var block []byte
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", authority},
		{"te", "trailers"}, {"content-type", "application/grpc"},
	} {
		block = append(append(block, 0, byte(len(field[0]))), field[0]...) // a literal that is not indexed
		block = append(append(block, byte(len(field[1]))), field[1]...)
	}
	data := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	data = frame(data, frameSettings, 0, 0, settings)
	data = frame(data, frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, largestWindow-65535))
	return frame(data, frameHeaders, endHeaders, 1, block)
}

// connect begins a connection; an error is that of the socket, the peer's is seen when it is used.
func connect(address *syscall.SockaddrInet4, opening []byte) (*stream, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	if err := syscall.Connect(fd, address); err != nil && err != syscall.EINPROGRESS {
		_ = syscall.Close(fd)
		return nil, err
	}
	return &stream{fd: fd, waiting: opening, connectionWindow: 65535, streamWindow: 65535, initialWindow: 65535}, nil
}

func (s *stream) send(message []byte) {
	data := make([]byte, 5, 5+len(message))
	binary.BigEndian.PutUint32(data[1:], uint32(len(message)))
	data = append(data, message...)
	for len(data) > largestFrame {
		s.queued = append(s.queued, data[:largestFrame])
		data = data[largestFrame:]
	}
	s.queued = append(s.queued, data)
	s.flush()
}

// flush writes what windows and the socket allow.
func (s *stream) flush() {
	for len(s.queued) > 0 && len(s.queued[0]) <= min(s.connectionWindow, s.streamWindow) {
		data := s.queued[0]
		s.queued = s.queued[1:]
		s.connectionWindow -= len(data)
		s.streamWindow -= len(data)
		s.waiting = frame(s.waiting, frameData, 0, 1, data)
	}
	if len(s.queued) == 0 {
		s.queued = nil
	}
	s.write()
}

func (s *stream) write() {
	for len(s.waiting) > 0 && !s.ended {
		n, err := syscall.Write(s.fd, s.waiting)
		switch err {
		case nil:
			s.waiting = s.waiting[n:]
		case syscall.EAGAIN, syscall.ENOTCONN, syscall.EALREADY, syscall.EINPROGRESS:
			return // epoll tells when there is room
		case syscall.EINTR:
		default:
			s.ended = true
		}
	}
	if len(s.waiting) == 0 {
		s.waiting = nil
	}
}

// receive reads once and hands over each whole message, which is valid during the call only. Whether to call it again.
func (s *stream) receive(buffer []byte, take func([]byte)) bool {
	n, err := syscall.Read(s.fd, buffer)
	switch {
	case err == syscall.EINTR:
		return true
	case err == syscall.EAGAIN:
		return false
	case err != nil || n == 0:
		s.ended = true
		return false
	}
	data := buffer[:n]
	if len(s.partial) > 0 {
		data = append(s.partial, data...)
		s.partial = nil
	}
	for len(data) >= 9 {
		size := 9 + (int(data[0])<<16 | int(data[1])<<8 | int(data[2]))
		if len(data) < size {
			break
		}
		s.frame(data[3], data[4], binary.BigEndian.Uint32(data[5:9]), data[9:size], take)
		data = data[size:]
	}
	if len(data) > 0 {
		s.partial = append([]byte(nil), data...)
	}
	if s.received > topUp {
		more := binary.BigEndian.AppendUint32(nil, uint32(s.received))
		s.waiting = frame(frame(s.waiting, frameWindow, 0, 0, more), frameWindow, 0, 1, more)
		s.received = 0
		s.write()
	}
	return n == len(buffer)
}

func (s *stream) frame(kind, flags byte, id uint32, payload []byte, take func([]byte)) {
	switch kind {
	case frameData:
		s.received += len(payload)
		s.data(payload, take)
		s.ended = s.ended || flags&endStream != 0
	case frameHeaders: // with END_STREAM they are trailers
		s.ended = s.ended || flags&endStream != 0
	case frameReset:
		s.ended = true
	case frameAway: // as in gRPC, the stream goes on until the server ends it
	case frameSettings:
		if flags&ack == 0 {
			for ; len(payload) >= 6; payload = payload[6:] {
				if binary.BigEndian.Uint16(payload) == 4 {
					value := int(binary.BigEndian.Uint32(payload[2:]))
					s.streamWindow += value - s.initialWindow
					s.initialWindow = value
				}
			}
			s.waiting = frame(s.waiting, frameSettings, ack, 0, nil)
			s.flush()
		}
	case framePing:
		if flags&ack == 0 {
			s.waiting = frame(s.waiting, framePing, ack, 0, payload)
			s.write()
		}
	case frameWindow:
		more := int(binary.BigEndian.Uint32(payload))
		if id == 0 {
			s.connectionWindow += more
		} else {
			s.streamWindow += more
		}
		s.flush()
	}
}

// data takes messages out of the content of DATA frames; only one that is in several is copied.
func (s *stream) data(payload []byte, take func([]byte)) {
	for len(payload) > 0 || len(s.message) >= 5 {
		if len(s.message) == 0 && len(payload) >= 5 {
			if size := 5 + int(binary.BigEndian.Uint32(payload[1:])); len(payload) >= size {
				take(payload[5:size])
				payload = payload[size:]
				continue
			}
		}
		if len(s.message) < 5 {
			n := min(len(payload), 5-len(s.message))
			s.message = append(s.message, payload[:n]...)
			if payload = payload[n:]; len(s.message) < 5 {
				return
			}
		}
		size := 5 + int(binary.BigEndian.Uint32(s.message[1:]))
		if cap(s.message) < size {
			s.message = append(make([]byte, 0, size), s.message...)
		}
		n := min(len(payload), size-len(s.message))
		s.message = append(s.message, payload[:n]...)
		if payload = payload[n:]; len(s.message) < size {
			return
		}
		whole := s.message
		s.message = nil
		take(whole[5:])
	}
}
