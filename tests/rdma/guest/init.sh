#!/bin/busybox sh
# The first process of the guest: makes the RDMA device, runs /script, tells its exit code
# and turns the machine off. What fails here is on the console, and then the caller sees no
# exit code.
set -eu
/bin/busybox mkdir -p /usr/sbin /proc /sys /dev /tmp /run /root
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root
trap 'poweroff -f' EXIT
. /settings
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 cgroup /sys/fs/cgroup || true
ln -sf /proc/self/fd /dev/fd
hostname guest
# The library looks up the name of its host.
printf '127.0.0.1 localhost\n%s guest\n' "${addresses%% *}" >/etc/hosts

for m in $modules; do insmod "/modules/$m.ko.xz"; done
ip link set lo up
ip link add d0 type dummy
for a in $addresses; do ip address add "$a/24" dev d0; done
ip link set d0 up
rdma link add "$device" type rxe netdev d0

stty -F /dev/ttyS0 raw -echo
{
	echo "$started"
	echo "guest: Linux $(uname -r), $(nproc) processors; $(rdma link show "$device/1")"
	code=0
	/bin/sh /script || code=$?
	echo "$ended$code"
} </dev/null >/dev/ttyS0 2>&1
sync
