#!/usr/bin/env bash
# Follows the README and nothing else, with this checkout in place of the published package: from
# an empty folder to an event that was processed and a passing test of one's own handler.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
FLASK_RUN_PORT=$(python -c 'import socket; print(socket.create_server(("", 0)).getsockname()[1])')
export FLASK_RUN_PORT

block() { # LANGUAGE NUMBER
    awk -v fence="\`\`\`$1" -v number="$2" '/^```/ { on = $0 == fence && ++count == number; next } on' \
        "$root/README.md" | sed -e ':again; /\\$/{N; s/\\\n *//; b again}' -e "s/:5000/:$FLASK_RUN_PORT/"
}
commands() { block console "$1" | sed -n 's/^\$ //p'; }

python -m pip wheel --quiet --no-deps --wheel-dir wheel "$root"
echo "flask-sangho-webhooks @ file://$(echo "$folder"/wheel/*.whl)" >constraint.txt
export PIP_CONSTRAINT=$folder/constraint.txt
block python 1 >shop.py
block python 2 >test_shop.py
source <(commands 1 | sed 's/ run$/ run \&/')
curl --silent --output answer --retry 30 --retry-connrefused "http://127.0.0.1:$FLASK_RUN_PORT/"
diff <(source <(commands 2) && echo) <(block console 2 | sed '/^\$ /d')
source <(commands 3)
echo "The README can be followed."
