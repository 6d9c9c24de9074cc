"""The predictor's program, which gives what is in flight, and a head, one second."""

from __future__ import annotations

import sys

from kfp_pytorch.serving import __main__

# `import kserve` parses sys.argv.
given, sys.argv = sys.argv, sys.argv[:1]

from kfp_pytorch.serving import server  # noqa: E402
from kfp_pytorch.serving.protocol import connection  # noqa: E402

server.DRAIN_SECONDS = 1
connection.HEAD_SECONDS = 1
sys.argv = given
sys.exit(__main__.main())
