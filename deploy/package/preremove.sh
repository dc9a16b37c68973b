#!/bin/sh
# An upgrade leaves the daemon alone: systemctl reload kvfs moves the mount to the new version. A removal stops it.
case $1 in
remove | 0) [ -d /run/systemd/system ] && systemctl --no-reload disable --now kvfs.service kvfs-serve.service ;;
esac
exit 0
