# shellcheck shell=bash
# Two hosts on one machine and a cable between them that can be made slow: network namespaces host0 and host1 with the addresses
# 10.77.0.1 and 10.77.0.2 on cable0 and cable1, each host with a /dev/shm of its own. To be sourced by a script
# that is root of network and mount namespaces of its own, which calls
#
#   make_link                      the hosts and the cable
#   shape MBIT, unshape            a token bucket at both ends of the cable (tc tbf), or none
#   sent_bytes                     how much host0 has put on the cable
#   on_host N COMMAND...           runs it there

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
  done
}

shape() {
  local host
  for host in 0 1; do
    tc -n "host$host" qdisc replace dev "cable$host" root tbf rate "$1mbit" burst 256kb latency 100ms || exit 1
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
