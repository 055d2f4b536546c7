# shellcheck shell=bash
# Two hosts on one machine and a cable between them that can be made slow: network namespaces host0 and host1 with the addresses
# 10.77.0.1 and 10.77.0.2 on cable0 and cable1, each host with a /dev/shm of its own. To be sourced by a script
# that is root of network and mount namespaces of its own, which calls
#
#   make_link                      the hosts and the cable
#   shape MBIT, unshape            a token bucket at both ends of the cable (tc tbf), or none
#   sent_bytes                     how much host0 has put on the cable
#   on_host N COMMAND...           runs it there
#
# A token bucket sends each packet by a timer, in an interrupt of whoever computes, where a network card costs cores little. So
# packets are as large as the kernel makes them. TCP has timers of its own where its congestion control paces what it sends, which
# the system's default may do, and reno does not.

make_link() {
  local host
  mount -t tmpfs none /run && mkdir -p /run/netns || exit 1
  ip link set lo up
  for host in 0 1; do ip netns add "host$host" || exit 1; done
  ip link add cable0 netns host0 type veth peer name cable1 netns host1 || exit 1
  for host in 0 1; do
    ip -n "host$host" link set lo up
    ip -n "host$host" address add "10.77.0.$((host + 1))/24" dev "cable$host"
    ip -n "host$host" link set "cable$host" up
    ip netns exec "host$host" sh -c 'echo reno >/proc/sys/net/ipv4/tcp_congestion_control'
    enlarge_packets "$host" || echo "warning: the kernel has no packets of 512 KiB (BIG TCP): the link takes more of the cores" >&2
  done
}

# To 512 KiB. Linux has such packets for IPv4 from 6.3 on; Debian 12's `ip` cannot ask for them.
enlarge_packets() {
  ip netns exec "host$1" python3 - "cable$1" <<'END'
import socket
import struct
import sys

NEW_LINK, REQUEST_ACK = 16, 5
GSO, GRO, GSO_IPV4, GRO_IPV4 = 41, 58, 63, 64  # linux/if_link.h: IFLA_..._MAX_SIZE
body = struct.pack("BxHiII", 0, 0, socket.if_nametoindex(sys.argv[1]), 0, 0)
body += b"".join(struct.pack("HHI", 8, attribute, 524280) for attribute in (GSO, GRO, GSO_IPV4, GRO_IPV4))
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
    kernel.send(struct.pack("IHHII", 16 + len(body), NEW_LINK, REQUEST_ACK, 1, 0) + body)
    sys.exit(0 if struct.unpack("i", kernel.recv(4096)[16:20])[0] == 0 else 1)
END
}

shape() {
  local host
  for host in 0 1; do
    tc -n "host$host" qdisc replace dev "cable$host" root tbf rate "$1mbit" burst 600kb latency 100ms || exit 1
  done
}

unshape() {
  local host
  for host in 0 1; do tc -n "host$host" qdisc delete dev "cable$host" root 2>/dev/null; done
}

# Of /proc, which shows the namespace of its reader.
sent_bytes() { ip netns exec host0 awk '/cable0:/ { print $10 }' /proc/net/dev; }

on_host() {
  local host=$1
  shift
  ip netns exec "host$host" bash -c 'mount -t tmpfs none /dev/shm && exec "$@"' bash "$@"
}
