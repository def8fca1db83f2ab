package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// Name of the device inside.
const insideDevice = "eth0"

// network is a link between the machine and a network namespace of the parts, as HOST,NODE,SERVICES: the machine's
// address on it, the address of the parts, and the range of addresses that only kube-proxy translates.
//
// Everything else of the machine's network stays as it is: no bridge, no rule of a packet filter, no forwarding.
type network struct {
	host, node, services string
}

func (n *network) String() string { return n.host + "," + n.node + "," + n.services }

func (n *network) Set(text string) error {
	fields := strings.Split(text, ",")
	if len(fields) != 3 {
		return fmt.Errorf("%q is not HOST,NODE,SERVICES", text)
	}
	n.host, n.node, n.services = fields[0], fields[1], fields[2]
	return nil
}

func (n *network) wanted() bool { return n.node != "" }

// connect makes the link to the namespace of the process inside. It runs outside.
func (n *network) connect(device string, inside int) error {
	return ip(
		[]string{"link", "add", device, "type", "veth", "peer", "name", insideDevice, "netns", strconv.Itoa(inside)},
		[]string{"address", "add", n.host + "/30", "dev", device},
		[]string{"link", "set", device, "up"},
	)
}

// configure brings the other end up. It runs inside, once connect is done.
func (n *network) configure() error {
	return ip(
		[]string{"link", "set", "lo", "up"},
		[]string{"address", "add", n.node + "/30", "dev", insideDevice},
		[]string{"link", "set", insideDevice, "up"},
		// A packet to a Service needs a route before kube-proxy's rules send it elsewhere. There is no default route, so
		// that an address outside is unreachable at once instead of after a timeout.
		[]string{"route", "add", n.services, "dev", insideDevice},
	)
}

// removeLink removes both ends. The kernel would do so, but only when the last connection in the namespace has timed
// out, which can be minutes after the last process.
func removeLink(device string) error {
	if _, err := os.Stat("/sys/class/net/" + device); device == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return ip([]string{"link", "delete", device})
}

func ip(commands ...[]string) error {
	for _, arguments := range commands {
		command := exec.Command("ip", arguments...)
		command.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
		if output, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(arguments, " "), err, output)
		}
	}
	return nil
}
