#!/bin/sh
# A worker that takes a millisecond: it writes down what it was given, and then does what $DOES says.
# Arguments are those of the interpreter that it stands for.

case $1 in *_helper.py) exec "$REAL_PYTHON" "$@" ;; esac

found=$FOUND/$TORCHELASTIC_RESTART_COUNT-$RANK

say() { echo "r$RANK $*"; }
cry() { echo "r$RANK $*" >&2; }
meet() {  # return when the workers of all ranks are here, and the test has done what it does then
    echo "$WORLD_SIZE" > "$FOUND/meeting"
    read -r _ <> "$FOUND/go"
}
block() { read -r _ <> "$FOUND/never"; }
together() {  # be there, and train with a peer: fail a while after its end, of which `lose` tells
    exec 8<> "$FOUND/lost"
    echo "$WORLD_SIZE" > "$FOUND/meeting"
    read -r _ <&8
    sleep 5
    exit 1
}
lose() { echo > "$FOUND/lost"; }

kinds=
for file in /proc/$$/fd/*; do
    if [ -e "$file" ] && ! [ "$file" -ef "$0" ]; then
        kind=other
        [ -p "$file" ] && kind=pipe
        [ -f "$file" ] && kind=file
        [ -c "$file" ] && kind=device
        [ -S "$file" ] && kind=socket
        [ -t "${file##*/}" ] && kind=terminal
        kinds="$kinds ${file##*/}=$kind"
    fi
done
error_file=missing
[ -d "${TORCHELASTIC_ERROR_FILE%/*}" ] && error_file=there
if ! [ -e "$found.arguments" ]; then  # a round after a change of members has the same restart count
    printf '%s\n' "$kinds" "$error_file" > "$found.kinds"
    cat /proc/$$/environ /proc/self/status /proc/$$/limits /proc/$$/stat > "$found.process"
    printf '%s\0' "$@" > "$found.arguments"
fi
eval "$DOES"
