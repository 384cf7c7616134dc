#!/bin/sh
# run_client_test.sh SOURCE PROGRAM: exit code 77 tells ctest that the test was skipped.
"$1/scripts/python-tests-setup" || exit 77
exec "$1/build/python/bin/python" "$1/tests/server/client_test.py" "$2" \
  "$1/models/sample-qwen4exp-q8_0.gguf"
