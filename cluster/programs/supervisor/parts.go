package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// supervise serves commands until the input closes or it is told to stop. It must run on the main goroutine (see init).
func supervise(input *os.File, output *os.File, terminate <-chan os.Signal) {
	// Notified rather than ignored: an ignored signal would stay ignored in every part that is started.
	pipeBroken := make(chan os.Signal, 1)
	signal.Notify(pipeBroken, syscall.SIGPIPE)
	childEnded := make(chan os.Signal, 1)
	signal.Notify(childEnded, syscall.SIGCHLD)

	parts := &parts{running: map[string]int{}, names: map[int]string{}}
	defer parts.killAll()
	replies := json.NewEncoder(output)
	commands := make(chan command)
	go readCommands(input, commands)
	detached := false
	for {
		select {
		case next, open := <-commands:
			if !open {
				if !detached {
					return
				}
				commands = nil
				continue
			}
			if next.Op == "detach" {
				detached = true
			}
			send(replies, parts.handle(next))
		case <-childEnded:
			for _, ended := range parts.reap() {
				send(replies, ended)
			}
		case <-terminate:
			return
		case <-pipeBroken:
		}
	}
}

type parts struct {
	running map[string]int
	names   map[int]string
}

func (p *parts) handle(next command) message {
	reply := message{ID: next.ID}
	var err error
	switch next.Op {
	case "start":
		reply.Pid, err = p.start(next)
	case "signal":
		pid, known := p.running[next.Name]
		if !known {
			err = fmt.Errorf("%s is not running", next.Name)
		} else {
			err = syscall.Kill(pid, syscall.Signal(next.Signal))
		}
	case "detach":
	default:
		err = fmt.Errorf("unknown operation %q", next.Op)
	}
	if err != nil {
		reply.Error = err.Error()
	}
	return reply
}

func (p *parts) start(next command) (int, error) {
	if _, known := p.running[next.Name]; known {
		return 0, fmt.Errorf("%s is running already", next.Name)
	}
	if len(next.Argv) == 0 {
		return 0, fmt.Errorf("%s: no program given", next.Name)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	log, err := os.OpenFile(next.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	env := make([]string, 0, len(next.Env))
	for name, value := range next.Env {
		env = append(env, name+"="+value)
	}
	pid, err := syscall.ForkExec(next.Argv[0], next.Argv, &syscall.ProcAttr{
		Dir:   next.Dir,
		Env:   env,
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, fmt.Errorf("cannot start %s: %w", next.Argv[0], err)
	}
	p.running[next.Name], p.names[pid] = pid, next.Name
	return pid, nil
}

// reap collects every ended child. As process 1 of a PID namespace that includes orphans which were never started here.
func (p *parts) reap() []message {
	var ended []message
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return ended
		}
		name, known := p.names[pid]
		if !known {
			continue
		}
		delete(p.names, pid)
		delete(p.running, name)
		end := message{Exited: name, Pid: pid}
		if status.Signaled() {
			end.Signal = int(status.Signal())
		} else {
			end.Code = status.ExitStatus()
		}
		ended = append(ended, end)
	}
}

func (p *parts) killAll() {
	for pid := range p.names {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for pid := range p.names {
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	}
}
