"""The predictor's program, which gives what is in flight one second to be answered."""

from __future__ import annotations

import sys

from kfp_pytorch.serving import __main__

# `import kserve` parses sys.argv.
given, sys.argv = sys.argv, sys.argv[:1]

from kfp_pytorch.serving import server  # noqa: E402

server.DRAIN_SECONDS = 1
sys.argv = given
sys.exit(__main__.main())
