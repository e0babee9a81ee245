#!/usr/bin/env bash
# Two shops on Redis behind nginx, with ab as the buyers: which guards prevent overselling?
#
#   ./run.sh [GUARD…]        none mutex setnx-expire set-px owner lock fence counter …
#
# Needs nginx, ab (Debian: apache2-utils) and a Redis server. Variables, with their defaults:
#
#   STORE=redis://127.0.0.1:6379  STOCK=50  REQUESTS=300  CROWD=40  WINDLASS=windlass
#   WAREHOUSE_PORT=8040  SHOP_PORTS="8050 8060"  NGINX_PORT=8070
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
: "${STORE:=redis://127.0.0.1:6379}" "${STOCK:=50}" "${REQUESTS:=300}" "${CROWD:=40}"
: "${WINDLASS:=windlass}" "${WAREHOUSE_PORT:=8040}" "${SHOP_PORTS:=8050 8060}" "${NGINX_PORT:=8070}"
for program in nginx ab "$WINDLASS"; do
    command -v "$program" >/dev/null || { echo "run.sh: $program is missing" >&2; exit 127; }
done
read -r first second <<<"$SHOP_PORTS"

folder=$(mktemp -d)
started=()
finish() {
    # Only the processes started here, by pid.
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${started[@]}"; do wait "$pid" 2>/dev/null || true; done
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# answers PORT: waits until a server listens on PORT.
answers() {
    for _ in $(seq 200); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return; fi
        sleep 0.05
    done
    echo "run.sh: no server listens on port $1" >&2
    exit 1
}

sed -e "s/127.0.0.1:8050/127.0.0.1:$first/" -e "s/127.0.0.1:8060/127.0.0.1:$second/" \
    -e "s/127.0.0.1:8070/127.0.0.1:$NGINX_PORT/" "$here/nginx.conf" >"$folder/nginx.conf"
nginx -e "$folder/error.log" -p "$folder" -c "$folder/nginx.conf" &
started+=($!)
answers "$NGINX_PORT"

# sale GUARD: runs one sale and prints the result of the warehouse.
sale() {
    local name="flash-sale-$$-$1" shops=() warehouse
    "$WINDLASS" demo warehouse --listen "127.0.0.1:$WAREHOUSE_PORT" --stock "$STOCK" >"$folder/books" &
    warehouse=$!
    started+=("$warehouse")
    answers "$WAREHOUSE_PORT"
    for port in "$first" "$second"; do
        WINDLASS_STORE=$STORE "$WINDLASS" demo shop --guard "$1" --sale "$name" --listen "127.0.0.1:$port" \
            --warehouse "127.0.0.1:$WAREHOUSE_PORT" >/dev/null &
        shops+=($!)
        started+=($!)
    done
    answers "$first"
    answers "$second"
    ab -q -r -c "$CROWD" -n "$REQUESTS" "http://127.0.0.1:$NGINX_PORT/buy" >"$folder/ab"
    kill "${shops[@]}" "$warehouse"
    wait "${shops[@]}" "$warehouse" 2>/dev/null || true
    printf '%-13s %s, %s\n' "$1" "$(tail -n 1 "$folder/books")" \
        "$(sed -n 's/^Requests per second: *\([0-9]*\).*/\1 requests a second/p' "$folder/ab")"
}

[ $# -gt 0 ] || set -- none mutex lock fence counter
for guard in "$@"; do
    sale "$guard"
done
