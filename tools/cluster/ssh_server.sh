#!/bin/sh
# An SSH server for one user, in a container: what pdsh logs in to. It needs no root, and leaves no key in an image.
#
#   ssh_server.sh [PORT]     port 2222 by default; who may log in stands in ~/.ssh/authorized_keys
#
# The start on the first host then needs: export PDSH_SSH_ARGS_APPEND='-p 2222'
set -eu

port=${1:-2222}
folder=$HOME/.ssh
key=$folder/container_host_key

if [ ! -s "$folder/authorized_keys" ]; then
    echo "ssh_server.sh: $folder/authorized_keys: nobody could log in" >&2
    echo "  to do: put the public key of the user on the first host there" >&2
    exit 1
fi
[ -f "$key" ] || ssh-keygen -q -t ed25519 -N '' -f "$key"
exec /usr/sbin/sshd -D -e -f /dev/null -p "$port" -h "$key" \
    -o AuthorizedKeysFile="$folder/authorized_keys" \
    -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no \
    -o MaxStartups=100 -o PidFile=none -o UsePAM=no
