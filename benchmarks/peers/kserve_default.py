"""KServe's own server with all its defaults, and the model as its documentation says.

python kserve_default.py EXPORT NAME --http_port=PORT --grpc_port=PORT
"""

import sys
import uuid
from pathlib import Path

import torch

folder, name, *rest = sys.argv[1:]
sys.argv = [sys.argv[0], *rest]

from kserve import InferOutput, InferResponse, Model, ModelServer  # noqa: E402


class Exported(Model):
    def __init__(self) -> None:
        super().__init__(name)
        self.model = torch.export.load(Path(folder) / "model.pt2").module()
        self.ready = True

    def predict(self, payload, headers=None):  # noqa: ARG002
        with torch.inference_mode():
            batch = torch.from_numpy(payload.inputs[0].as_numpy().copy()).float()
            logits = self.model(batch).numpy()
        output = InferOutput("logits", list(logits.shape), "FP32")
        output.set_data_from_numpy(logits)
        return InferResponse(str(uuid.uuid4()), self.name, [output])


ModelServer().start([Exported()])
