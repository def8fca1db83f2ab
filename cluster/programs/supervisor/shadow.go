package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const shadows = "/run/shadow"

// State directories in which a container runtime has paths of its own that no setting moves.
var shadowedDirectories = []string{"/var/lib", "/var/log"}

// Settings of the kernel that a kubelet would change for the whole machine, and for good.
var shadowedSettings = []string{
	"/proc/sys/kernel/keys/root_maxbytes",
	"/proc/sys/kernel/keys/root_maxkeys",
	"/proc/sys/kernel/panic",
	"/proc/sys/kernel/panic_on_oops",
	"/proc/sys/vm/overcommit_memory",
	"/proc/sys/vm/panic_on_oom",
}

// shadowHost lets the parts see the machine's state and keeps what they write there to themselves. It belongs to a
// mount namespace of our own, so that the machine never sees it and it goes with us.
func shadowHost() error {
	if err := syscall.Mount("tmpfs", "/run", "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("cannot mount a /run of its own: %w", err)
	}
	for _, path := range shadowedDirectories {
		if err := shadowDirectory(path); err != nil {
			return fmt.Errorf("cannot shadow %s: %w", path, err)
		}
	}
	for _, path := range shadowedSettings {
		if err := shadowFile(path); err != nil {
			return fmt.Errorf("cannot shadow %s: %w", path, err)
		}
	}
	return nil
}

func shadowDirectory(path string) error {
	upper, work := filepath.Join(shadows, path, "upper"), filepath.Join(shadows, path, "work")
	for _, layer := range []string{upper, work} {
		if err := os.MkdirAll(layer, 0o755); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", path, upper, work)
	return syscall.Mount("overlay", path, "overlay", 0, layers)
}

func shadowFile(path string) error {
	content, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	copied := filepath.Join(shadows, path)
	if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(copied, content, 0o644); err != nil {
		return err
	}
	return syscall.Mount(copied, path, "", syscall.MS_BIND, "")
}
