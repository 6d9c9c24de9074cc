"""A pipeline whose job has code that its image has not."""

import tempfile
from pathlib import Path

from kfp import dsl

from kfp_pytorch.components import pytorch_job, source

FOLDER = Path(tempfile.mkdtemp(prefix="kfp-pytorch-test-")) / "my_package"
FOLDER.mkdir()
(FOLDER / "__init__.py").write_text("")
(FOLDER / "model.py").write_bytes(b"WORDS = '$HOME `ls` \\\\d'\r\nwidth = 3\r\n")
(FOLDER / "a script ü.sh").write_bytes(b'#!/bin/sh\necho "ran $1"\n')
(FOLDER / "data").mkdir()
(FOLDER / "data" / "model.py").write_bytes(b"\xe4\0")
(FOLDER / "train.py").write_text(
    "import hashlib, pathlib, subprocess, torch.distributed as dist\n"
    "from my_package import model\n"
    "dist.init_process_group('gloo')\n"
    "content = pathlib.Path(model.__file__).read_bytes()\n"
    "folder = pathlib.Path(model.__file__).parent\n"
    "assert (folder / 'data' / 'model.py').read_bytes() == bytes([0xe4, 0])\n"
    "subprocess.run([folder / 'a script ü.sh', '$HOME'], check=True)\n"
    "print('sum', hashlib.sha256(content).hexdigest(), 'of', dist.get_world_size(), flush=True)\n"
)


@dsl.pipeline(name="with-source")
def with_source():
    pytorch_job(
        name="with-source",
        image="torch",
        command="torchrun -m my_package.train",
        source=source(FOLDER),
        num_nodes=2,
        cleanup="always",
    )
