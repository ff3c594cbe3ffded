# shellcheck shell=bash
# Sourced by tests/run and .ci/run.

# Puts the processor seconds of all that this shell has waited for into `now`, servers apart that outlive their tests. $1 is a
# file to use: `times` tells of the shell that runs it, so it cannot run in one that a pipe or a substitution starts.
read_processor_seconds() {
    times >"$1"
    awk 'NR == 2 { split($1, user, /[ms]/); split($2, sys, /[ms]/)
        printf "%d", 60 * (user[1] + sys[1]) + user[2] + sys[2] }' "$1" >"$1.sum"
    # The sum has no line end, which `read` calls a failure.
    read -r now <"$1.sum" || true
}
