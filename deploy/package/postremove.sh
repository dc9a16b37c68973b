#!/bin/sh
[ -d /run/systemd/system ] && systemctl daemon-reload
exit 0
