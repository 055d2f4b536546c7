#!/bin/bash
# benchmarks/plot_scale.py on a recorded run: an SVG that parses, with a panel a series and a dot a point.
set -euo pipefail
plot=benchmarks/plot_scale.py
out="$TEST_TMPDIR/plot.svg"

fail() { echo "FAIL: $1"; exit 1; }

python3 "$plot" > "$out" <<'LINES'
a line that is no JSON
{"name":"dispatch/add/1d","value":250,"unit":"ns","limit":null,"limit_is":"","ratio":null,"target":null,"pass":null}
{"name":"scale/training/layers/2","value":280,"unit":"us","limit":null,"limit_is":"","ratio":null,"target":null,"pass":null}
{"name":"scale/training/layers/4","value":570,"unit":"us","limit":null,"limit_is":"","ratio":null,"target":null,"pass":null}
{"name":"scale/training/layers/8","value":1100,"unit":"us","limit":null,"limit_is":"","ratio":null,"target":null,"pass":null}
{"name":"scale/training/layers/exponent","value":0.987,"unit":"exponent","limit":1.1,"limit_is":"linear","ratio":0.9,"target":1,"pass":true}
{"name":"scale/mesh/create/8","value":0.07,"unit":"us","limit":null,"limit_is":"","ratio":null,"target":null,"pass":null}
{"name":"scale/mesh/create/1048576","value":700,"unit":"us","limit":null,"limit_is":"","ratio":null,"target":null,"pass":null}
{"name":"scale/mesh/create/exponent","value":0.78,"unit":"exponent","limit":0.1,"limit_is":"flat","ratio":7.8,"target":1,"pass":false}
LINES

python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$out" || fail "not well-formed"
[ "$(grep -c '<circle' "$out")" = 5 ] || fail "expected 5 points"
[ "$(grep -c 'class="title"' "$out")" = 2 ] || fail "expected 2 panels"
grep -q 'exponent 0.99 (linear)<' "$out" || fail "the first panel lacks its exponent"
grep -q 'exponent 0.78 (flat: missed)<' "$out" || fail "the second panel does not say that it missed"
grep -q '>256Ki<' "$out" || fail "no tick for 2^18 ranks"

if python3 "$plot" < /dev/null 2> "$TEST_TMPDIR/error" > /dev/null; then fail "nothing to draw is no error"; fi
grep -q '^plot_scale: no series on stdin' "$TEST_TMPDIR/error" || fail "no clear line for nothing to draw"
echo PASS
