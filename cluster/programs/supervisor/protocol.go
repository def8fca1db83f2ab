package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// command is one line on standard input.
type command struct {
	ID     uint64            `json:"id"`
	Op     string            `json:"op"` // start, signal or detach
	Name   string            `json:"name"`
	Argv   []string          `json:"argv"`
	Env    map[string]string `json:"env"` // replaces the environment
	Dir    string            `json:"dir"`
	Log    string            `json:"log"` // standard output and error are appended here
	Signal int               `json:"signal"`
}

// message is one line on standard output: the reply to a command (ID is set) or the news that a part ended.
type message struct {
	ID     uint64 `json:"id,omitempty"`
	Error  string `json:"error,omitempty"`
	Pid    int    `json:"pid,omitempty"`
	Exited string `json:"exited,omitempty"`
	Code   int    `json:"code"`
	Signal int    `json:"signal,omitempty"`
}

func readCommands(input io.Reader, commands chan<- command) {
	defer close(commands)
	lines := bufio.NewScanner(input)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var next command
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			fmt.Fprintf(os.Stderr, "supervisor: command is not JSON: %v\n", err)
			return
		}
		commands <- next
	}
}

func send(output *json.Encoder, message message) {
	// The caller may be gone after it detached, which is no error.
	_ = output.Encode(message)
}
