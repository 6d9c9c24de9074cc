"""The command that prints the index of a folder's tar files: see `data.tar_index`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from kfp_pytorch.training.data.sources import Files
from kfp_pytorch.training.data.tar_index import as_json, index_shards, shard_names
from kfp_pytorch.training.errors import DataError


def main(arguments: Sequence[str]) -> int:
    """Prints the index. Returns 0, 1 if the shards cannot be used, 2 for wrong arguments."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m kfp_pytorch.training.shard_index FOLDER_OR_URI", file=sys.stderr)
        return 2
    files = Files(arguments[0])
    try:
        index = as_json(index_shards(files, shard_names(files)))
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    json.dump(index, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
