// The part of a kubelet's API that the suite uses through the API server: commands in containers, and their logs.
//
//	kubelet ADDRESS FOLDER
//
// FOLDER/NAMESPACE/POD/CONTAINER/ has enter.json, how a command gets into the container, and log, with a time before
// each line.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

var folder = os.Args[2]

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", run)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", logs)
	server := httptest.NewUnstartedServer(mux) // it has a certificate, and the API server asks for no better one
	server.Listener.Close()
	server.Listener = listener
	server.StartTLS()
	select {}
}

func path(r *http.Request, name string) string {
	// Values of path parameters have no slash.
	return filepath.Join(folder, r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container"), name)
}

type container struct {
	Enter []string `json:"enter"`
	Env   []string `json:"env"`
}

func run(w http.ResponseWriter, r *http.Request) {
	var in container
	text, err := os.ReadFile(path(r, "enter.json"))
	if err == nil {
		err = json.Unmarshal(text, &in)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	wanted := 1
	for _, name := range []string{"output", "error"} {
		if r.FormValue(name) == "1" {
			wanted++
		}
	}
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		return // it has answered
	}
	type opened struct {
		httpstream.Stream
		replySent <-chan struct{}
	}
	arrivals := make(chan opened, wanted)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, sent <-chan struct{}) error {
		arrivals <- opened{s, sent}
		return nil
	})
	if conn == nil {
		return // it has answered
	}
	defer conn.Close()
	conn.SetIdleTimeout(time.Minute)
	streams := map[string]httpstream.Stream{}
	for len(streams) < wanted {
		select {
		case s := <-arrivals:
			<-s.replySent
			streams[s.Headers().Get("streamType")] = s
		case <-conn.CloseChan():
			return
		}
	}
	argv := append(in.Enter, r.Form["command"]...)
	command := exec.Command(argv[0], argv[1:]...)
	command.Env = in.Env
	if out := streams["stdout"]; out != nil {
		command.Stdout = out
	}
	if out := streams["stderr"]; out != nil {
		command.Stderr = out
	}
	_ = json.NewEncoder(streams["error"]).Encode(status(command.Run()))
}

// The end of a command, as clients of protocol v4 read it.
func status(err error) metav1.Status {
	if err == nil {
		return metav1.Status{Status: metav1.StatusSuccess}
	}
	failed := metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		failed.Reason = remotecommand.NonZeroExitCodeReason
		code := metav1.StatusCause{Type: remotecommand.ExitCodeCauseType, Message: fmt.Sprint(exit.ExitCode())}
		failed.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{code}}
	}
	return failed
}

func logs(w http.ResponseWriter, r *http.Request) {
	file, err := os.Open(path(r, "log"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer file.Close()
	since, _ := time.Parse(time.RFC3339, r.FormValue("sinceTime")) // else all of it
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		at, line, _ := strings.Cut(lines.Text(), " ")
		if written, err := time.Parse(time.RFC3339Nano, at); err == nil && !written.Before(since) {
			fmt.Fprintln(w, line)
		}
	}
}
