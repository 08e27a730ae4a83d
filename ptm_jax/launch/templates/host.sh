# Run the command given as arguments, hand SIGTERM on to it and wait until it has saved; its output also goes to $log.
child='' asked=''
trap 'asked=1; [ -z "$child" ] || kill -TERM "$child"' TERM
mkdir -p "${log%/*}"
"$@" > >(trap '' TERM; exec tee -a "$log") 2>&1 &
child=$!
[ -z "$asked" ] || kill -TERM "$child"
while :; do
  asked=''
  wait "$child"
  status=$?
  [ -n "$asked" ] || break # else it was the signal that ended the waiting
done
