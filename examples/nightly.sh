#!/bin/sh
# Fetches a list every night, from cron, for two hours at most; what is left goes on in the next night.
#
#     examples/nightly.sh urls.txt out.jsonl
#
# Ends with status 0 when all is done or goes on by itself, else with forbear's own, so that cron sends its words.
input=${1:?usage: nightly.sh INPUT OUT}
out=${2:?usage: nightly.sh INPUT OUT}

forbear fetch "$input" -o "$out" --run-for 2h --progress plain
status=$?

case $status in
0) echo "all done" ;;
4) echo "work is left; it goes on with the next run" && exit 0 ;;
3)
    echo "all have ended, and some failed:"
    forbear job list "$out.job" --state failed --limit 20
    ;;
5) echo "no usable exit: mend the list of proxies; the work is kept" ;;
130) echo "interrupted; it goes on with the next run" ;;
*) echo "it could not run" ;;
esac
exit $status
