#!/bin/sh
# The first process of the guest: mounts file systems for Python and the driver, runs one command, and ends the machine.
#
# The option `results=` of the kernel's command line names the only writable folder of the host. The folder contains `command` and
# receives `status` and `output`.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/dev/shm
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t debugfs debug /sys/kernel/debug
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
results=$(sed 's/.*results=\([^ ]*\).*/\1/' /proc/cmdline)
mount -t hostfs -o "$results" results /mnt
mkdir /dev/shm/tmp
export TMPDIR=/dev/shm/tmp QAIC_GUEST_FAULTS=/mnt/faults
ip link set lo up 2>/dev/null
# When the driver allows files to be opened, the firmware of the card has reported that it is ready.
tries=0
while [ $tries -lt 100 ] && ! (: <>/dev/accel/accel0) 2>/dev/null; do tries=$((tries + 1)); sleep 0.1; done
cd /mnt || exit
sh /mnt/command >/mnt/output 2>&1 </dev/null
echo $? >/mnt/status
sync
# No orderly shutdown: kernels for guests crash when their devices are removed. The host ends at a restart.
echo b >/proc/sysrq-trigger
sleep 10
