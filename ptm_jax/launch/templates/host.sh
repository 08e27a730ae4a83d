# Run the command given as arguments, hand SIGTERM on to it and wait until it has saved; its output also goes to $log.
# A subshell waits for it and reports its process and status: `wait` loses the status of a command that ends at the same
# moment as the waiting shell gets SIGTERM, and Slurm sends it to both.
child='' asked='' status=''
trap 'asked=1; [ -z "$child" ] || kill -TERM "$child" 2> /dev/null' TERM
mkdir -p "${log%/*}"
exec 5>&1 3< <(
  trap : TERM
  exec 4>&1
  # shellcheck disable=SC2016 # the inner shell is to expand it
  bash -c 'echo "process $$" >&4; exec "$@" 4>&- 5>&-' host "$@" > >(trap '' TERM; exec tee -a "$log" >&5 4>&-) 2>&1
  echo "status $?" >&4
)
while read -r fact number; do
  case $fact in
    status) status=$number ;;
    process)
      child=$number
      [ -z "$asked" ] || kill -TERM "$child" 2> /dev/null
      ;;
  esac
done <&3
[ -n "$status" ] || status=${asked:+143}
status=${status:-137} # the subshell was killed
